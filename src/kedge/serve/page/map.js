/** Map: classes that look alike lie near each other, and asked pictures near what they look like. */

import { asked, onAsked, ask } from "./ask.js";
import { get } from "./api.js";
import { quiet } from "./controls.js";
import { drawnToFit, h, replace, svg } from "./dom.js";
import { chooseButton } from "./picker.js";
import { store, watch } from "./store.js";
import { preview } from "./thumbnails.js";
import { count } from "./words.js";
import { onView, view } from "./views.js";

const MARGIN = 48; // px, as all here
const [FONT, LETTER] = [14, 7.6]; // size of labels, width of a letter
const [MOST_PICTURES, MOST_LISTED] = [200, 12];
const [SIDE, TINY] = [40, 26]; // of a picture; of many on a narrow screen

let figure;
let redraw;
let drawn = null; // the revision
let points = { classes: [], explained: 0 };

export function startMap(section) {
  figure = h("div", { class: "map-figure" });
  redraw = drawnToFit(figure, draw);
  const intro = quiet(
    "Classes that look alike to it lie near each other. Drop a picture anywhere to see where it belongs.",
  );
  replace(
    section,
    h("div", { class: "section-head" }, h("h2", { id: "map-title" }, "Map"), chooseButton("Choose pictures", ask)),
    intro,
    figure,
  );
  watch(({ state, signedOut }) => {
    section.hidden = !state || signedOut;
    load();
  });
  onView(load);
  onAsked(() => {
    drawn = null;
    load();
  });
}

async function load() {
  if (view() !== "map" || !store.state || drawn === store.state.revision) return;
  const before = drawn;
  drawn = store.state.revision;
  try {
    points = await get("api/map");
    redraw();
  } catch (error) {
    drawn = before;
    replace(figure, h("p", { class: "problem" }, error.message));
  }
}

function draw(width) {
  const { classes } = points;
  if (drawn === null) return null; // nothing has been loaded yet
  if (classes.length < 3) {
    return h("p", { class: "notice" }, "The map appears as soon as there are three classes with pictures.");
  }
  const height = Math.round(Math.max(360, Math.min(width * 0.62, innerHeight - 220)));
  const pictures = asked.results.filter(({ position }) => position).slice(0, MOST_PICTURES);
  const place = scale([...classes, ...pictures].map(({ position }) => position), width, height);
  const dots = classes.map((item) => ({ ...item, at: place(item.position) }));
  const listed = pictures.slice(0, MOST_LISTED);
  const shown = Math.round(points.explained * 100);
  const tiny = pictures.length * SIDE > width;
  const boxes = pictures.map(({ position }) => square(place(position), (tiny ? TINY : SIDE) / 2));
  const labels = placeLabels(dots, boxes, width);
  return [
    h(
      "div",
      { class: "map-canvas" },
      svg(
        "svg",
        { width, height, role: "img", "aria-label": `A map of ${count(classes.length, "class", "classes")}` },
        dots.map((dot, i) => classDot(dot, labels[i])),
      ),
      pictures.map((result) => picture(result, place(result.position), tiny)),
    ),
    h("ul", { class: "map-list" }, listed.map((result) => h("li", {}, nearest(result, dots, place)))),
    quiet(`A flat map cannot show everything: this one shows ${shown}% of what tells the classes apart.`),
  ];
}

/** From positions to the drawing: the same scale along both axes would waste a wide screen. */
function scale(positions, width, height) {
  const ranges = [0, 1].map((axis) => {
    const values = positions.map((position) => position[axis]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return [low, high - low || 1];
  });
  const to = (value, [low, length], side) => MARGIN + ((value - low) / length) * (side - 2 * MARGIN);
  return ([x, y]) => [to(x, ranges[0], width), height - to(y, ranges[1], height)];
}

/** A place for each label where it hides no other; null for those that have none. */
function placeLabels(dots, boxes, width) {
  const taken = [...dots.map(({ at }) => square(at, 7)), ...boxes];
  return dots.map(({ name, at: [x, y] }) => {
    const half = (Math.min(name.length, 24) * LETTER) / 2;
    for (const [dx, dy] of [[0, -16], [0, 20], [half + 12, 0], [-half - 12, 0]]) {
      const box = [x + dx - half, y + dy - FONT / 2, x + dx + half, y + dy + FONT / 2];
      const inside = box[0] >= 0 && box[2] <= width;
      if (inside && !taken.some((other) => overlap(box, other))) {
        taken.push(box);
        return [x + dx, y + dy + FONT / 3];
      }
    }
    return null;
  });
}

const square = ([x, y], half) => [x - half, y - half, x + half, y + half];
const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

function classDot({ name, at: [x, y] }, label) {
  const short = name.length > 24 ? `${name.slice(0, 23)}…` : name;
  const text = label ?? [x, y - 14];
  return svg(
    "g",
    { class: `map-class ${label ? "" : "crowded"}`, tabindex: label ? null : "0" },
    svg("title", {}, name),
    svg("circle", { cx: x, cy: y, r: 6 }),
    svg("text", { x: text[0], y: text[1], "text-anchor": "middle" }, short),
  );
}

function picture(result, [x, y], tiny) {
  const canvas = preview(result.file, SIDE, `${result.name}: ${result.answer ?? "none of these"}`);
  canvas.classList.add("map-picture");
  canvas.classList.toggle("tiny", tiny);
  canvas.title = `${result.name}: ${result.answer ?? "none of these"}`;
  canvas.style.left = `${x}px`;
  canvas.style.top = `${y}px`;
  return canvas;
}

function nearest({ name, answer, position }, dots, place) {
  const [x, y] = place(position);
  const distance = ({ at }) => Math.hypot(at[0] - x, at[1] - y);
  const near = [...dots].sort((a, b) => distance(a) - distance(b)).slice(0, 3);
  const names = near.map((dot) => dot.name).join(", ");
  return [h("b", {}, name), `: ${answer ?? "none of these"}. Nearest on the map: ${names}.`];
}
