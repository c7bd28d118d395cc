// Refreshes open pages: a stream sends ticks, and htmx reloads the live parts. Pages work without this file.
"use strict";
(() => {
  const REFRESH_MS = 2000;
  let stream = null;
  let pressed = false;

  // Swapping under a selection would take away what somebody is about to copy, under a field what they type; and a link
  // that is swapped between pressing it and letting it go is not followed.
  const busy = () => {
    const selection = document.getSelection();
    const focused = document.activeElement;
    return document.hidden || pressed || (selection && !selection.isCollapsed) ||
      (focused && focused.matches("[hx-trigger] :is(input, select, textarea)"));
  };

  // The focus stays where it was, although the element that had it is replaced: by what it is, and which of its like
  // within the nearest ancestor that has an id.
  let focus = null;
  const likeOf = (element) => {
    const name = ["href", "name", "formaction"].find((each) => element.hasAttribute(each));
    const tag = element.tagName.toLowerCase();
    return name ? `${tag}[${name}="${CSS.escape(element.getAttribute(name))}"]` : tag;
  };
  const remember = () => {
    focus = null;
    const element = document.activeElement;
    const within = element && element !== document.body && element.parentElement.closest("[id]");
    if (!within) return;
    const like = likeOf(element);
    focus = { within: within.id, id: element.id, like, index: [...within.querySelectorAll(like)].indexOf(element) };
  };
  const restore = () => {
    if (!focus || (document.activeElement && document.activeElement !== document.body)) return;
    const within = document.getElementById(focus.within);
    const alike = within ? within.querySelectorAll(focus.like) : [];
    const element = (focus.id && document.getElementById(focus.id)) || alike[focus.index] || alike[alike.length - 1];
    if (element) element.focus({ preventScroll: true });
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
  // Checked again: an interaction may have begun while the response was in transit. The next tick refreshes the part.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (busy()) event.detail.shouldSwap = false;
    else remember();
  });
  for (const name of ["htmx:afterSwap", "htmx:oobAfterSwap", "htmx:afterSettle"]) document.addEventListener(name, restore);
  // The user moved the focus.
  document.addEventListener("focusin", (event) => { if (focus && event.target !== document.body) focus = null; });
  document.addEventListener("keydown", (event) => { if (event.key === " " || event.key === "Enter") pressed = true; }, true);
  document.addEventListener("keyup", release, true);
  window.addEventListener("blur", release);

  // A click on an id copies all of it.
  document.addEventListener("click", (event) => {
    const id = event.target.closest("code.id");
    if (!id || !navigator.clipboard) return;
    navigator.clipboard.writeText(id.title).then(() => {
      id.classList.add("copied");
      setTimeout(() => id.classList.remove("copied"), 900);
    });
  });
})();
