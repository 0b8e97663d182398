/** Forget: delete the pictures that a version learned from. What it learned stays. */

import { toast } from "./announce.js";
import { call, get } from "./api.js";
import { button } from "./controls.js";
import { confirm, openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { refresh } from "./store.js";
import { count, size, some } from "./words.js";

export async function forget(version) {
  try {
    const left = await get(`api/versions/${version.id}/remains`);
    const n = count(left.pictures, "picture");
    const agreed = await confirm(`Delete ${n}?`, consequences(version, n, left), `Delete ${n}`);
    if (agreed) await openDialog(`Deleting ${n}`, (close) => deleting(version, close));
  } catch (error) {
    toast(error.message, "failed");
  }
}

/** The content of a dialog: first that it takes a moment, then what became of it. */
function deleting(version, close) {
  const wait = h("p", {}, "This may take a moment: no trace of them is left behind.");
  const body = h("div", { class: "dialog-body-inner", role: "status" }, h("progress"), wait);
  const title = (text) => (body.closest("dialog").querySelector("h2").textContent = text);
  call("POST", `api/versions/${version.id}/forget`, { confirm: true }).then(
    (result) => {
      title(`${count(result.deleted, "picture")} deleted`);
      replace(body, remains(result.remains, close));
      refresh();
    },
    (error) => {
      title("The pictures were not deleted");
      replace(body, h("p", { class: "problem" }, error.message));
    },
  );
  return body;
}

function consequences(version, n, left) {
  const names = some(left.classes.map(({ name }) => name), 6);
  return [
    h(
      "p",
      {},
      `The ${n} that version ${version.number} learned from will be deleted from this server, `,
      "with their thumbnails, for good.",
    ),
    h(
      "p",
      {},
      h("b", {}, "What stays: "),
      `what it has learned. It goes on naming ${names}. Of each it keeps ${numbers(left)} `,
      `that say what its pictures have in common${shared(left)}. The more pictures there were, the `,
      "less they tell about any single one.",
    ),
    ...onePicture(left.classes.filter((each) => each.one_picture)),
    h(
      "p",
      {},
      h("b", {}, "What you give up: "),
      "you cannot look at these pictures here any more, and they cannot be studied again. ",
      "Copies of your own elsewhere are not touched.",
    ),
  ];
}

/** A warning about classes whose numbers are those of a single picture. */
function onePicture(classes) {
  if (!classes.length) return [];
  const names = some(classes.map(({ name }) => name), 6);
  const each = classes.length > 1 ? "each had only one picture" : "had only one picture";
  const text = [
    `${names} ${each}, so what stays of it describes that picture alone. Whoever has the model `,
    "file can tell whether a picture is this one, and can guess parts of what it shows. ",
    "If that matters, give the model file to nobody.",
  ];
  return [h("p", { class: "notice" }, text)];
}

function remains(left, close) {
  const names = some(left.classes.map(({ name }) => name), 12);
  return [
    h("p", { class: "with-icon" }, icon("anchor"), h("span", {}, `It still knows ${names}.`)),
    h(
      "p",
      {},
      `Of ${count(left.classes.length, "class", "classes")} it keeps ${numbers(left)} each and how many `,
      `pictures there were: ${size(left.bytes_in_model)} in all${shared(left)}. `,
      "Try it: ask about another picture of them.",
    ),
    h("div", { class: "buttons end" }, button("Good", () => close(), { kind: "primary", autofocus: true })),
  ];
}

const numbers = (left) => count(left.numbers_per_class, "number");

/** What the model keeps of all classes together; empty if nothing. */
const shared = ({ shared_numbers: n }) =>
  n ? `, and of all classes together ${count(n, "number")} that say how pictures of a class differ` : "";
