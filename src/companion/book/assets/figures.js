// Draws every figure of the page from the specification that stands in it. No request is made, ever.
const CONFIG = /*CONFIG*/ {};
const HATCH =
  '<svg width="0" height="0" aria-hidden="true" focusable="false" style="position:absolute">' +
  '<defs><pattern id="companion-hatch" width="6" height="6" patternUnits="userSpaceOnUse" ' +
  'patternTransform="rotate(45)"><rect width="6" height="6" fill="#7c8591" fill-opacity="0.25"/>' +
  '<rect width="2" height="6" fill="#7c8591"/></pattern></defs></svg>';
// Below this width (pixels) the parts of a composed chart stand under one another.
const NARROW = 600;
// Room that axes and labels of one part take beside its plotting area.
const MARGIN = 130;

// Milliseconds without a move after which a slider has been set, and how many marks one would listen to.
const SETTLED = 500;
const FEW = 8;
const UNTOLD = "The chart has changed. The table behind it holds its numbers.";

// Vega asks its loader for every URL; this one knows none.
const loader = {
  load: () => Promise.reject(new Error("figures load nothing")),
  sanitize: () => Promise.reject(new Error("figures link nowhere")),
  http: () => Promise.reject(new Error("figures load nothing")),
  file: () => Promise.reject(new Error("figures load nothing")),
};

// Average width in pixels of a character of the charts' labels and titles.
const LETTER = 7;
// Parts of a specification that hold data or floating text, not layout.
const SKIPPED = new Set(["data", "datasets", "tooltip", "usermeta", "params", "transform"]);

// Break a title into lines that fit; Vega clips what does not.
function broken(title, width, letter = LETTER) {
  if (Array.isArray(title)) return title.flatMap((line) => broken(line, width, letter));
  if (typeof title !== "string" || title.length * letter <= width) return title;
  const lines = [""];
  for (const word of title.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && (last.length + 1 + word.length) * letter > width) lines.push(word);
    else lines[lines.length - 1] = last ? last + " " + word : word;
  }
  return lines;
}

// On a narrow screen titles are broken into lines, throughout a specification.
function breakTitles(part, width) {
  if (Array.isArray(part)) {
    for (const item of part) breakTitles(item, width);
  } else if (part && typeof part === "object") {
    for (const [key, value] of Object.entries(part)) {
      if (SKIPPED.has(key)) continue;
      if (key === "title" || key === "text" || key === "subtitle") {
        if (typeof value === "string" || Array.isArray(value)) {
          part[key] = broken(value, width, key === "text" ? LETTER * 1.2 : LETTER);
          continue;
        }
      }
      breakTitles(value, width);
    }
  }
}

// As many columns of a legend as fit beside one another on a narrow screen.
function legendColumns(spec, width) {
  const lengths = [8];
  (function look(part) {
    if (!part || typeof part !== "object") return;
    for (const [key, value] of Object.entries(part)) {
      if (SKIPPED.has(key)) continue;
      if (key === "domain" && Array.isArray(value)) {
        for (const item of value) if (typeof item === "string") lengths.push(item.length);
      } else look(value);
    }
  })(spec);
  return Math.max(1, Math.floor((width - MARGIN) / (Math.max(...lengths) * LETTER + 26)));
}

// How a composed chart fits `width`: side by side and shrunk, or stacked. Single charts follow by themselves.
// `margin` is the room that each part needs beside its plotting area.
function fitted(spec, width, margin) {
  const result = structuredClone(spec);
  const parts = result.hconcat || result.concat;
  if (parts) {
    const narrow = width < NARROW;
    const columns = narrow ? 1 : result.hconcat ? parts.length : Math.min(result.columns || parts.length, parts.length);
    const room = Math.max(140, Math.floor(width / columns) - margin);
    for (const part of parts) {
      if (typeof part.width === "number") part.width = narrow ? room : Math.min(part.width, room);
    }
    if (narrow) {
      result.vconcat = parts;
      delete result.hconcat;
      delete result.concat;
      delete result.columns;
    }
  } else if (result.vconcat) {
    for (const part of result.vconcat) {
      if (typeof part.width === "number") part.width = Math.min(part.width, Math.max(140, width - margin));
    }
  } else {
    fitFacets(result, width, margin);
  }
  return result;
}

