/** Dialogs: the browser's own, which keeps the focus inside and closes with Escape. */

import { button } from "./controls.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";

let number = 0;

/** Open a dialog. `build(close)` returns its content. Resolves with what `close` was given. */
export function openDialog(title, build, { wide = false } = {}) {
  const id = `dialog-title-${(number += 1)}`;
  const dialog = h("dialog", { "aria-labelledby": id, class: wide ? "wide" : "" });
  let result;
  const close = (value) => {
    result = value;
    dialog.close();
  };
  const shut = { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => close() };
  dialog.append(
    h("header", {}, h("h2", { id }, title), h("button", shut, icon("close"))),
    h("div", { class: "dialog-body" }, build(close)),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog && !inside(dialog, event)) close(); // on what lies behind it
  });
  document.body.append(dialog);
  const before = document.activeElement;
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
      done(result);
    });
  });
}

function inside(dialog, event) {
  const box = dialog.getBoundingClientRect();
  const { clientX: x, clientY: y } = event;
  return x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
}

/** Ask before something that cannot be undone. The first control is the one that does nothing. */
export function confirm(title, content, action, { danger = true } = {}) {
  return openDialog(title, (close) => [
    content,
    h(
      "div",
      { class: "buttons end" },
      button("Keep everything as it is", () => close(false), { autofocus: true }),
      button(action, () => close(true), { kind: danger ? "danger" : "primary" }),
    ),
  ]).then(Boolean);
}
