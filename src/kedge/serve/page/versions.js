/** Versions: what became of the model over time; going back; deleting pictures. */

import { versionChart } from "./chart.js";
import { changeRow } from "./comparison.js";
import { forget } from "./forget.js";
import { drawnToFit, h, keyed, replace } from "./dom.js";
import { use } from "./deciding.js";
import { icon } from "./icons.js";
import { outcomeRows, overall } from "./outcome.js";
import { may, watch } from "./store.js";
import { count, size, some, when } from "./words.js";

export function startVersions(section) {
  const disk = h("p", { class: "quiet" });
  const chart = h("figure");
  const frame = h("div", { class: "chart" }, chart); // with padding, which the chart does not have
  const list = h("ol", { class: "version-list", reversed: true });
  replace(section, h("div", { class: "section-head" }, h("h2", { id: "versions-title" }, "Versions")), frame, list, disk);
  let kept = [];
  const drawChart = drawnToFit(chart, (width) => versionChart(kept, width));
  watch(({ state, versions, signedOut }) => {
    section.hidden = !state || signedOut;
    if (section.hidden) return;
    kept = versions.filter((version) => version.state !== "discarded");
    frame.hidden = kept.filter((version) => overall(version) != null).length < 2;
    drawChart();
    const line = ancestry(versions);
    const items = [...versions].reverse().map((version) => ({ ...version, role: state.role, inLine: line.has(version.id) }));
    keyed(list, items, (version) => version.id, () => h("li"), showVersion);
    const { used, quota } = state.disk;
    disk.textContent = `This project takes ${size(used)} of the ${size(quota)} that it may.`;
  });
}

/** The version in use and those that it came from: only their pictures may be deleted. */
function ancestry(versions) {
  const byId = new Map(versions.map((version) => [version.id, version]));
  const line = new Set();
  let version = versions.find(({ active }) => active);
  for (; version; version = byId.get(version.parent)) line.add(version.id);
  return line;
}

function showVersion(element, version) {
  element.className = `panel version ${version.active ? "active" : version.state}`;
  const right = overall(version);
  replace(
    element,
    h(
      "div",
      { class: "version-head" },
      h("h3", {}, `Version ${version.number}`),
      chip(version),
      h("span", { class: "quiet" }, when(version.created)),
    ),
    h("p", {}, what(version), right != null && [`; it names ${estimated(version) ? "about " : ""}`, h("b", {}, `${Math.round(right)} of 100`), " pictures right"], "."),
    outcome(version),
    version.state === "discarded" ? null : actions(version),
  );
}

function chip(version) {
  if (version.active) return h("span", { class: "chip learned" }, "in use");
  if (version.state === "candidate") return h("span", { class: "chip new" }, "waits for your decision");
  return version.state === "discarded" ? h("span", { class: "chip" }, "thrown away") : null;
}

function what({ n_classes: n, new_classes: fresh }) {
  if (!n) return "The start: a network that has seen many photographs, and no class yet";
  const added = fresh.length && fresh.length < n ? `, ${fresh.length} of them new: ${some(fresh, 6)}` : fresh.length ? `: ${some(fresh, 8)}` : "";
  return `Knows ${count(n, "class", "classes")}${added}`;
}

const estimated = ({ outcome: { naming } }) => naming.some((one) => one.estimated);

function outcome(version) {
  const rows = outcomeRows(version);
  if (!rows.length) return null;
  return h("details", {}, h("summary", {}, "Before and after"), h("ul", { class: "changes" }, rows.map((row) => changeRow(row))), version.outcome.sentence && h("p", { class: "quiet" }, version.outcome.sentence));
}

function actions(version) {
  const canUse = may("improve") && !version.active;
  return [
    version.pictures_left > 0 && h("p", { class: "pictures-left" }, icon("pictures"), `${count(version.pictures_left, "picture")} that it learned from ${version.pictures_left === 1 ? "is" : "are"} still stored here.`),
    h(
      "div",
      { class: "buttons" },
      canUse && h("button", { type: "button", class: "button", "data-focus": "use", onclick: use(version) }, icon("undo"), version.state === "candidate" ? "Use this version" : "Go to this version"),
      may("improve") && version.pictures_left > 0 && version.inLine &&
        h("button", { type: "button", class: "button quiet-danger", "data-focus": "forget", onclick: () => forget(version) }, icon("trash"), "Delete the pictures …"),
      may("improve") && h("a", { class: "button", href: `api/versions/${version.id}/model`, download: "" }, icon("download"), "Save the model"),
    ),
  ];
}
