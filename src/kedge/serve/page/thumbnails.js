/**
 * Small pictures: of files that were just chosen, drawn here, and of stored ones, by the server.
 * A canvas needs no address of its own, so the page may forbid all sources but its server.
 */

import { h } from "./dom.js";

/**
 * A canvas with the picture of a file, at most `side` pixels wide and high; filled in later.
 * Without a label it is decoration.
 */
export function preview(file, side, label) {
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  const canvas = h("canvas", { class: "preview", width: side, height: side, ...named });
  draw(canvas, file, side * Math.min(2, devicePixelRatio)).catch(() => {
    canvas.classList.add("unreadable"); // a format that this browser does not know
  });
  return canvas;
}

// A hundred photographs are decoded one after the other: each may take 50 MB.
let last = Promise.resolve();

function draw(canvas, file, side) {
  const mine = last.then(async () => {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
  });
  last = mine.catch(() => {});
  return mine;
}

/** The stored picture with this checksum. */
export function stored(sha256, label) {
  const address = `api/pictures/${encodeURIComponent(sha256)}/thumbnail`;
  const image = h("img", { src: address, alt: label, loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => image.classList.add("unreadable"));
  return image;
}
