/** The card of a class: its name, thumbnails, and ways to add pictures. */

import { cameraButton, takePictures } from "./camera.js";
import { openClass } from "./class-dialog.js";
import { button, link, progressBar, quiet, refusedFiles } from "./controls.js";
import { h, renderOnce } from "./dom.js";
import { icon } from "./icons.js";
import { chooseButton, dropTarget } from "./picker.js";
import { may } from "./store.js";
import { dismiss, teach } from "./teaching.js";
import { stored } from "./thumbnails.js";
import { toast } from "./announce.js";
import { count } from "./words.js";

const TILES = 8;

/** An empty card; `updateCard` fills it. Its class is `card.item`. */
export function createCard(item) {
  const parts = ["card-head", "card-pictures", "card-status", "card-actions"];
  const inside = parts.map((name) => h("div", { class: name }));
  const card = h("article", { class: "card", "aria-label": item.name }, inside);
  dropTarget(card, (found) => {
    if (may("teach")) teach(card.item.id, found.map(({ file }) => file));
    else toast("You can ask here, but not teach.", "failed");
  });
  return card;
}

/** Show a class, and what is on its way to it: `item.upload`. */
export function updateCard(card, item) {
  card.item = item;
  card.setAttribute("aria-label", item.name);
  const [head, pictures, status, actions] = card.children;
  renderOnce(head, [item.name, item.state, item.n_pictures, item.learned_in], () => heading(card));
  renderOnce(pictures, [item.name, item.pictures, item.n_pictures, item.forgotten], () => thumbnails(card));
  renderOnce(status, item.upload, () => item.upload && uploadStatus(item));
  renderOnce(actions, [item.name, may("teach")], () => may("teach") && addButtons(card));
}

function heading({ item }) {
  const learned = item.state === "learned";
  const title = learned
    ? `Learned in version ${item.learned_in}`
    : "Used at once when you ask. Improve makes it part of a new version.";
  return [
    h("h3", { title: item.name }, item.name),
    h("span", { class: `chip ${item.state}`, title }, learned ? "learned" : "new"),
  ];
}

function thumbnails(card) {
  const { item } = card;
  if (item.n_pictures && !may("teach")) return quiet(count(item.n_pictures, "picture"));
  if (!item.n_pictures) return h("div", { class: "card-empty" }, emptyText(item));
  const more = item.n_pictures - TILES;
  const tiles = item.pictures.slice(0, TILES).map((sha256) => stored(sha256, ""));
  const all = item.n_pictures === 1 ? "the picture" : `all ${item.n_pictures} pictures`;
  const label = `See and edit ${all} of ${item.name}`;
  const open = () => openClass(card.item.id);
  return h(
    "button",
    { type: "button", class: "tiles", "aria-label": label, title: label, "data-focus": "tiles", onclick: open },
    tiles,
    more > 0 && h("span", { class: "more", "aria-hidden": "true" }, `+${more}`),
  );
}

function emptyText(item) {
  if (!item.forgotten && item.state === "new") {
    const text = may("teach") ? "Drop pictures here: 5 to 20 are a good start." : "No pictures yet.";
    return [icon("upload"), h("p", {}, text)];
  }
  const learned = item.n_examples_learned ? ` from ${count(item.n_examples_learned, "picture")}` : "";
  const why = item.forgotten ? "Its pictures were deleted." : "Its pictures are not stored here.";
  return [icon("anchor"), h("p", {}, `${why} It still knows this class, learned${learned}.`)];
}

function uploadStatus({ id, name, upload }) {
  if (upload.share != null) {
    const text = `Adding ${count(upload.n, "picture")} to ${name}`;
    return progressBar(upload.share, text, () => upload.stop.abort());
  }
  const lines = [];
  if (upload.problem) lines.push(h("p", { class: "problem" }, upload.problem));
  if (upload.refused?.length) lines.push(refusedFiles(upload.refused, "could not be used"));
  if (upload.known) {
    lines.push(h("p", {}, `${count(upload.known, "picture was", "pictures were")} already here.`));
  }
  lines.push(link("Hide this", () => dismiss(id)));
  return h("div", { class: "refusals", role: "status" }, lines);
}

function addButtons(card) {
  const { name } = card.item;
  const add = (files) => teach(card.item.id, files);
  const camera = async () => {
    const files = await takePictures(`Pictures of ${name}`);
    if (files.length) add(files);
  };
  const edit = { kind: "end", "aria-label": `Edit ${name}`, title: "Rename, or delete", "data-focus": "edit" };
  return [
    chooseButton("Add pictures", add, { "aria-label": `Add pictures to ${name}`, "data-focus": "add" }),
    cameraButton(`Take pictures of ${name}`, camera, { "data-focus": "camera" }),
    button(icon("edit"), () => openClass(card.item.id), edit),
  ];
}
