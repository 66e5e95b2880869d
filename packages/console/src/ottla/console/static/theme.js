// Applies the chosen theme before the first paint. Stands alone in <head>, so that no page flashes.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is refused: the system's theme */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
