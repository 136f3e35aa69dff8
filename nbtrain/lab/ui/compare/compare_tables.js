// The tables of a comparison: results with the best values marked and the difference from a baseline, and settings. Both
// can be copied as text for a paper or a report.

import { known } from "../elements/dom.js";

const UNKNOWN_VALUE = "\u2013";

/** Return the column indices of the runs `shown` in a table of the route compare. */
const columnsOf = ({ heads }, shown) => shown.map((name) => heads.indexOf(name)).filter((at) => at > 0);

/** Return the relative difference of a value from the baseline's value: "+1.2 %"; "" if either is missing or they are
 *  equal. */
export function distance(value, base) {
  if (!known(value) || !known(base) || !base || value === base) return "";
  const percent = (100 * (value - base)) / Math.abs(base);
  if (Math.abs(percent) < 0.005) return "\u00b10 %";
  const size = Math.abs(percent), digits = size >= 100 ? 0 : size >= 1 ? 1 : 2;
  return `${percent < 0 ? "\u2212" : "+"}${size.toFixed(digits)} %`;
}

/** Return the best of the numbers; `better` is "low" or "high". null if all numbers are equal or only one is known. */
function bestOf(values, better) {
  const numbers = values.filter(known);
  if (!better || numbers.length < 2) return null;
  const best = better === "low" ? Math.min(...numbers) : Math.max(...numbers);
  return numbers.every((value) => value === best) ? null : best;
}

/**
 * Return the results of the runs `shown` and the published figures, for DataTable: {heads, rows}.
 *
 * baseline    name of the run that the others are compared with; "" for none
 * different   whether rows in which all runs agree are omitted
 */
export function comparedResults({ figures, published = [] }, shown, { baseline, different }) {
  const columns = columnsOf(figures, [...shown, ...published]), rows = [];
  figures.rows.forEach((row, at) => {
    const words = columns.map((column) => row[column]);
    if (words.every((text) => text === UNKNOWN_VALUE)) return;
    if (different && words.every((text) => text === words[0])) return;
    const better = figures.better[at], all = figures.values[at];
    const values = columns.map((column) => all[column - 1]);
    const best = bestOf(values, better), base = baseline ? all[figures.heads.indexOf(baseline) - 1] : null;
    const cells = columns.map((column, place) => {
      const value = values[place], isBest = known(best) && value === best;
      const note = figures.heads[column] === baseline ? "" : distance(value, base);
      const gain = better === "low" ? base - value : value - base;
      const tone = !note || !better || !gain ? "" : gain > 0 ? "nbt-better" : "nbt-worse";
      return {
        text: row[column],
        note,
        tone,
        className: isBest ? "nbt-best" : "",
        title: isBest ? `Best of the shown runs: ${better === "low" ? "lowest" : "highest"}` : "",
      };
    });
    rows.push({ kind: "", cells: [row[0], ...cells] });
  });
  return { heads: ["result", ...columns.map((column) => figures.heads[column])], rows };
}

/** Return the settings of the runs `shown`, for DataTable; `different` omits the settings in which they agree. */
export function comparedSettings({ settings }, shown, { different }) {
  const columns = columnsOf(settings, shown), rows = [];
  const same = different ? [] : (settings.same || []).map(([key, value]) => [key, ...columns.map(() => value)]);
  for (const row of settings.rows) {
    const words = columns.map((column) => row[column]);
    if (!different || words.some((text) => text !== words[0])) rows.push([row[0], ...words]);
  }
  const heads = ["setting", ...columns.map((column) => settings.heads[column])];
  return { heads, rows: [...rows, ...same].map((cells) => ({ kind: "", cells })) };
}

const textOf = (cell) => (cell && typeof cell === "object" ? `${cell.text}${cell.note ? ` (${cell.note})` : ""}` : cell);

const markdownRow = (cells) => `| ${cells.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
const csvCell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const latexCell = (text) =>
  text.replace(/[\\&%$#_{}~^]/g, (letter) =>
    ({ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" })[letter] || `\\${letter}`)
    .replaceAll("\u2013", "--").replaceAll("\u2212", "$-$").replaceAll("\u00b1", "$\\pm$");

const WRITERS = {
  Markdown: (heads, rows) =>
    [markdownRow(heads), markdownRow(heads.map((_, at) => (at ? "---:" : "---"))), ...rows.map(markdownRow)],
  CSV: (heads, rows) => [heads, ...rows].map((cells) => cells.map(csvCell).join(",")),
  LaTeX: (heads, rows) => [
    `\\begin{tabular}{l${"r".repeat(heads.length - 1)}}`,
    "\\hline",
    `${heads.map(latexCell).join(" & ")} \\\\`,
    "\\hline",
    ...rows.map((cells) => `${cells.map(latexCell).join(" & ")} \\\\`),
    "\\hline",
    "\\end{tabular}",
  ],
};

/** The formats in which a comparison is copied. */
export const TABLE_FORMATS = Object.keys(WRITERS);

/** Return tables {heads, rows} as text, with an empty line between the tables. */
export const tablesText = (format, tables) =>
  tables
    .map(({ heads, rows }) => WRITERS[format](heads, rows.map(({ cells }) => cells.map(textOf))).join("\n"))
    .join("\n\n") + "\n";