function fitFacets(spec, width, margin) {
  const encoding = spec.encoding || {};
  const inner = spec.spec || spec;
  if (!(spec.facet || encoding.facet || encoding.column || encoding.row)) return;
  const wrap = encoding.facet || (spec.facet && !spec.facet.row && !spec.facet.column ? spec : null);
  const part = typeof inner.width === "number" ? inner.width : 200;
  if (wrap) {
    const wanted = wrap.columns || 99;
    const columns = Math.max(1, Math.min(wanted, Math.floor((width - 70) / (part + 24))));
    wrap.columns = columns;
    if (columns === 1) inner.width = Math.min(part, Math.max(140, width - margin));
  } else if (encoding.row && !encoding.column) {
    inner.width = Math.min(part, Math.max(140, width - margin));
  }
}

// Vega-Lite warns on the console, and nowhere else, when it settles a width just as it was asked to.
async function quietly(work) {
  const warn = console.warn;
  console.warn = (...parts) => {
    if (!parts.join(" ").includes('Dropping "fit')) warn.apply(console, parts);
  };
  try {
    return await work();
  } finally {
    console.warn = warn;
  }
}

const drawn = new Map();

function element(figure, name) {
  return figure.querySelector(".companion-" + name);
}

// Data sets travel as column names and rows of values; Vega-Lite wants one object a row.
function specification(figure) {
  const spec = JSON.parse(element(figure, "spec").textContent);
  for (const [name, data] of Object.entries(spec.datasets || {})) {
    if (!data.columns) continue;
    const { columns, rows } = data;
    spec.datasets[name] = rows.map((row) => Object.fromEntries(row.map((value, place) => [columns[place], value])));
  }
  return spec;
}

// How much each part of a row of parts must give up for the drawn chart to fit.
function tooWide(live, width) {
  const drawing = live.querySelector("svg");
  const over = drawing ? Number(drawing.getAttribute("width")) - width : 0;
  if (over < 2) return 0;
  const tops = Array.from(live.querySelectorAll(".role-scope"), (part) => Math.round(part.getBoundingClientRect().top));
  const beside = Math.max(1, ...tops.map((top) => tops.filter((other) => other === top).length));
  return Math.ceil(over / beside);
}

async function embed(figure, spec, width, margin) {
  const holder = document.createElement("div");
  // The element around it carries role and text alternative; single marks would only repeat them.
  holder.setAttribute("aria-hidden", "true");
  element(figure, "live").replaceChildren(holder);
  const narrow = width < NARROW;
  // Vega would measure its container by itself, at the moment the window changes: before the page has settled.
  const fit = spec.width !== "container" ? fitted(spec, width, margin) : { ...spec, width };
  if (narrow) breakTitles(fit, width - MARGIN);
  const legend = { ...CONFIG.legend, columns: legendColumns(spec, width) };
  const options = {
    mode: "vega-lite",
    config: narrow ? { ...CONFIG, legend } : CONFIG,
    renderer: "svg",
    actions: false,
    loader,
    tooltip: { theme: "companion" },
    bind: element(figure, "controls"),
    ast: false,
  };
  return quietly(() => vegaEmbed(holder, fit, options));
}

async function draw(figure) {
  const spec = specification(figure);
  const canvas = element(figure, "canvas");
  const live = element(figure, "live");
  const width = Math.floor(canvas.clientWidth);
  const before = drawn.get(figure);
  if (!width || (before && before.width === width)) return;
  const composed = spec.width !== "container";
  if (before && !composed && before.width < NARROW === width < NARROW) {
    before.width = width;
    await before.view.width(width).runAsync();
    return;
  }
  const state = before ? before.view.getState({ data: () => false, signals: (name) => bound(spec).has(name) }) : null;
  if (before) before.finalize();
  figure.classList.add("companion-drawing");
  let result = await embed(figure, spec, width, MARGIN);
  // Labels are as long as they are: a composed chart that came out too wide is drawn again with more room for them.
  const over = composed ? tooWide(live, width) : 0;
  if (over) {
    result.finalize();
    result = await embed(figure, spec, width, MARGIN + over);
  }
  if (state) await result.view.setState(state).runAsync();
  drawn.set(figure, { view: result.view, width, finalize: result.finalize });
  figure.classList.remove("companion-drawing");
  figure.classList.add("companion-drawn");
  label(figure);
}

