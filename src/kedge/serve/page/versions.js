/** Versions: what became of the model over time; going back; deleting pictures. */

import { versionChart } from "./chart.js";
import { button, quiet } from "./controls.js";
import { changeRow } from "./comparison.js";
import { forget } from "./forget.js";
import { drawnToFit, h, keyed, replace } from "./dom.js";
import { use } from "./deciding.js";
import { icon } from "./icons.js";
import { outcomeRows, overall } from "./outcome.js";
import { lineOfVersions, may, watch } from "./store.js";
import { count, size, some, when } from "./words.js";

export function startVersions(section) {
  const disk = h("p", { class: "quiet" });
  const chart = h("figure");
  const frame = h("div", { class: "chart" }, chart); // with padding, which the chart does not have
  const list = h("ol", { class: "version-list", reversed: true });
  const head = h("div", { class: "section-head" }, h("h2", { id: "versions-title" }, "Versions"));
  replace(section, head, frame, list, disk);
  let kept = [];
  const drawChart = drawnToFit(chart, (width) => versionChart(kept, width));
  watch(({ state, versions, signedOut }) => {
    section.hidden = !state || signedOut;
    if (section.hidden) return;
    kept = versions.filter((version) => version.state !== "discarded");
    frame.hidden = kept.filter((version) => overall(version) != null).length < 2;
    drawChart();
    const line = lineOfVersions();
    const items = versions.map((version) => {
      return { ...version, role: state.role, inLine: line.includes(version) };
    });
    keyed(list, items.reverse(), (version) => version.id, () => h("li"), showVersion);
    const { used, quota } = state.disk;
    disk.textContent = `This project takes ${size(used)} of the ${size(quota)} that it may.`;
  });
}

function showVersion(element, version) {
  element.className = `panel version ${version.active ? "active" : version.state}`;
  replace(
    element,
    h(
      "div",
      { class: "version-head" },
      h("h3", {}, `Version ${version.number}`),
      chip(version),
      h("span", { class: "quiet" }, when(version.created)),
    ),
    h("p", {}, knows(version), namesRight(version), "."),
    outcome(version),
    version.state === "discarded" ? null : actions(version),
  );
}

function chip(version) {
  if (version.active) return h("span", { class: "chip learned" }, "in use");
  if (version.state === "candidate") return h("span", { class: "chip new" }, "waits for your decision");
  return version.state === "discarded" ? h("span", { class: "chip" }, "thrown away") : null;
}

function knows({ n_classes: n, new_classes: fresh }) {
  if (!n) return "The start: a network that has seen many photographs, and no class yet";
  const all = `Knows ${count(n, "class", "classes")}`;
  if (!fresh.length) return all;
  return `${all}${fresh.length < n ? `, ${fresh.length} of them new` : ""}: ${some(fresh, 8)}`;
}

function namesRight(version) {
  const right = overall(version);
  if (right == null) return null;
  const about = version.outcome.naming.some((one) => one.estimated) ? "about " : "";
  return [`; it names ${about}`, h("b", {}, `${Math.round(right)} of 100`), " pictures right"];
}

function outcome(version) {
  const rows = outcomeRows(version);
  if (!rows.length) return null;
  return h(
    "details",
    {},
    h("summary", {}, "Before and after"),
    h("ul", { class: "changes" }, rows.map((row) => changeRow(row))),
    quiet(version.outcome.sentence),
  );
}

function actions(version) {
  const left = version.pictures_left;
  const are = count(left, "picture that it learned from is", "pictures that it learned from are");
  return [
    left > 0 && h("p", { class: "pictures-left" }, icon("pictures"), `${are} still stored here.`),
    may("improve") && h("div", { class: "buttons" }, buttons(version)),
  ];
}

function buttons(version) {
  const isNew = version.state === "candidate";
  const go = [icon("undo"), isNew ? "Use this version" : "Go to this version"];
  const mayForget = version.pictures_left > 0 && version.inLine;
  const forgetting = { kind: "quiet-danger", "data-focus": "forget" };
  const file = `api/versions/${version.id}/model`;
  return [
    !version.active && button(go, use(version), { "data-focus": "use" }),
    mayForget && button([icon("trash"), "Delete the pictures …"], () => forget(version), forgetting),
    h("a", { class: "button", href: file, download: "" }, icon("download"), "Save the model"),
  ];
}
