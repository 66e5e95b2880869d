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

// A field that one has changed and not sent keeps what stands in it.
const isEdited = (field) => {
  if (field instanceof HTMLSelectElement) {
    const chosen = [...field.options].findIndex((option) => option.defaultSelected);
    return field.selectedIndex !== Math.max(chosen, 0);
  }
  if (field instanceof HTMLInputElement && ["checkbox", "radio"].includes(field.type)) {
    return field.checked !== field.defaultChecked;
  }
  return "defaultValue" in field && field.value !== field.defaultValue;
};
Idiomorph.defaults.callbacks.beforeNodeMorphed = (was) => !isEdited(was);
// What one has unfolded stays so.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node instanceof HTMLDetailsElement);

const away = (isAway) => { document.getElementById("away").hidden = !isAway; };
document.addEventListener("htmx:sendError", () => away(true));
document.addEventListener("htmx:afterRequest", (event) => { if (event.detail.xhr.status) away(false); });

// A page that says why a cluster does not answer is as good as any other content.
document.addEventListener("htmx:beforeSwap", (event) => {
  if ([404, 503].includes(event.detail.xhr.status)) event.detail.shouldSwap = true;
});

// A chart of points: the mean as a line, the lowest and the highest value as a band around it.
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const room = (place) => place.offsetWidth - 28; // without the frame, which an empty chart does not have

const draw = async (place) => {
  const answer = await fetch(place.dataset.points);
  if (!answer.ok) return;
  const points = await answer.json();
  const data = [points.at_s, points.high, points.low, points.mean];
  if (place.chart) { place.chart.setData(data); return; }
  if (points.at_s.length < 2) return;
  // uPlot's own labels are those of a twelve-hour clock.
  const day = "{YYYY}-{MM}-{DD}", at = (step, label) => [step, label, `\n${day}`, null, `\n${day}`, null, null, null, 1];
  const none = [null, null, null, null, null, null, 1];
  const times = [[86400, day, ...none], at(60, "{HH}:{mm}"), at(1, "{HH}:{mm}:{ss}")];
  const count = (number) => number.toLocaleString("en").replaceAll(",", "\u202f");
  const shown = (_, number) => number === null || number === undefined ? "–" : count(number);
  const axis = { stroke: ink("--dim"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") } };
  place.chart = new uPlot({
    width: room(place), height: 220, padding: [null, 32, null, null], tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
    scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
    axes: [{ ...axis, values: times, space: 80 }, { ...axis, size: 80, values: (_, marks) => marks.map(count) }],
    series: [
      { label: "Time (UTC)", value: `${day} {HH}:{mm}` },
      { label: "highest", stroke: "transparent", value: shown }, { label: "lowest", stroke: "transparent", value: shown },
      { label: place.dataset.label, value: shown, stroke: ink("--accent"), width: 2 }, // last, over the band
    ],
    bands: [{ series: [1, 2], fill: ink("--soft") }],
  }, data, place);
};

const drawAll = () => document.querySelectorAll(".chart[data-points]").forEach((place) => { void draw(place); });
document.addEventListener("DOMContentLoaded", drawAll);
document.addEventListener("htmx:afterSwap", drawAll);
new ResizeObserver(() => document.querySelectorAll(".chart").forEach((place) => {
  place.chart?.setSize({ width: room(place), height: 220 });
})).observe(document.documentElement);
