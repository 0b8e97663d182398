/** Before and after: what an improvement did, and the choice to take it over or not. */

import { button, filledBar, link, quiet } from "./controls.js";
import { discard, onlyAdd, use } from "./deciding.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { ADVICE, outcomeRows, summary } from "./outcome.js";
import { may } from "./store.js";
import { some } from "./words.js";

export function comparison(version) {
  const rows = outcomeRows(version);
  const kind = summary(rows);
  return h(
    "div",
    { class: "comparison" },
    h("p", { class: "lead" }, `Version ${version.number} is ready. Do you want to use it?`),
    h("p", {}, ADVICE[kind]),
    rows.length > 0 && h("ul", { class: "changes" }, rows.map((row) => changeRow(row, "now", "new version"))),
    version.new_classes.length > 0 && quiet(`New in it: ${some(version.new_classes, 12)}.`),
    details(version),
    may("improve") ? choice(version, ["worse", "mixed"].includes(kind)) : quiet("Someone who may improve has to decide."),
  );
}

const WORDS = {
  better: "better",
  worse: "worse",
  "perhaps-better": "perhaps better",
  "perhaps-worse": "perhaps worse",
  same: "about the same",
};

/** Two bars with the shares of pictures named correctly, and what they are called. */
export function changeRow({ label, before, after, change, note }, first = "before", second = "after") {
  return h(
    "li",
    { class: change },
    h("p", { class: "change-title" }, h("b", {}, label), h("span", { class: `chip ${change}` }, WORDS[change])),
    pair(first, before, "before"),
    pair(second, after, "after"),
    quiet(note),
  );
}

function pair(word, percent, kind) {
  const value = h("span", { class: "pair-value" }, `${Math.round(percent)} of 100 right`);
  return h("p", { class: "pair" }, h("span", {}, word), filledBar(percent / 100, kind), value);
}

function details(version) {
  const sentence = version.outcome?.sentence;
  return sentence && h("details", {}, h("summary", {}, "In technical words"), quiet(sentence));
}

function choice(version, gotWorse) {
  const [first, second] = gotWorse ? ["large", "primary large"] : ["primary large", "large"];
  const taken = { kind: first, "data-focus": "accept" };
  const buttons = [
    button([icon("check"), "Use the new version"], use(version), taken),
    button("Throw it away", discard(version), { kind: second }),
  ];
  const adding = gotWorse && version.new_classes.length > 0;
  return [
    h("div", { class: "buttons" }, gotWorse ? buttons.reverse() : buttons),
    adding && quiet(ADDING, link("Only add the new classes", onlyAdd(version)), "."),
  ];
}

const ADDING =
  "The new classes can also be added without studying. It then goes on knowing everything as it does " +
  "now, and their pictures may be deleted: ";
