/** Starts the page: signs in, then each part shows what the store has. */

import { toast } from "./announce.js";
import { ask, startAsk } from "./ask.js";
import { startImprove } from "./improve.js";
import { startMap } from "./map.js";
import { dropTarget, pasted } from "./picker.js";
import { signInFromAddress, startSession } from "./session.js";
import { refresh, watch } from "./store.js";
import { pasteTarget, startTeach } from "./teach.js";
import { startTheme } from "./theme.js";
import { startVersions } from "./versions.js";
import { startViews, view } from "./views.js";
import { count } from "./words.js";

const element = (id) => document.getElementById(id);

function showTop({ state, connected, signedOut }) {
  element("connection").hidden = connected;
  document.body.classList.toggle("offline", !connected);
  element("navigation").hidden = signedOut || !state;
  if (!state) return;
  const { project, counts, active_version: version } = state;
  element("project-name").textContent = project.name;
  document.title = `${project.name} – kedge`;
  const facts = [count(counts.classes, "class", "classes"), count(counts.pictures, "picture")];
  if (version.number > 1) facts.unshift(`version ${version.number}`);
  element("project-facts").textContent = facts.join(" · ");
}

function pasteAnywhere(event) {
  const files = pasted(event);
  if (!files.length || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  const teachIt = view() === "teach" ? pasteTarget() : null;
  if (teachIt) {
    teachIt(files);
    toast(`${count(files.length, "picture")} pasted onto the class.`);
  } else {
    ask(files);
  }
}

startTheme(element("theme"));
startSession(element("sign-in"), element("sign-out"));
await signInFromAddress();
startViews();
startTeach(element("teach"));
startAsk(element("ask"));
startImprove(element("improve"));
startVersions(element("versions"));
startMap(element("map"));
watch(showTop);
// What is dropped beside everything else is a question, and never replaces the page.
dropTarget(document.body, (found) => ask(found.map(({ file }) => file)));
document.addEventListener("paste", pasteAnywhere);
await refresh();
