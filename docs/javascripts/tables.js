// The theme puts each table into a box that scrolls: a keyboard must reach it, and a screen reader name it.
"use strict";

const reach = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Table");
  }
};
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
reach();
