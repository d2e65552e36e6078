// Runs before the first paint, so that a remembered colour choice does not flash. Storage may be forbidden: then the choice lasts for the page.
(() => {
  "use strict";
  const KEY = "kvwatch-theme";
  const root = document.documentElement;
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  try {
    apply(localStorage.getItem(KEY));
  } catch {
    // no storage, no memory
  }
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = root.dataset.theme ?? "";
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(KEY, select.value);
      } catch {
        // as above
      }
    });
  });
})();
