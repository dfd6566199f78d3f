/* The playground: two ranked lists of one question, labels to settle, bounds that follow. No server, no library. */
(() => {
  "use strict";
  const here = document.currentScript.src.replace(/[^/]*$/, "");
  const AXES = ["relevant", "scope", "policy", "lifecycle"];
  const SAYS = ["not admissible", "admissible", "unresolved"];
  const SIGNS = ["✕", "✓", "?"];
  const known = {}; // corpus -> its columns
  const waiting = {};
  const loading = {};
  const axes = (code) => AXES.map((_, n) => Math.floor(code / 3 ** n) % 3);

  /** Kleene's conjunction of 0, 1 and 2 (unresolved). */
  const and = (values) => (values.includes(0) ? 0 : values.includes(2) ? 2 : 1);

  /** Score one list as the book does: matched prefix, bounds, loss. `settled` maps items to an admissible of 0, 1 or 2. */
  function score(corpus, arm, number, settled = {}, target = 8) {
    const data = known[corpus];
    const [, , , members, items, lists] = data.questions[number];
    const list = lists[data.arms.findIndex(([name]) => name === arm)];
    const status = (item) => settled[item] ?? and(axes(items[item][1]).slice(1));
    const usable = (item, admissible) => axes(items[item][1])[0] === 1 && admissible === 1;
    const left = members.slice();
    for (const item of Object.keys(settled)) {
      const change = usable(item, settled[item]) - usable(item, and(axes(items[item][1]).slice(1)));
      for (const group of items[item].slice(2)) left[group] += change;
    }
    const anchors = left.filter((count) => count > 0).length;
    const needed = Math.ceil((target * anchors) / 10);
    const found = new Set();
    let prefix = 0;
    const rows = list.map((item, place) => {
      const admissible = status(item);
      const anchor = usable(item, admissible);
      if (anchor) items[item].slice(2).forEach((group) => found.add(group));
      if (!prefix && anchors && found.size >= needed) prefix = place + 1;
      return { item, admissible, anchor };
    });
    const inside = rows.slice(0, prefix);
    const bad = inside.filter((row) => row.admissible === 0).length;
    const open = inside.filter((row) => row.admissible === 2).length;
    const feasible = prefix > 0;
    const upper = feasible ? (bad + open) / prefix : null;
    return {
      rows, anchors, prefix, feasible, bad, open, upper,
      recall: anchors ? found.size / anchors : null,
      lower: feasible ? bad / prefix : null,
      loss: anchors ? (feasible ? upper : 1) : null,
    };
  }

  function load(corpus) {
    loading[corpus] ??= new Promise((resolve, reject) => {
      waiting[corpus] = resolve;
      const script = document.createElement("script");
      script.src = `${here}${corpus}.js`;
      script.onerror = () => reject(new Error(corpus));
      document.head.append(script);
    });
    return loading[corpus];
  }

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  function choice(label, options, value, act) {
    const select = make("select");
    options.forEach(([key, text]) => {
      const option = make("option", { value: key }, text);
      option.selected = String(key) === String(value);
      select.append(option);
    });
    select.addEventListener("change", () => act(select.value));
    return make("label", {}, label, select);
  }

  class Playground {
    constructor(root) {
      this.root = root;
      this.read();
      window.addEventListener("hashchange", () => {
        if (location.hash.slice(1) !== this.link) {
          this.read();
          this.open();
        }
      });
      this.open();
    }

    read() {
      const given = new URLSearchParams(location.hash.slice(1));
      this.corpus = ["demo", "rhelm", "gatemem"].includes(given.get("corpus")) ? given.get("corpus") : "demo";
      this.arms = [given.get("left") || "global_dense", given.get("right") || "namespace_dense"];
      this.question = given.get("question");
      this.target = [5, 7, 8, 9, 10].includes(Number(given.get("target"))) ? Number(given.get("target")) : 8;
      this.settled = {};
      (given.get("labels") || "").split(",").forEach((pair) => {
        const [item, value] = pair.split(":").map(Number);
        if (pair && [0, 1, 2].includes(value)) this.settled[item] = value;
      });
    }

    open() {
      load(this.corpus).then((data) => {
        const names = data.arms.map(([name]) => name);
        this.arms = this.arms.map((arm, n) => (names.includes(arm) ? arm : names[n]));
        const usual = this.corpus === "demo" ? "company-0002-q06" : data.questions[0][0];
        const place = (id) => data.questions.findIndex((question) => question[0] === id);
        this.number = Math.max(place(this.question), 0) || Math.max(place(this.question ?? usual), 0);
        const items = data.questions[this.number][4].length;
        Object.keys(this.settled).forEach((item) => item < items || delete this.settled[item]);
        this.draw();
      }, () => this.root.replaceChildren(make("p", { role: "alert" }, "The data of this corpus are not beside the page.")));
    }

    set(change) {
      const focused = document.activeElement?.dataset?.item;
      const side = document.activeElement?.dataset?.side;
      const label = document.activeElement?.parentElement?.firstChild?.textContent;
      Object.assign(this, change);
      this.open();
      load(this.corpus).then(() => {
        const again = focused === undefined
          ? [...this.root.querySelectorAll("select")].find((s) => s.parentElement.firstChild.textContent === label)
          : this.root.querySelector(`button[data-item="${focused}"][data-side="${side}"]`);
        again?.focus();
      });
    }

    draw() {
      const data = known[this.corpus];
      const question = data.questions[this.number];
      const questions = data.questions.map(([id, owner, text], n) => [n, `${data.owners[owner]}: ${text || id}`]);
      const arms = data.arms;
      const fresh = { settled: {} };
      const controls = make("div", { class: "pg-controls" },
        choice("Corpus", ["demo", "rhelm", "gatemem"].map((n) => [n, n]), this.corpus, (v) => this.set({ corpus: v, question: null, ...fresh })),
        choice("Question", questions, this.number, (v) => this.set({ question: data.questions[v][0], ...fresh })),
        choice("Left", arms, this.arms[0], (v) => this.set({ arms: [v, this.arms[1]] })),
        choice("Right", arms, this.arms[1], (v) => this.set({ arms: [this.arms[0], v] })),
        choice("Share of the evidence to reach", [5, 7, 8, 9, 10].map((n) => [n, `${n * 10}%`]), this.target, (v) => this.set({ target: Number(v) })));
      const reset = make("button", { type: "button", class: "pg-reset" }, "Labels as released");
      reset.disabled = !Object.keys(this.settled).length;
      reset.addEventListener("click", () => this.set(fresh));
      controls.append(reset);
      const asked = make("p", {}, `${data.owners[question[1]]} asks: `, make("strong", {}, question[2] || question[0]));
      const lists = make("div", { class: "pg-lists" }, ...this.arms.map((arm, side) => this.list(data, arm, side)));
      const told = this.arms.map((arm) => this.words(score(this.corpus, arm, this.number, this.settled, this.target)));
      const said = make("p", { class: "pg-said", role: "status" }, `Left: ${told[0]} Right: ${told[1]}`);
      this.root.replaceChildren(controls, asked, lists, said);
      const link = { corpus: this.corpus, question: question[0], left: this.arms[0], right: this.arms[1], target: this.target };
      const labels = Object.entries(this.settled).map(([item, value]) => `${item}:${value}`).join(",");
      this.link = new URLSearchParams(labels ? { ...link, labels } : link).toString();
      this.question = question[0];
      history.replaceState(null, "", `#${this.link}`);
    }

    words(result) {
      const number = (value) => (value === null ? "undefined" : value.toFixed(3));
      if (!result.anchors) return "no evidence is known, nothing to score.";
      if (!result.feasible) return `recall ${number(result.recall)}, target not reached, loss 1.`;
      return `recall ${number(result.recall)}, prefix of ${result.prefix}: between ${number(result.lower)} and ${number(result.upper)} ` +
        `may not be used, loss ${number(result.loss)}.`;
    }

    list(data, arm, side) {
      const result = score(this.corpus, arm, this.number, this.settled, this.target);
      const [, mine, , , items] = data.questions[this.number];
      const rows = result.rows.map(({ item, admissible, anchor }, place) => {
        const [memory, owner, text] = data.memories[items[item][0]];
        const name = data.prefixed ? `${data.owners[owner]}/${memory}` : memory;
        const why = AXES.filter((axis, n) => n && axes(items[item][1])[n] === 0).join(", ");
        const settled = item in this.settled ? ", settled by you" : why ? ` (${why})` : "";
        const button = make("button", {
          type: "button", "data-item": item, "data-side": side, "data-status": admissible, title: "Settle: yes, no, open",
          "aria-label": `Rank ${place + 1}, ${name}: ${SAYS[admissible]}${settled}${anchor ? ", evidence" : ""}. Change the label.`,
        }, SIGNS[admissible]);
        button.addEventListener("click", () => this.cycle(item, admissible));
        const words = make("span", {}, text || name, make("small", {}, `${data.owners[owner]}${owner === mine ? "" : " (another owner)"}${settled}`));
        const classes = `${place < result.prefix ? "pg-inside" : ""} ${anchor ? "pg-anchor" : ""}`;
        return make("li", { class: classes.trim() }, button, words);
      });
      const title = data.arms.find(([name]) => name === arm)[1];
      return make("section", { "aria-label": `${side ? "Right" : "Left"}: ${title}` },
        make("h2", {}, title), make("p", { class: "pg-numbers" }, this.words(result)), make("ol", {}, ...rows));
    }

    cycle(item, now) {
      const [, , , , items] = known[this.corpus].questions[this.number];
      const released = and(axes(items[item][1]).slice(1));
      const next = { 1: 0, 0: 2, 2: 1 }[now];
      const settled = { ...this.settled, [item]: next };
      if (next === released) delete settled[item];
      this.set({ settled });
    }
  }

  window.companionPlayground = {
    data(corpus, columns) {
      known[corpus] = columns;
      waiting[corpus]?.(columns);
    },
    score,
    load,
    known,
  };
  const start = () => document.querySelectorAll("#companion-playground").forEach((root) => new Playground(root));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
