/** Ask: a place for one picture or many, and the answers. */

import { announce, toast } from "./announce.js";
import { answerCard } from "./answer.js";
import { answerTable } from "./answer-table.js";
import { cameraButton, takePictures } from "./camera.js";
import { link, progressBar, quiet, refusedFiles } from "./controls.js";
import { h, renderOnce, replace } from "./dom.js";
import { icon } from "./icons.js";
import { chooseButton, dropTarget } from "./picker.js";
import { store, watch } from "./store.js";
import { uploadAll } from "./uploads.js";
import { count, sure } from "./words.js";
import { goTo, view } from "./views.js";

const TOP = 5;

/** What was asked last: [{file, name, answer, ranking, typicality, position}]. */
export const asked = { results: [], refused: [], knowledge: "" };

const listeners = new Set();
const parts = {};
let running = null; // of the last question

/** Call `listener()` when there are other answers. */
export function onAsked(listener) {
  listeners.add(listener);
}

const changed = () => listeners.forEach((listener) => listener());

export function startAsk(section) {
  const names = ["zone", "progress", "stale", "answers", "options"];
  for (const name of names) parts[name] = h("div", { class: `ask-${name}` });
  replace(
    section,
    h("div", { class: "section-head" }, h("h2", { id: "ask-title" }, "Ask")),
    names.map((name) => parts[name]),
  );
  dropTarget(section, (found) => ask(found.map(({ file }) => file)));
  watch(show);
}

/** How many classes an answer can be; 0 if it cannot answer. */
function nAnswers() {
  if (!store.state.ask_possible) return 0;
  return store.classes.filter((item) => item.state === "learned" || item.n_pictures).length;
}

/** Answers may differ after this has changed. */
function knowledge() {
  const { active_version: version, counts } = store.state;
  return JSON.stringify([version?.id, counts]);
}

function show() {
  const section = document.getElementById("ask");
  section.hidden = !store.state || store.signedOut;
  if (section.hidden) return;
  renderOnce(parts.zone, [nAnswers(), asked.results.length > 0], zone);
  renderOnce(parts.options, [store.state.reject_possible, nAnswers() > 0], options);
  renderOnce(parts.stale, asked.results.length > 0 && asked.knowledge !== knowledge(), stale);
}

function zone() {
  const n = nAnswers();
  if (!n) {
    return h(
      "div",
      { class: "drop-zone closed" },
      h("p", { class: "lead" }, "Nothing to choose from yet"),
      h("p", {}, "Add two classes with a few pictures each. Then drop another picture here."),
    );
  }
  const camera = async () => {
    const files = await takePictures("Ask with the camera", { several: false });
    if (files.length) ask(files);
  };
  const among = `It chooses among ${count(n, "class", "classes")}.`;
  return h(
    "div",
    { class: `drop-zone ${asked.results.length ? "small" : ""}` },
    icon("sparkle"),
    h("p", { class: "lead" }, "What is this?"),
    h("p", { class: "zone-hint" }, `Drop one picture here, or a hundred. ${among}`),
    h(
      "div",
      { class: "buttons" },
      chooseButton("Choose pictures", ask, { class: "button primary", "data-focus": "choose" }),
      cameraButton("Ask with the camera", camera),
    ),
    h("p", { class: "quiet zone-again" }, "or drop the next ones here"),
    h("p", { class: "quiet zone-hint" }, "Or paste a picture. Pictures that you ask about are not stored."),
  );
}

const STRICTNESS = [
  ["", "Always name the nearest class"],
  ["0.01", "Say “none of these” only if it is very strange"],
  ["0.05", "Say “none of these” if it looks strange"],
  ["0.2", "Say “none of these” in any doubt"],
];

const NOT_YET =
  "After it has been improved with 10 or more pictures of each class, it can also say “none of these”.";

function options() {
  if (!nAnswers()) return null;
  const possible = store.state.reject_possible;
  const select = h("select", { id: "strictness", disabled: !possible, onchange: () => again() });
  for (const [value, text] of STRICTNESS) select.append(h("option", { value }, text));
  select.value = possible ? "0.05" : "";
  return [
    h("label", { for: "strictness" }, "If a picture fits no class"),
    select,
    !possible && quiet(NOT_YET),
  ];
}

function stale() {
  if (!asked.results.length || asked.knowledge === knowledge()) return null;
  return h(
    "p",
    { class: "notice" },
    "It has learned or changed since this answer. ",
    link("Ask again", again),
  );
}

/** Whether answers can be seen: narrow screens and the map show other parts. */
const isShown = () => document.getElementById("ask").checkVisibility();

const again = () => asked.results.length && ask(asked.results.map(({ file }) => file));

/** Ask about files, and show the answers in place of those before. */
export async function ask(files) {
  if (!store.state || store.signedOut) return;
  if (!nAnswers()) {
    announce("Teach it some classes first.");
    return goTo("ask");
  }
  if (view() !== "map" && !isShown()) goTo("ask");
  running?.abort();
  const stop = (running = new AbortController());
  const results = [];
  const reject = document.getElementById("strictness")?.value;
  const path = `api/ask?top=${TOP}${reject ? `&reject=${reject}` : ""}`;
  const asOf = knowledge();
  progress(files, 0);
  try {
    const refused = await uploadAll(path, files, {
      numbered: true,
      signal: stop.signal,
      onProgress: (share) => stop === running && progress(files, share),
      onBatch: (answer, batch) => {
        const ofFile = (one) => ({ ...one, file: batch[one.name], name: batch[one.name].name });
        results.push(...answer.answers.map(ofFile));
      },
    });
    if (stop !== running) return;
    Object.assign(asked, { results, refused, knowledge: asOf });
    replace(parts.progress);
    showAnswers();
    if (!results.length && !isShown()) toast(`${refused[0].name}: ${refused[0].reason}`, "failed");
  } catch (error) {
    if (stop !== running) return;
    if (stop.signal.aborted) return replace(parts.progress);
    replace(parts.progress, h("p", { class: "problem", role: "alert" }, error.message));
    if (!isShown()) toast(error.message, "failed");
  }
}

function progress(files, share) {
  const text = `${share < 1 ? "Sending" : "Looking at"} ${count(files.length, "picture")} …`;
  const bar = parts.progress.querySelector("progress");
  if (bar) {
    // A bar without a value moves by itself.
    if (share < 1) bar.value = share;
    else bar.removeAttribute("value");
    bar.nextElementSibling.textContent = text;
    return;
  }
  replace(parts.progress, progressBar(share, text, () => running.abort(), true));
}

function showAnswers() {
  const { results, refused } = asked;
  const one = results.length === 1;
  replace(
    parts.answers,
    refused.length > 0 && h("div", { class: "refusals" }, refusedFiles(refused, "could not be read")),
    one && answerCard(results[0]),
    results.length > 1 && answerTable(results),
    h("p", { class: "end" }, link("Clear", clearAnswers)),
  );
  announce(one ? spoken(results[0]) : `${count(results.length, "answer")}. The table follows.`);
  show();
  changed();
}

function clearAnswers() {
  Object.assign(asked, { results: [], refused: [] });
  replace(parts.answers);
  show();
  changed();
  parts.zone.querySelector("button")?.focus();
}

function spoken({ answer, ranking }) {
  return answer == null ? "Answer: none of these." : `Answer: ${answer}, ${sure(ranking[0].probability)}.`;
}
