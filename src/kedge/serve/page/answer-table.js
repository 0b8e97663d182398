/** The answers to many pictures: a table, a summary, and a file for spreadsheets. */

import { answerCard } from "./answer.js";
import { button, filledBar } from "./controls.js";
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
  const options = Object.entries(ORDERS).map(([value, [text]]) => h("option", { value }, text));
  const select = h("select", { id: "order" }, options);
  const sort = () => {
    const sorted = [...results].sort(ORDERS[select.value][1]);
    replace(body, sorted.map((result) => rows.get(result)));
  };
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
      button([icon("download"), "Save as CSV"], save, { kind: "end" }),
    ),
    h(
      "div",
      { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Answers" },
      h("table", {}, head(), body),
    ),
  );
}

function head() {
  const columns = [
    h("th", { scope: "col" }, h("span", { class: "unseen" }, "Picture")),
    h("th", { scope: "col" }, "Answer"),
    h("th", { scope: "col", class: "number" }, "Sure"),
  ];
  return h("thead", {}, h("tr", {}, columns));
}

function summary(results) {
  const groups = [...Map.groupBy(results, shown)].sort((a, b) => b[1].length - a[1].length);
  const items = groups.map(([name, of]) =>
    h("li", { class: of[0].answer == null ? "none" : "" }, h("b", {}, of.length), ` ${name}`),
  );
  return h("ul", { class: "tally", tabindex: "0", "aria-label": "How many of each" }, items);
}

function row(result) {
  const { name, answer, ranking } = result;
  const label = `More about ${name}`;
  const look = h(
    "button",
    { type: "button", class: "row-picture", "aria-label": label, title: label },
    preview(result.file, SIDE, ""),
  );
  look.addEventListener("click", () => openDialog(name, () => answerCard(result)));
  const { probability } = ranking[0];
  return h(
    "tr",
    {},
    h("td", {}, look),
    h(
      "td",
      { class: answer == null ? "none" : "" },
      h("span", { class: "row-answer" }, shown(result)),
      h("span", { class: "row-name" }, name),
    ),
    h("td", { class: "number" }, answer == null ? "–" : [percent(probability), filledBar(probability)]),
  );
}
