// Routes whose labels a reader settles. Without this script the first question stands here as recorded.
(function () {
  const figure = document.currentScript.closest("figure");
  const { cases, memories } = JSON.parse(figure.querySelector(".companion-spec").textContent);
  const [bar, routes, read] = ["controls", "routes", "read"].map((name) => figure.querySelector(".companion-" + name));
  const MARKS = { 1: "✓", 0: "✕", "?": "?" };
  const WORDS = { 1: "admissible", 0: "inadmissible", "?": "unresolved" };
  const NEXT = { "?": "0", 0: "1", 1: "?" };
  const make = (name, attributes, text) => {
    const element = Object.assign(document.createElement(name), attributes);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const three = (value) => value.toFixed(3);

  function words(labels) {
    const size = labels.length;
    const bad = labels.filter((label) => label === "0").length;
    const open = labels.filter((label) => label === "?").length;
    if (!size) return ["not enough found: no matched prefix", 0, 0];
    const known = size > open ? three(bad / (size - open)) : "undefined";
    const said =
      bad + " of " + size + " violate, " + open + " open: share between " + three(bad / size) + " and " +
      three((bad + open) / size) + "; known rate " + known + ", coverage " + three(1 - open / size);
    return [said, bad / size, (bad + open) / size];
  }

  function draw(route) {
    const block = make("div");
    const list = make("ol");
    const meter = make("div", { className: "companion-meter" });
    meter.setAttribute("aria-hidden", "true");
    const told = make("p");
    told.setAttribute("role", "status");
    const labels = Array.from(route.labels);
    const tell = () => {
      const [said, low, high] = words(labels.slice(0, route.prefix));
      told.textContent = said;
      meter.style.setProperty("--low", 100 * low + "%");
      meter.style.setProperty("--high", 100 * high + "%");
    };
    labels.forEach((label, place) => {
      const square = make("button", { type: "button", className: "companion-square" });
      const text = memories[route.memories[place]];
      const show = () => {
        const now = labels[place];
        square.dataset.label = now;
        square.textContent = MARKS[now];
        const parts = ["rank " + (place + 1), WORDS[now], route.needed[place] === "1" ? "answers the question" : "",
          place >= route.prefix ? "after the matched prefix" : "", now === route.labels[place] ? route.why[place] : "your label"];
        square.setAttribute("aria-label", parts.filter(Boolean).join(", ") + ": " + text);
        read.replaceChildren(make("strong", {}, parts.filter(Boolean).join(", ") + ". "), text);
      };
      show();
      if (route.needed[place] === "1") square.dataset.needed = "";
      if (place >= route.prefix) square.dataset.past = "";
      square.addEventListener("click", () => {
        labels[place] = NEXT[labels[place]];
        show();
        tell();
      });
      for (const name of ["focus", "mouseenter"]) square.addEventListener(name, show);
      const item = make("li");
      item.append(square);
      list.append(item);
    });
    tell();
    block.append(make("p", { className: "companion-arm" }, route.arm), list, meter, told);
    return block;
  }

  function choose() {
    const chosen = cases[menu.value];
    routes.replaceChildren(make("p", { className: "companion-asked" }, chosen.question), ...chosen.routes.map(draw));
    read.textContent = "Point at a square to read its memory; click it to settle its label: ? becomes ✕, then ✓, then ? again.";
  }
  const menu = make("select");
  cases.forEach((one, place) => menu.add(new Option(one.question, place)));
  const label = make("label", {}, "Question ");
  label.append(menu);
  const reset = make("button", { type: "button" }, "As recorded");
  bar.append(label, reset);
  menu.addEventListener("change", choose);
  reset.addEventListener("click", choose);
  bar.hidden = read.hidden = false;
  choose();
})();
