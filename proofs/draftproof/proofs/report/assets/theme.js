// Light or dark? As the system says, until the reader chooses; and the start of everything.

"use strict";

function startTheme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const show = () => button.setAttribute("aria-pressed", String(isDark()));
  try {
    const chosen = localStorage.getItem("draftproof-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A page opened from a file may not store anything: then the choice lasts as long as the page.
  }
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("draftproof-theme", document.documentElement.dataset.theme);
    } catch {
      // As above.
    }
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();
}

startTheme();
startFaults(JSON.parse(document.getElementById("report-data").textContent));
