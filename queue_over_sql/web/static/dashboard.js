// Refresh the live parts of a page when the server says that something changed.
"use strict";
(() => {
  const live = document.querySelector("[data-events]");
  const state = document.querySelector("[data-live]");
  let source = null;
  let missed = false;
  const say = (text, stale) => {
    state.textContent = text;
    state.classList.toggle("stale", stale);
  };
  const fetchAgain = () => {
    const held = document.activeElement;
    // Do not replace a part while one of its elements has the focus.
    missed = live.contains(held) && held.matches("a, button, input, select");
    if (!missed) htmx.trigger(live, "changed");
  };
  const open = () => {
    if (source || document.hidden) return;
    let lost = false;
    source = new EventSource(live.dataset.events);
    source.addEventListener("changed", fetchAgain);
    source.onopen = () => {
      say("Live", false);
      if (lost) fetchAgain();
      lost = false;
    };
    source.onerror = () => {
      lost = true;
      say("No connection to the server: this page is not up to date.", true);
    };
  };
  // Browsers open at most six connections to a server, so a hidden page must not hold one.
  const close = () => {
    if (source) source.close();
    source = null;
  };
  const look = () => {
    if (document.hidden) return close();
    if (source) return;
    open();
    fetchAgain();
  };
  if (live && state && window.EventSource && window.htmx) {
    open();
    live.addEventListener("focusout", () => setTimeout(() => missed && fetchAgain()));
    document.addEventListener("visibilitychange", look);
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => event.persisted && look());
  }
  for (const box of document.querySelectorAll("input[data-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      const form = box.closest("form");
      for (const each of form.querySelectorAll("input[name=id]")) each.checked = box.checked;
    });
  }
})();
