/** Teach: the cards of all classes, and the first steps of a newcomer. */

import { announce, toast } from "./announce.js";
import { createCard, updateCard } from "./class-card.js";
import { link, quiet } from "./controls.js";
import { confirm } from "./dialog.js";
import { h, keyed, renderOnce, replace } from "./dom.js";
import { icon } from "./icons.js";
import { dropTarget } from "./picker.js";
import { may, refresh, store, watch } from "./store.js";
import { classNamed, onTeaching, teach, teachFolders, teachingOf } from "./teaching.js";
import { count, some } from "./words.js";

const FILTER_FROM = 12; // classes

export function startTeach(section) {
  const intro = h("div", { class: "teach-intro" });
  const filter = filterField(() => show());
  const groups = ["new", "learned"].map((state) => ({
    state,
    title: h("h3", { class: "group-title" }),
    grid: h("div", { class: "cards" }),
  }));
  const form = newClassCard();
  replace(
    section,
    h("div", { class: "section-head" }, h("h2", { id: "teach-title" }, "Teach"), filter.field),
    intro,
    form,
    groups.map(({ title, grid }) => [title, grid]),
  );
  dropTarget(section, dropFolders);

  const show = () => {
    section.hidden = !store.state || store.signedOut;
    if (section.hidden) return;
    form.hidden = !may("teach");
    const { role } = store.state;
    const all = store.classes.map((item) => ({ ...item, upload: teachingOf(item.id), role }));
    renderOnce(intro, [all.length, may("teach")], () => introduction(all.length));
    filter.field.hidden = all.length < FILTER_FROM;
    const matching = all.filter((item) => filter.matches(item.name));
    for (const { state, title, grid } of groups) {
      const items = matching.filter((item) => item.state === state);
      if (state === "new") items.reverse(); // the latest beside the form
      title.hidden = !items.length;
      title.textContent = state === "new" ? `New (${items.length})` : `Learned (${items.length})`;
      keyed(grid, items, (item) => item.id, createCard, updateCard);
    }
  };
  watch(show);
  onTeaching(show);
}

const STEPS = [
  [
    "Teach",
    "Name a class, such as “rose”, and give it 5 to 20 pictures. Then a second class, and as many as " +
      "you like.",
  ],
  ["Ask", "Show it another picture: it answers at once."],
  [
    "Improve",
    "Let it study your pictures for some minutes, and it gets better at them. Then the pictures may " +
      "be deleted: it keeps what it has learned.",
  ],
];

function introduction(n) {
  if (n) return null;
  if (!may("teach")) {
    return h("p", { class: "notice" }, "There is no class yet. Someone who may teach has to add some.");
  }
  return h(
    "div",
    { class: "welcome" },
    h("p", { class: "lead" }, "What should it learn to tell apart?"),
    h(
      "ol",
      { class: "steps" },
      STEPS.map(([step, text]) => h("li", {}, h("b", {}, step), ` ${text}`)),
    ),
  );
}

function newClassCard() {
  const input = h("input", { id: "new-class", required: true, maxlength: 200, autocomplete: "off" });
  input.placeholder = "For example: rose";
  const button = h("button", { class: "button primary" }, icon("add"), "Add class");
  const submit = async (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (!name) return;
    input.value = ""; // the next name may be typed while the server is slow
    input.focus();
    try {
      await classNamed(name);
      await refresh();
      announce(`The class ${name} was added.`);
    } catch (error) {
      toast(error.message, "failed");
      input.value ||= name;
    }
  };
  return h(
    "form",
    { class: "new-class", onsubmit: submit },
    h("label", { for: "new-class" }, "New class"),
    input,
    button,
    quiet("Many pictures in folders? ", folderButton(), ", or drop it here."),
  );
}

function folderButton() {
  const input = h("input", { type: "file", webkitdirectory: true, multiple: true, hidden: true });
  input.addEventListener("change", () => {
    const files = [...input.files].filter((file) => !file.name.startsWith("."));
    input.value = "";
    dropFolders(files.map((file) => ({ file, folder: file.webkitRelativePath.split("/").at(-2) })));
  });
  return [link("Choose a folder", () => input.click()), input];
}

/** Teach what was dropped beside the cards: each folder is a class. */
async function dropFolders(found) {
  if (!may("teach")) return toast("You can ask here, but not teach.", "failed");
  const groups = Map.groupBy(found, ({ folder }) => folder);
  if (groups.has("")) {
    return toast("Drop pictures onto a class, or drop a folder of pictures for each class.", "failed");
  }
  const names = [...groups.keys()];
  const files = new Map(names.map((name) => [name, groups.get(name).map(({ file }) => file)]));
  const what = `${count(found.length, "file")} in ${count(names.length, "folder")}`;
  const text = h("p", {}, `${what} will be added to the classes ${some(names, 12)}.`);
  const title = names.length === 1 ? `Teach ${names[0]}?` : `Teach ${names.length} classes?`;
  if (await confirm(title, text, "Teach", { danger: false })) await teachFolders(files);
}

function filterField(onChange) {
  const label = "Find a class";
  const input = h("input", { type: "search", placeholder: label, "aria-label": label, oninput: onChange });
  const matches = (name) => name.toLowerCase().includes(input.value.trim().toLowerCase());
  return { field: h("div", { class: "filter" }, input), matches };
}

/** The class that pasted pictures belong to: of the card with the focus, or under the pointer. */
export function pasteTarget() {
  const card = document.activeElement?.closest?.(".card") ?? document.querySelector(".card:hover");
  return card && may("teach") ? (files) => teach(card.item.id, files) : null;
}
