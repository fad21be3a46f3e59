"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.documentElement;
  root.classList.add("scripted");
  for (const button of all("button:disabled")) button.disabled = false;

  // Theme: that of the system, until the button is pressed.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // Tables: the button of a column sorts by it; a second press reverses the order.
  const sortBy = (button) => {
    const head = button.closest("th");
    const column = head.cellIndex;
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    const value = (row) => row.cells[column].dataset.value;
    const order = button.dataset.sort === "number"
      ? (a, b) => Number(value(a)) - Number(value(b))
      : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
    const rows = [...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a)));
    body.append(...rows);
    for (const other of all("[aria-sort]", head.parentElement)) {
      other.setAttribute("aria-sort", "none");
    }
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  for (const button of all("button[data-sort]")) {
    button.addEventListener("click", () => sortBy(button));
  }

  // Selects: each option lists the panels it shows, in the order of the selects.
  const show = (group) => {
    const keys = all("select", group).flatMap((select) => select.value.split(" "));
    for (const panel of all("[data-key]", group)) {
      panel.hidden = !keys.includes(panel.dataset.key);
      panel.style.order = keys.indexOf(panel.dataset.key);
    }
  };
  for (const group of all("[data-switch]")) {
    group.addEventListener("change", () => show(group));
    show(group); // a browser may keep the choices after a reload
  }

  // Curves: pointing at a name, a row or a curve highlights it; pressing its name keeps it so.
  for (const group of all("[data-highlight]")) {
    const light = (curve) => {
      const pressed = all("button[data-curve][aria-pressed=true]", group);
      const pinned = pressed.map((one) => one.dataset.curve);
      const lit = curve === undefined ? pinned : [...pinned, curve];
      group.classList.toggle("dimmed", lit.length > 0);
      for (const one of all("[data-curve]", group)) {
        one.classList.toggle("lit", lit.includes(one.dataset.curve));
      }
    };
    const curveOf = (event) => event.target.closest?.("[data-curve]")?.dataset.curve;
    for (const kind of ["mouseover", "focusin"]) {
      group.addEventListener(kind, (event) => light(curveOf(event)));
    }
    for (const kind of ["mouseleave", "focusout"]) group.addEventListener(kind, () => light());
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-curve]");
      if (!button) return;
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      light();
    });
  }

  // Contents: a link opens what it leads into.
  for (const link of all('a[href^="#"]')) {
    const fold = document.querySelector(link.hash)?.closest("details");
    if (fold) link.addEventListener("click", () => { fold.open = true; });
  }

  // Print: open all details before printing, and close them again.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
  });
})();
