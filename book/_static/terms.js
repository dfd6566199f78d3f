// Definitions of glossary terms beside the word: on hover, on focus, dismissed with Escape. The title that serves
// readers without scripts is taken away here, or two notes would show.
(function () {
  const links = Array.from(document.querySelectorAll("a.companion-term[title]"));
  if (!links.length) return;
  const note = document.createElement("div");
  note.id = "companion-definition";
  note.setAttribute("role", "tooltip");
  note.hidden = true;
  document.body.append(note);
  const words = new Map();
  let current = null;
  let timer = 0;
  function hide() {
    if (current) current.removeAttribute("aria-describedby");
    current = null;
    note.hidden = true;
  }
  function later() {
    clearTimeout(timer);
    timer = setTimeout(hide, 200); // time to move the pointer onto the note
  }
  function show(link) {
    clearTimeout(timer);
    if (current === link) return;
    hide();
    current = link;
    note.textContent = words.get(link);
    note.hidden = false;
    link.setAttribute("aria-describedby", note.id);
    const word = link.getClientRects()[0];
    const width = document.documentElement.clientWidth;
    const left = Math.max(16, Math.min(word.left, width - note.offsetWidth - 16));
    const below = word.bottom + note.offsetHeight + 12 < window.innerHeight;
    const top = below ? word.bottom + 6 : Math.max(6, word.top - note.offsetHeight - 6);
    note.style.left = left + window.scrollX + "px";
    note.style.top = top + window.scrollY + "px";
  }
  for (const link of links) {
    words.set(link, link.title);
    link.removeAttribute("title");
    link.addEventListener("mouseenter", () => show(link));
    // Another word may have the note by now: focus scrolls the page away from under the pointer.
    link.addEventListener("mouseleave", () => { if (current === link) later(); });
    link.addEventListener("focus", () => show(link));
    link.addEventListener("blur", later);
  }
  note.addEventListener("mouseenter", () => clearTimeout(timer));
  note.addEventListener("mouseleave", later);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
})();
