/** The answers to many pictures: a table, a summary, and a file for spreadsheets. */

import { answerCard } from "./answer.js";
import { csv, saveFile } from "./csv.js";
import { openDialog } from "./dialog.js";
import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { preview } from "./thumbnails.js";
import { count, percent } from "./words.js";

const SIDE = 56;

const ORDERS = {
  given: ["in the order given", () => 0],
  doubtful: ["least sure first", (a, b) => certainty(a) - certainty(b)],
  named: ["by answer", (a, b) => shown(a).localeCompare(shown(b))],
};

const certainty = ({ answer, ranking }) => (answer == null ? -1 : ranking[0].probability);
const shown = ({ answer }) => answer ?? "none of these";

export function answerTable(results) {
  const rows = new Map(results.map((result) => [result, row(result)]));
  const body = h("tbody");
  const select = h("select", { id: "order" }, Object.entries(ORDERS).map(([value, [text]]) => h("option", { value }, text)));
  const sort = () => replace(body, [...results].sort(ORDERS[select.value][1]).map((result) => rows.get(result)));
  select.addEventListener("change", sort);
  sort();
  const save = () => saveFile("answers.csv", csv(results));
  return h(
    "div",
    { class: "answers" },
    h("p", { class: "lead" }, `${count(results.length, "picture")}`),
    summary(results),
    h(
      "div",
      { class: "table-tools" },
      h("label", { for: "order" }, "Show"),
      select,
      h("button", { type: "button", class: "button end", onclick: save }, icon("download"), "Save as CSV"),
    ),
    h(
      "div",
      { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Answers" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "Picture")), h("th", { scope: "col" }, "Answer"), h("th", { scope: "col", class: "number" }, "Sure"))),
        body,
      ),
    ),
  );
}

function summary(results) {
  const groups = [...Map.groupBy(results, shown)].sort((a, b) => b[1].length - a[1].length);
  return h("ul", { class: "tally", tabindex: "0", "aria-label": "How many of each" }, groups.map(([name, of]) => h("li", { class: of[0].answer == null ? "none" : "" }, h("b", {}, of.length), ` ${name}`)));
}

function row(result) {
  const { name, answer, ranking } = result;
  const open = () => openDialog(name, () => answerCard(result));
  const label = `More about ${name}`;
  const look = h("button", { type: "button", class: "row-picture", "aria-label": label, title: label, onclick: open }, preview(result.file, SIDE, ""));
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span", {}));
  bar.firstChild.style.width = `${ranking[0].probability * 100}%`;
  const cell = h("td", { class: answer == null ? "none" : "" }, h("span", { class: "row-answer" }, shown(result)), h("span", { class: "row-name" }, name));
  const value = answer == null ? "–" : percent(ranking[0].probability);
  return h("tr", {}, h("td", {}, look), cell, h("td", { class: "number" }, value, answer != null && bar));
}
