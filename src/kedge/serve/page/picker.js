/** Ways to hand pictures to a part of the page: drop, choose, paste. */

import { h } from "./dom.js";
import { icon } from "./icons.js";

const ACCEPT = "image/*,.heic,.heif,.tif,.tiff";
const HIDDEN = /(^|\/)(\.|Thumbs\.db$|desktop\.ini$)/i; // files that systems leave in folders

/** A button that opens the system's choice of files. `onFiles(files)` has at least one. */
export function chooseButton(text, onFiles, attributes = {}) {
  const input = h("input", { type: "file", accept: ACCEPT, multiple: true, hidden: true });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = ""; // the same files may be chosen again
    if (files.length) onFiles(files);
  });
  const button = h(
    "button",
    { type: "button", class: "button", ...attributes, onclick: () => input.click() },
    icon("pictures"),
    text,
  );
  return h("span", { class: "choose" }, button, input);
}

/**
 * Let pictures be dropped on an element. `onDrop([{file, folder}])`, where the folder is the name
 * of the innermost one that was dropped with the file, or "".
 */
export function dropTarget(element, onDrop) {
  let inside = 0;
  const over = (on) => element.classList.toggle("dropping", on);
  element.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    inside += 1;
    over(true);
  });
  element.addEventListener("dragleave", (event) => {
    if (!hasFiles(event)) return;
    event.stopPropagation();
    inside = Math.max(0, inside - 1);
    over(inside > 0);
  });
  element.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    event.dataTransfer.dropEffect = "copy";
  });
  element.addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    inside = 0;
    over(false);
    const found = await dropped(event.dataTransfer);
    if (found.length) onDrop(found);
  });
}

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

async function dropped(transfer) {
  // Entries must be taken before the first wait: the browser empties the list after the event.
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry?.());
  if (!entries.length || entries.includes(null) || entries.includes(undefined)) {
    return [...transfer.files].map((file) => ({ file, folder: "" }));
  }
  const found = [];
  for (const entry of entries) await walk(entry, "", found);
  return found;
}

async function walk(entry, folder, found) {
  if (HIDDEN.test(entry.name)) return;
  if (entry.isFile) {
    found.push({ file: await new Promise((done, no) => entry.file(done, no)), folder });
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const part = await new Promise((done, no) => reader.readEntries(done, no));
    if (!part.length) return; // entries come a hundred at a time
    for (const child of part) await walk(child, entry.name, found);
  }
}

/** The pictures of a paste event; none if it has only text. */
export function pasted(event) {
  const files = [...(event.clipboardData?.files ?? [])];
  return files.filter((file) => file.type.startsWith("image/"));
}