function bound(spec) {
  return new Set((spec.params || []).filter((param) => param.bind && !param.select).map((param) => param.name));
}

// Vega names its inputs after signals; say which value each slider has to those who do not see it.
function label(figure) {
  const controls = element(figure, "controls");
  for (const input of controls.querySelectorAll("input, select")) {
    if (input.closest("label")) continue;
    const name = input.closest(".vega-bind") && input.closest(".vega-bind").querySelector(".vega-bind-name");
    if (name) input.setAttribute("aria-label", name.textContent);
  }
  if (!controls.querySelector("input, select") || element(figure, "told")) return;
  const told = document.createElement("p");
  told.className = "companion-told companion-sr";
  told.setAttribute("role", "status");
  figure.append(told);
  let timer = 0;
  let before = new Set(readings(figure));
  controls.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const now = readings(figure);
      const words = now.filter((said) => !before.has(said)).join(". ") || UNTOLD;
      told.textContent = words === told.textContent ? words + "\u00a0" : words; // said again, not passed over
      before = new Set(now);
    }, SETTLED);
  });
}

// What the chart says, in sentences for a screen reader: what is written in it, and its marks where they are few.
function readings(figure) {
  const marks = Array.from(figure.querySelectorAll(".companion-live .role-mark"));
  const written = marks.flatMap((mark) => Array.from(mark.querySelectorAll("text[aria-label]"), sentence));
  const few = marks
    .map((mark) => Array.from(mark.querySelectorAll(":not(text)[aria-label]"), (part) => part.getAttribute("aria-label")))
    .filter((words) => words.length > 1 && words.length <= FEW)
    .reduce((most, words) => (words.length >= most.length ? words : most), []);
  const numbers = written.filter((words) => /\d/.test(words));
  return Array.from(new Set(numbers.length ? numbers : few));
}

// A text mark with the names it belongs to, as in "global_dense: 0.780"; its bare numbers repeat what it says.
function sentence(text) {
  const lines = Array.from(text.querySelectorAll("tspan"), (line) => line.textContent);
  const words = (lines.length ? lines : [text.textContent]).join(", ");
  const bare = (part) => part.replace(/[\s,]+/g, "");
  const parts = text.getAttribute("aria-label").split("; ").map((part) => part.split(": ").slice(1).join(": "));
  const names = parts.filter((part) => bare(part) !== bare(words) && Number.isNaN(parseFloat(part.replace("−", "-"))));
  return [...names, words].join(": ");
}

async function drawAll(figures) {
  for (const figure of figures) {
    // Between two charts the browser may show the first and answer its reader.
    await new Promise((done) => setTimeout(done));
    try {
      await draw(figure);
    } catch (error) {
      figure.classList.add("companion-failed"); // the still image stays
      console.error("figure " + figure.id + ": " + error.message);
    }
  }
}

function start() {
  const figures = Array.from(document.querySelectorAll('figure[data-companion="chart"]'));
  if (!figures.length) return;
  document.body.insertAdjacentHTML("afterbegin", HATCH);
  let timer = 0;
  const sizes = new ResizeObserver(() => {
    clearTimeout(timer);
    timer = setTimeout(() => drawAll(figures.filter((figure) => drawn.has(figure))), 150);
  });
  companionFigures.ready = drawAll(figures).then(() => {
    figures.forEach((figure) => sizes.observe(element(figure, "canvas")));
    document.documentElement.classList.add("companion-ready");
  });
}

// The book's own pages and tests reach a chart's view by the id of its figure.
const companionFigures = (window.companionFigures = {
  ready: Promise.resolve(),
  view: (id) => (drawn.get(document.getElementById(id)) || {}).view,
});

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
else start();
