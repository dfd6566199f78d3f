// What scrolls sideways must be reachable by keyboard: wide formulas and code on narrow screens.
(function () {
  function mark() {
    for (const part of document.querySelectorAll("mjx-container[display], div.math, pre, .companion-still, div.output.text_html")) {
      if (part.scrollWidth > part.clientWidth + 1) part.tabIndex = 0;
      else if (part.tabIndex === 0) part.removeAttribute("tabindex");
    }
  }
  function start() {
    const typeset = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
    Promise.resolve(typeset).then(mark);
    let timer = 0;
    window.addEventListener("resize", () => {
      clearTimeout(timer);
      timer = setTimeout(mark, 150);
    });
  }
  if (document.readyState === "complete") start();
  else window.addEventListener("load", start);
})();

// Paper is white: while a page prints, it is in its light mode, pictures and code included.
(function () {
  const page = document.documentElement;
  const paper = window.matchMedia("print");
  let before = "";
  paper.addEventListener("change", () => {
    if (paper.matches) {
      before = page.dataset.theme || "";
      page.dataset.theme = "light";
    } else if (before) {
      page.dataset.theme = before;
    }
  });
})();

// The theme opens a chapter's text or notebook in a new tab; a reader who asks for a download wants the file.
for (const link of document.querySelectorAll("a.btn-download-source-button, a.btn-download-notebook-button")) {
  link.download = link.getAttribute("href").split("/").pop();
}
