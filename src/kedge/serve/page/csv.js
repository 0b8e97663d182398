/** Answers as CSV: the columns and the escaping of `kedge predict --format csv`. */

import { h } from "./dom.js";

// A spreadsheet would run a text that begins like this as a formula (OWASP, "CSV injection").
const FORMULA = /^[=+\-@＝＋－＠']/;

export function csv(results) {
  const lines = [["image", "rank", "class", "probability", "typicality"]];
  for (const { name, answer, ranking, typicality } of results) {
    const typical = typicality == null ? "" : typicality.toFixed(4);
    if (answer == null) lines.push([name, 1, "", "", typical]);
    else {
      ranking.forEach((one, i) => {
        lines.push([name, i + 1, one.class, one.probability.toFixed(6), typical]);
      });
    }
  }
  return lines.map((cells) => `${cells.map(cell).join(",")}\n`).join("");
}

function cell(value) {
  const escaped = (c) => `\\u{${c.codePointAt(0).toString(16)}}`;
  let text = String(value).replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, escaped);
  if (FORMULA.test(text)) text = `'${text}`;
  return /[,;"]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Let the browser save a text under a name. */
export function saveFile(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
