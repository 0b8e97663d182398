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

/**
 * Run an action of a button, which waits meanwhile; an error is shown. Whether it succeeded. The
 * button is not disabled, which would take the focus away from it.
 */
export async function act(button, action) {
  if (button.hasAttribute("aria-busy")) return false;
  button.setAttribute("aria-busy", "true");
  try {
    await action();
    return true;
  } catch (error) {
    toast(error.message, "failed");
    return false;
  } finally {
    button.removeAttribute("aria-busy");
  }
}
