// A search and two menus above the table of claims. Without this script the table is complete, and stays so in print.
(function () {
  const block = document.currentScript.closest(".companion-claims");
  const bar = block.querySelector(".companion-filters");
  const rows = Array.from(block.querySelectorAll("tbody tr:not(.companion-group)"));
  const groups = Array.from(block.querySelectorAll("tbody tr.companion-group"));
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const search = document.createElement("input");
  const menus = {};
  const count = document.createElement("span");
  count.className = "companion-count";
  count.setAttribute("role", "status");
  function apply() {
    let shown = 0;
    for (const row of rows) {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const fits = words.every((word) => texts.get(row).includes(word)) && Object.entries(menus).every(([key, menu]) => !menu.value || row.dataset[key] === menu.value);
      row.hidden = !fits;
      shown += fits;
    }
    for (const group of groups) {
      let next = group.nextElementSibling;
      while (next && next.hidden && !next.classList.contains("companion-group")) next = next.nextElementSibling;
      group.hidden = !next || next.classList.contains("companion-group");
    }
    count.textContent = shown + " of " + rows.length + " rows";
  }
  search.type = "search";
  search.addEventListener("input", apply);
  const box = document.createElement("label");
  box.append("search ", search);
  bar.append(box);
  for (const key of ["stage", "status"]) {
    const label = document.createElement("label");
    const menu = document.createElement("select");
    const values = Array.from(new Set(rows.map((row) => row.dataset[key])));
    menu.add(new Option("every " + key, ""));
    for (const value of values) menu.add(new Option(value.replace("-", " "), value));
    menu.addEventListener("change", apply);
    label.append(key + " ", menu);
    bar.append(label);
    menus[key] = menu;
  }
  bar.append(count);
  bar.hidden = false;
  apply();
})();
