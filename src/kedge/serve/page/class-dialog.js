/** The dialog of a class: all its pictures, another name, deleting. */

import { act, toast } from "./announce.js";
import { call, get } from "./api.js";
import { button } from "./controls.js";
import { confirm, openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { may, refresh, store } from "./store.js";
import { stored } from "./thumbnails.js";
import { count } from "./words.js";

const PAGE = 60;
const LEARNED = "Versions that have learned it are not changed, but it will no longer be an answer.";

export function openClass(id) {
  const item = store.classes.find((one) => one.id === id);
  const path = `api/classes/${encodeURIComponent(id)}`;
  return openDialog(
    item.name,
    (close) => [
      may("teach") && renameForm(item, path),
      gallery(path),
      may("teach") && deletion(item, path, close),
    ],
    { wide: true },
  );
}

function renameForm(item, path) {
  const input = h("input", { id: "rename", required: true, maxlength: 200, autocomplete: "off" });
  input.value = item.name;
  const save = h("button", { class: "button" }, "Rename");
  const submit = async (event) => {
    event.preventDefault();
    const name = input.value.trim();
    const renamed = await act(save, () => call("PATCH", path, { name }));
    if (!renamed) return;
    input.closest("dialog").querySelector("h2").textContent = name;
    toast(`Renamed to ${name}.`);
    await refresh();
  };
  const label = h("label", { for: "rename" }, "Name");
  return h("form", { class: "inline-form", onsubmit: submit }, label, input, save);
}

function gallery(path) {
  const grid = h("ul", { class: "gallery" });
  const foot = h("div", { class: "gallery-foot", role: "status" });
  let offset = 0;
  const more = async () => {
    const page = await get(`${path}/pictures?offset=${offset}&limit=${PAGE}`);
    offset += page.pictures.length;
    grid.append(...page.pictures.map((picture) => tile(picture, () => (offset -= 1))));
    const next = button("Show more", () => act(next, more));
    const all = page.total ? count(page.total, "picture") : "No pictures are stored.";
    replace(foot, page.total > offset ? [`${grid.children.length} of ${all} shown`, next] : all);
  };
  more().catch((error) => replace(foot, h("p", { class: "problem" }, error.message)));
  return [grid, foot];
}

function tile(picture, onDeleted) {
  const label = `Delete the picture ${picture.name}`;
  const remove = h("button", { type: "button", class: "tile-delete", "aria-label": label }, icon("trash"));
  const path = `api/pictures/${encodeURIComponent(picture.sha256)}`;
  const li = h("li", {}, stored(picture.sha256, picture.name), may("teach") && remove);
  li.title = picture.name;
  remove.addEventListener("click", async () => {
    const deleted = await act(remove, () => call("DELETE", path));
    if (!deleted) return;
    const next = (li.nextElementSibling ?? li.previousElementSibling)?.querySelector("button");
    li.remove();
    onDeleted();
    next?.focus();
    await refresh();
  });
  return li;
}

function deletion(item, path, close) {
  const remove = async () => {
    const pictures = item.n_pictures ? ` and its ${count(item.n_pictures, "picture")}` : "";
    const learned = item.state === "learned" && LEARNED;
    const text = `The class${pictures} will be deleted from this server. This cannot be undone. `;
    const agreed = await confirm(`Delete ${item.name}?`, h("p", {}, text, learned), "Delete the class");
    const deleted = agreed && (await act(start, () => call("DELETE", path)));
    if (!deleted) return;
    toast(`${item.name} was deleted.`);
    close();
    await refresh();
  };
  const start = button([icon("trash"), "Delete this class"], remove, { kind: "quiet-danger" });
  return h("div", { class: "buttons end ruled" }, start);
}
