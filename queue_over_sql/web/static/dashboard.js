// What is live on a page is fetched again when the server says that something changed.
"use strict";
(() => {
  const live = document.querySelector("[data-events]");
  const state = document.querySelector("[data-live]");
  const say = (text, stale) => {
    if (!state) return;
    state.textContent = text;
    state.classList.toggle("stale", stale);
  };
  if (live && window.EventSource && window.htmx) {
    const source = new EventSource(live.dataset.events);
    source.addEventListener("changed", () => {
      // Not below somebody's hands: what has the focus is left alone.
      if (!live.contains(document.activeElement)) htmx.trigger(live, "changed");
    });
    source.onopen = () => say("Live.", false);
    source.onerror = () => say("No connection to the server: this page is not up to date.", true);
    window.addEventListener("pagehide", () => source.close());
  }
  for (const box of document.querySelectorAll("input[data-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      const form = box.closest("form");
      for (const each of form.querySelectorAll("input[name=id]")) each.checked = box.checked;
    });
  }
})();
