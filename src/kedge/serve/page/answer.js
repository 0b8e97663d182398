/** The answer to one picture, large; and a way to put it right. */

import { act, toast } from "./announce.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { may, store } from "./store.js";
import { classNamed, teach } from "./teaching.js";
import { preview } from "./thumbnails.js";
import { percent, sure } from "./words.js";

const SIDE = 360;
const STRANGE = 0.05; // of known pictures, at most this share is as unusual

export function answerCard(result) {
  const { answer, ranking, typicality } = result;
  const strange = answer != null && typicality != null && typicality <= STRANGE;
  return h(
    "div",
    { class: "answer" },
    h("figure", {}, preview(result.file, SIDE, `The picture that you asked about: ${result.name}`)),
    h(
      "div",
      { class: "answer-text" },
      h("p", { class: `verdict ${answer == null ? "none" : ""}` }, answer ?? "None of these"),
      h("p", {}, answer == null ? "It looks unlike the pictures of every class. The nearest ones are below." : sure(ranking[0].probability)),
      strange && h("p", { class: "quiet" }, "But it looks unlike most pictures that it knows."),
      h("p", { class: "quiet" }, result.name),
    ),
    bars(ranking),
    may("teach") && correction(result),
  );
}

/** The most probable classes as bars. */
function bars(ranking) {
  const rows = ranking.map(({ class: name, probability }) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span", {}));
    bar.firstChild.style.width = `${Math.max(0.5, probability * 100)}%`;
    return h("li", {}, h("span", { class: "bar-name" }, name), bar, h("span", { class: "bar-value" }, percent(probability)));
  });
  return h("ol", { class: "bars", "aria-label": "Most probable classes" }, rows);
}

/** Add the picture to the class that it belongs to: it will know better from then on. */
function correction({ file, answer }) {
  const id = `right-${Math.random().toString(36).slice(2)}`;
  const input = h("input", { id, list: `${id}-names`, required: true, maxlength: 200, autocomplete: "off", placeholder: "Name of a class" });
  const names = h("datalist", { id: `${id}-names` }, store.classes.map(({ name }) => h("option", { value: name })));
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
  const question = answer == null ? "Do you know what it is?" : "Not right? Tell it what it is:";
  return h("form", { class: "correction", onsubmit: submit }, h("label", { for: id }, question), h("div", { class: "row" }, input, names, button));
}
