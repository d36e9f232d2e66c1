// Refresh the live parts of a page when the server says that something changed, until somebody
// pauses that; copy texts; choose all messages of a page.
"use strict";
(() => {
  const live = document.querySelector("[data-events]");
  const state = document.querySelector("[data-live]");
  const pause = document.querySelector("[data-pause]");
  const every = document.querySelector("[data-every]");
  const kept = "queue_over_sql_paused";
  const keptEvery = "queue_over_sql_every";
  let paused = false;
  let source = null;
  let missed = false;
  const say = (text, stale) => {
    state.textContent = text;
    state.classList.toggle("stale", stale);
    state.classList.toggle("paused", paused);
    state.classList.remove("old");
  };
  const fetchAgain = () => {
    const held = document.activeElement;
    // Do not replace a part while one of its elements has the focus.
    missed = live.contains(held) && held.matches("a, button, input, select");
    if (!missed) htmx.trigger(live, "changed");
  };
  const open = () => {
    if (source || document.hidden || paused) return;
    let lost = false;
    source = new EventSource(`${live.dataset.events}?every=${every.value}`);
    source.addEventListener("changed", fetchAgain);
    // How many seconds ago the queues were counted, which takes long for many messages.
    source.addEventListener("age", (event) => {
      const [age, stretched] = event.data.split(" ").map(Number);
      const why = stretched ? `, counted every ${stretched} s because that takes long` : "";
      say((age < 5 ? "Live" : `${age} s old`) + why, false);
      state.classList.toggle("old", age >= Math.max(10, every.value * 1.5));
    });
    source.onopen = () => {
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
    if (source || paused) return;
    open();
    fetchAgain();
  };
  const setPaused = (wanted) => {
    paused = wanted;
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    if (paused) {
      close();
      say("Paused", false);
    } else look();
  };
  // A browser may forbid pages to store anything.
  const storage = (use) => {
    try {
      return use(window.sessionStorage);
    } catch {
      return null;
    }
  };
  if (live && state && window.EventSource && window.htmx) {
    pause.hidden = every.hidden = false;
    every.value = storage((store) => store.getItem(keptEvery)) || "2";
    every.addEventListener("change", () => {
      storage((store) => store.setItem(keptEvery, every.value));
      close();
      look();
    });
    pause.addEventListener("click", () => {
      setPaused(!paused);
      storage((store) => store.setItem(kept, paused ? "yes" : "no"));
    });
    if (storage((store) => store.getItem(kept)) === "yes") setPaused(true);
    else open();
    live.addEventListener("focusout", () => setTimeout(() => missed && !paused && fetchAgain()));
    document.addEventListener("visibilitychange", look);
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => event.persisted && look());
  }
  // Only pages by HTTPS or of this machine may write to the clipboard.
  if (navigator.clipboard) {
    const said = document.createElement("span");
    said.className = "hidden";
    said.setAttribute("role", "status");
    document.getElementById("main").append(said);
    for (const button of document.querySelectorAll("[data-copy]")) {
      const label = button.textContent;
      const show = (text) => {
        said.textContent = button.textContent = text;
        setTimeout(() => (button.textContent = label), 2000);
      };
      button.hidden = false;
      button.addEventListener("click", () => {
        const text = document.getElementById(button.dataset.copy).textContent;
        const done = navigator.clipboard.writeText(text);
        done.then(
          () => show(label.replace("Copy", "Copied")),
          () => show("Not copied"),
        );
      });
    }
  }
  for (const box of document.querySelectorAll("input[data-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      const form = box.closest("form");
      for (const each of form.querySelectorAll("input[name=id]")) each.checked = box.checked;
    });
  }
})();
