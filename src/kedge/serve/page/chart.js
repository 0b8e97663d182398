/**
 * The history as a chart: for each version, how many of 100 pictures it names right, and how many
 * it would name right without having improved.
 */

import { h, svg } from "./dom.js";
import { overall } from "./outcome.js";
import { count } from "./words.js";

const HEIGHT = 220;
const [LEFT, RIGHT, TOP, BOTTOM] = [34, 8, 30, 46];
const [END, LABEL] = [46, 84]; // px: beside the first and the last version; of a label
const CAPTION =
  "Of 100 pictures, so many are named right. Grey is the same classes without improving. " +
  "More classes are harder to tell apart.";

/** The chart, `width` px wide; null for fewer than two versions. */
export function versionChart(versions, width) {
  const measured = versions.filter((version) => overall(version) != null);
  const points = measured.map((version) => {
    return { version, value: overall(version), before: overall(version, "untrained") };
  });
  if (points.length < 2) return null;
  const lowest = Math.min(...points.flatMap(({ value, before }) => [value, before]));
  const low = Math.max(0, Math.min(80, Math.floor((lowest - 4) / 10) * 10));
  const step = (width - LEFT - RIGHT - 2 * END) / (points.length - 1);
  const x = (i) => LEFT + END + step * i;
  const y = (value) => TOP + ((HEIGHT - TOP - BOTTOM) * (100 - value)) / (100 - low);
  const at = new Map(points.map(({ version }, i) => [version.id, i]));
  const lines = points.flatMap(({ version, value }, i) => {
    const parent = at.get(version.parent);
    if (parent === undefined) return [];
    return svg("line", { x1: x(parent), y1: y(points[parent].value), x2: x(i), y2: y(value), class: "edge" });
  });
  return [
    h("figcaption", {}, CAPTION),
    svg(
      "svg",
      { width, height: HEIGHT, role: "img", "aria-label": described(points) },
      ticks(low).map((value) => grid(value, y(value), width)),
      lines,
      points.map(({ before }, i) => svg("circle", { cx: x(i), cy: y(before), r: 4.5, class: "before" })),
      points.map((point, i) => dot(point, x(i), y(point.value), step >= LABEL)),
    ),
  ];
}

function ticks(low) {
  const step = 100 - low > 50 ? 25 : 10;
  const values = [];
  for (let value = 100; value >= low; value -= step) values.push(value);
  return values;
}

function grid(value, y, width) {
  const line = svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y });
  return svg("g", { class: "grid" }, line, text(LEFT - 8, y + 4, value, { "text-anchor": "end" }));
}

function text(x, y, content, attributes = {}) {
  return svg("text", { x, y, "text-anchor": "middle", ...attributes }, content);
}

function dot({ version, value, before }, x, y, roomy) {
  const name = `version ${version.number}`;
  const classes = count(version.n_classes, "class", "classes");
  return svg(
    "g",
    { class: `dot ${version.active ? "active" : version.state}` },
    svg("title", {}, `${name}: ${Math.round(value)} of 100, ${classes}`),
    version.active && svg("circle", { cx: x, cy: y, r: 10, class: "ring" }),
    svg("circle", { cx: x, cy: y, r: 5.5 }),
    text(x, before > value ? y + 24 : y - 15, Math.round(value), { class: "value" }),
    roomy && text(x, HEIGHT - 24, name),
    roomy && text(x, HEIGHT - 8, classes, { class: "sub" }),
  );
}

function described(points) {
  const parts = points.map(({ version, value }) => {
    return `version ${version.number}: ${Math.round(value)}${version.active ? ", in use" : ""}`;
  });
  return `Pictures named right, of 100. ${parts.join("; ")}.`;
}
