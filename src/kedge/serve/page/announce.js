/** Short messages: shown for some seconds, and read out by screen readers. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

const SECONDS = 7;

/** Show and read out what has happened. */
export function toast(text, kind = "done") {
  const name = kind === "done" ? "check" : "close";
  const box = h("p", { class: `toast ${kind}` }, icon(name), h("span", {}, text));
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), SECONDS * 1000);
}

/** Read out only, for what is seen anyway. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Run an action of a button: the button waits, and an error is shown. Whether it succeeded. */
export async function act(button, action) {
  button.disabled = true;
  button.setAttribute("aria-busy", "true");
  try {
    await action();
    return true;
  } catch (error) {
    toast(error.message, "failed");
    return false;
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
  }
}
