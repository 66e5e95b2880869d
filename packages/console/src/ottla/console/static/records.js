// Searches and live tails: rows and progress come as events of the server, already as text of the page.
"use strict";

const MOST_ROWS = 500; // in the table, and held back while somebody reads

const watchRecords = (body) => {
  const isTail = body.dataset.kind === "tail";
  const at = (id) => document.getElementById(id);
  const [state, failed, missed, stop] = ["search-state", "search-failed", "search-missed", "search-stop"].map(at);
  const [pause, heldButton] = ["tail-pause", "tail-held"].map(at);
  let held = []; // rows of the newest event first
  let lost = 0; // rows that were held back, and gave way to newer ones
  let isPaused = false;

  const source = new EventSource(body.dataset.events);

  const rowsOf = (html) => {
    const part = document.createElement("template");
    part.innerHTML = html;
    return [...part.content.querySelectorAll("tr")];
  };

  const reads = () => isPaused || document.hidden || scrollY > 200 || !getSelection().isCollapsed
    || body.contains(document.activeElement);

  const showHeld = () => {
    if (!held.length && !lost) return;
    const before = body.firstElementChild;
    for (const row of held) body.insertBefore(row, before);
    held = [];
    while (body.rows.length > MOST_ROWS) body.lastElementChild.remove();
    if (lost) {
      missed.hidden = false;
      missed.append(` ${lost} records came while you read, more than this page keeps: they are in the log. `);
      lost = 0;
    }
    heldButton.hidden = true;
  };

  const hold = (rows) => {
    held.unshift(...rows);
    if (held.length > MOST_ROWS) { lost += held.length - MOST_ROWS; held.length = MOST_ROWS; }
    if (!reads()) { showHeld(); return; }
    heldButton.textContent = `Show ${held.length + lost} new records`;
    heldButton.hidden = false;
  };

  const end = (text) => {
    source.close();
    stop.hidden = true;
    if (pause) pause.hidden = true;
    if (text) { failed.textContent = text; failed.hidden = false; }
  };

  const on = (kind, handle) => source.addEventListener(kind, (event) => handle(JSON.parse(event.data)));
  on("state", ({ html }) => { state.innerHTML = html; failed.hidden = true; });
  on("rows", ({ html }) => {
    if (isTail) hold(rowsOf(html));
    else body.append(...rowsOf(html).slice(0, MOST_ROWS - body.rows.length));
  });
  on("missed", ({ html }) => { missed.innerHTML = html; missed.hidden = false; });
  on("done", () => {
    end("");
    if (!body.rows.length) body.innerHTML = '<tr><td colspan="4" class="dim">No record matches.</td></tr>';
  });
  on("failed", ({ reason }) => end(`The search ended: ${reason}`));
  source.onerror = () => {
    // A tail goes on where it was; a search would begin again, and its rows would come twice.
    if (isTail && source.readyState === EventSource.CONNECTING) {
      failed.textContent = "The console does not answer; the page tries again.";
      failed.hidden = false;
    } else {
      end("The console does not answer, or refused the search: load the page again.");
    }
  };

  stop.addEventListener("click", () => {
    end("");
    state.append(isTail ? "Stopped." : "Cancelled.");
    if (isTail) { showHeld(); }
  });
  if (!isTail) return;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) showHeld();
  });
  heldButton.addEventListener("click", () => { scrollTo({ top: 0 }); showHeld(); });
};

document.addEventListener("DOMContentLoaded", () => {
  const body = document.querySelector("#records[data-events]");
  if (body) watchRecords(body);
});
