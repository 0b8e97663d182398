/** The answer to one picture, large; and a way to put it right. */

import { act, toast } from "./announce.js";
import { filledBar, quiet } from "./controls.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { may, store } from "./store.js";
import { classNamed, teach } from "./teaching.js";
import { preview } from "./thumbnails.js";
import { percent, sure } from "./words.js";

const SIDE = 360;
const STRANGE = 0.05; // of known pictures, at most this share is as unusual
const UNLIKE = "It looks unlike the pictures of every class. The nearest ones are below.";

let number = 0; // of forms: several answers may be open

export function answerCard(result) {
  const { answer, ranking, typicality } = result;
  const strange = answer != null && typicality != null && typicality <= STRANGE;
  const label = `The picture that you asked about: ${result.name}`;
  return h(
    "div",
    { class: "answer" },
    h("figure", {}, preview(result.file, SIDE, label)),
    h(
      "div",
      { class: "answer-text" },
      h("p", { class: `verdict ${answer == null ? "none" : ""}` }, answer ?? "None of these"),
      h("p", {}, answer == null ? UNLIKE : sure(ranking[0].probability)),
      strange && quiet("But it looks unlike most pictures that it knows."),
      quiet(result.name),
    ),
    bars(ranking),
    may("teach") && correction(result),
  );
}

/** The most probable classes as bars. */
function bars(ranking) {
  const rows = ranking.map(({ class: name, probability }) =>
    h(
      "li",
      {},
      h("span", { class: "bar-name" }, name),
      filledBar(Math.max(0.005, probability)),
      h("span", { class: "bar-value" }, percent(probability)),
    ),
  );
  return h("ol", { class: "bars", "aria-label": "Most probable classes" }, rows);
}

/** Add the picture to the class that it belongs to: it will know better from then on. */
function correction({ file, answer }) {
  const id = `right-${(number += 1)}`;
  const list = `${id}-names`;
  const input = h("input", { id, list, required: true, maxlength: 200, autocomplete: "off" });
  input.placeholder = "Name of a class";
  const names = store.classes.map(({ name }) => h("option", { value: name }));
  const button = h("button", { class: "button" }, icon("add"), "Teach it");
  const submit = async (event) => {
    event.preventDefault();
    const name = input.value.trim();
    const done = await act(button, async () => teach((await classNamed(name)).id, [file]));
    if (done) {
      toast(`Thank you. The picture was added to ${name}.`);
      input.value = "";
    }
  };
  return h(
    "form",
    { class: "correction", onsubmit: submit },
    h("label", { for: id }, answer == null ? "Do you know what it is?" : "Not right? Tell it what it is:"),
    h("div", { class: "row" }, input, h("datalist", { id: list }, names), button),
  );
}
