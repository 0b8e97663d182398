/** Signing in with a token, on servers that ask for one. */

import { call } from "./api.js";
import { act } from "./announce.js";
import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { refresh, watch } from "./store.js";

const KEY = "kedge-signed-in"; // the cookie itself cannot be seen from here

async function signIn(token) {
  await call("POST", "api/session", { token });
  localStorage.setItem(KEY, "yes");
}

/** Sign in with the token of an address such as …/#token=…, and remove it from the address. */
export async function signInFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    await signIn(token);
  } catch {
    // The form says what to do.
  }
}

export function startSession(section, signOut) {
  replace(signOut, icon("out"));
  signOut.setAttribute("aria-label", "Sign out");
  signOut.title = "Sign out";
  signOut.addEventListener("click", () =>
    act(signOut, async () => {
      await call("DELETE", "api/session");
      localStorage.removeItem(KEY);
      await refresh();
    }),
  );
  watch(({ signedOut }) => {
    const isNew = signedOut && section.hidden;
    section.hidden = !signedOut;
    if (isNew) showForm(section);
    // Without tokens there is nothing to sign out of.
    signOut.hidden = signedOut || !localStorage.getItem(KEY);
  });
}

const ABOUT =
  "This server is protected. Open the link that you were given, or enter its token: the part after " +
  "“token=”. The server printed the links when it was started for the first time.";

function showForm(section) {
  const input = h("input", { type: "password", id: "token", required: true });
  input.autocomplete = "current-password";
  const button = h("button", { class: "button primary" }, "Sign in");
  const wrong = h("p", { class: "problem", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    wrong.textContent = "";
    try {
      await signIn(input.value.trim());
      await refresh();
    } catch (error) {
      wrong.textContent = error.message;
      input.select();
    }
    button.disabled = false;
  };
  replace(
    section,
    h(
      "form",
      { class: "panel sign-in", onsubmit: submit },
      h("h2", { id: "sign-in-title" }, "Sign in"),
      h("p", {}, ABOUT),
      h("label", { for: "token" }, "Token"),
      input,
      wrong,
      button,
    ),
  );
  input.focus();
}

