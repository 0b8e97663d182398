/** Buttons, progress and lists of refused files, as several parts of the page have them. */

import { h } from "./dom.js";
import { count } from "./words.js";

/** A button; `kind` are further classes, as in "primary large". */
export function button(content, onclick, { kind = "", ...attributes } = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick, ...attributes }, content);
}

/** A button that looks like a link in a sentence. */
export function link(text, onclick, attributes = {}) {
  return h("button", { type: "button", class: "link", onclick, ...attributes }, text);
}

/** A bar from 0 to 1 with what it is about, and a way to stop; `text` is shown if `isShown`. */
export function progressBar(share, text, onStop, isShown = false) {
  const bar = h("progress", { value: share, max: 1, "aria-label": text });
  return h("div", { class: "uploading" }, bar, isShown && h("span", {}, text), link("Stop", onStop));
}

/** Files that were not taken, with their reasons. `what` is said of them: "could not be read". */
export function refusedFiles(refused, what) {
  const items = refused.map((one) => h("li", {}, h("b", {}, one.name), `: ${one.reason}`));
  return [h("p", { class: "problem" }, `${count(refused.length, "file")} ${what}:`), h("ul", {}, items)];
}

/** A sentence in smaller, paler letters. */
export const quiet = (...content) => h("p", { class: "quiet" }, content);

/** A bar that is filled to a share from 0 to 1; what it shows is also said in words beside it. */
export function filledBar(share, kind = "") {
  const bar = h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("span", {}));
  bar.firstChild.style.width = `${share * 100}%`;
  return bar;
}
