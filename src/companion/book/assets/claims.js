// Two menus above the table of claims. Without this script the table is complete, and stays so in print.
(function () {
  const block = document.currentScript.closest(".companion-claims");
  const bar = block.querySelector(".companion-filters");
  const rows = Array.from(block.querySelectorAll("tbody tr"));
  const menus = {};
  const count = document.createElement("span");
  count.className = "companion-count";
  count.setAttribute("role", "status");
  function apply() {
    let shown = 0;
    for (const row of rows) {
      const fits = Object.entries(menus).every(([key, menu]) => !menu.value || row.dataset[key] === menu.value);
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = shown + " of " + rows.length + " rows";
  }
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
