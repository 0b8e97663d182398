/** Light or dark: as the system says, or as chosen with the button, which is remembered. */

import { replace } from "./dom.js";
import { icon } from "./icons.js";

const CHOICES = { auto: "as your system", light: "light", dark: "dark" };
const ICONS = { auto: "auto", light: "sun", dark: "moon" };
const KEY = "kedge-theme";

let theme = localStorage.getItem(KEY) ?? "auto";
apply();

function apply() {
  document.documentElement.dataset.theme = theme;
}

export function startTheme(button) {
  const show = () => {
    replace(button, icon(ICONS[theme]));
    const text = `Colours: ${CHOICES[theme]}. Change`;
    button.setAttribute("aria-label", text);
    button.title = text;
  };
  button.addEventListener("click", () => {
    const names = Object.keys(CHOICES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    localStorage.setItem(KEY, theme);
    apply();
    show();
  });
  show();
}
