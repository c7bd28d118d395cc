// Makes pages live: a stream says when to look again, htmx looks. Without this file everything still works.
"use strict";
(() => {
  const REFRESH_MS = 2000;
  let stream = null;
  let pressed = false;

  // Swapping under a selection or the focus would take away what somebody is about to copy or press; and a link that is
  // swapped between pressing it and letting it go is not followed.
  const busy = () => {
    const selection = document.getSelection();
    const focused = document.activeElement;
    return document.hidden || pressed || (selection && !selection.isCollapsed) ||
      (focused && focused.closest("#pages, [hx-trigger]") && focused.matches(":focus-visible"));
  };

  const listen = () => {
    if (stream || !document.querySelector("[hx-trigger^='live']")) return;
    const charts = document.querySelector("[data-live]");
    stream = new EventSource(charts ? charts.dataset.live : "/console/live");
    let last = 0;
    stream.addEventListener("sample", (event) => {
      document.body.dispatchEvent(new CustomEvent("sample", { detail: event.data }));
    });
    stream.addEventListener("tick", () => {
      if (busy() || Date.now() - last < REFRESH_MS) return;
      last = Date.now();
      document.body.dispatchEvent(new CustomEvent("live"));
    });
  };
  const hush = () => { if (stream) stream.close(); stream = null; };

  document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
  window.addEventListener("pagehide", hush);
  window.addEventListener("pageshow", listen);

  document.addEventListener("pointerdown", () => { pressed = true; }, true);
  // The click follows in the same turn.
  const release = () => setTimeout(() => { pressed = false; });
  for (const name of ["pointerup", "pointercancel", "dragend"]) document.addEventListener(name, release, true);
  // Asked again here: somebody may have begun while the answer was on its way. The next tick brings it.
  document.addEventListener("htmx:beforeSwap", (event) => { if (busy()) event.detail.shouldSwap = false; });

  // A click on an id copies it whole.
  document.addEventListener("click", (event) => {
    const id = event.target.closest("code.id");
    if (!id || !navigator.clipboard) return;
    navigator.clipboard.writeText(id.title).then(() => {
      id.classList.add("copied");
      setTimeout(() => id.classList.remove("copied"), 900);
    });
  });
})();
