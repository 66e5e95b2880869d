// What pages need beside htmx: the theme, updates that pause, and a warning while the console is away.
"use strict";

const stored = (key, value) => {
  try {
    if (value === undefined) return localStorage.getItem(key);
    localStorage.setItem(key, value);
  } catch { /* storage is refused: nothing is kept */ }
  return null;
};

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

document.addEventListener("click", (event) => {
  if (!event.target.closest("#theme")) return;
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  stored("theme", theme);
});

const live = () => document.getElementById("live");

document.addEventListener("DOMContentLoaded", () => {
  const box = live();
  if (!box) return;
  box.checked = stored("live") !== "off";
  box.addEventListener("change", () => stored("live", box.checked ? "on" : "off"));
});

// An update that nobody asked for waits while the tab is hidden, updates are off, or text is selected.
document.addEventListener("htmx:beforeRequest", (event) => {
  if (!event.detail.elt.hasAttribute("data-live")) return;
  const box = live();
  const selected = !getSelection().isCollapsed;
  if (document.hidden || selected || (box && !box.checked)) event.preventDefault();
});

const away = (isAway) => { document.getElementById("away").hidden = !isAway; };
document.addEventListener("htmx:sendError", () => away(true));
document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.xhr.status) away(false); });

// A page that says why a cluster does not answer is as good as any other content.
document.addEventListener("htmx:beforeSwap", (event) => {
  if ([404, 503].includes(event.detail.xhr.status)) event.detail.shouldSwap = true;
});
