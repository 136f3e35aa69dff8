// A chart as a file: PNG of the visible part, CSV of all its points.

const PIXELS = 2;
// The legend above a picture, in pixels: height of a row, margin, length of a line sample, space between names.
const LEGEND_ROW = 17, LEGEND_MARGIN = 8, LINE_SAMPLE = 14, NAMES_APART = 14;
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];

/** Return CSV with the points of all lines: a row for each x; a column for each line, three if it was thinned. */
export function chartCsv(spec) {
  const columns = spec.lines.flatMap((line) => [
    [line.label, line, line.y],
    ...(line.low ? [[`${line.label}, lowest`, line, line.low], [`${line.label}, highest`, line, line.high]] : []),
  ]);
  const rows = new Map();
  columns.forEach(([, line, values], column) =>
    line.x.forEach((x, at) => {
      if (!rows.has(x)) rows.set(x, Array(columns.length).fill(""));
      rows.get(x)[column] = values[at] ?? "";
    }),
  );
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const head = [spec.xName || "x", ...columns.map(([label]) => label)].map(quoted);
  const body = [...rows].sort(([one], [two]) => one - two).map(([x, cells]) => [x, ...cells]);
  return [head, ...body].map((cells) => cells.join(",")).join("\n") + "\n";
}

/** Return the title and the names of all lines with their colours, in rows that fit the picture's width. */
export function legendRows(spec, measure, width) {
  const named = ({ label, note, color, dash }) => ({ words: note ? `${label}, ${note}` : label, color, dash });
  const bound = ({ word }) => ({ words: word, color: word === "request" ? "good" : "bad", dash: "5 4" });
  const lines = spec.named === false ? [{ words: `${spec.lines.length} lines` }] : spec.lines.map(named);
  const title = spec.title ? [{ words: spec.title, bold: true }] : [], rows = [[]];
  let x = LEGEND_MARGIN;
  for (const one of [...title, ...lines, ...(spec.bounds || []).map(bound)]) {
    const length = measure(one) + (one.color ? LINE_SAMPLE + 4 : 0);
    if (x > LEGEND_MARGIN && x + length > width - LEGEND_MARGIN) {
      rows.push([]);
      x = LEGEND_MARGIN;
    }
    rows[rows.length - 1].push({ ...one, x });
    x += length + NAMES_APART;
  }
  return rows;
}

/** Return the chart's picture with the colours of the theme, as a Blob. */
export async function chartPng(chart) {
  const picture = chart.picture, copy = picture.cloneNode(true);
  const [from, to] = [picture, copy].map((node) => [node, ...node.querySelectorAll("*")]);
  from.forEach((node, at) => {
    const style = getComputedStyle(node);
    to[at].setAttribute("style", DRAWN.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
  });
  const width = picture.clientWidth, height = chart.height;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  const image = new Image();
  const text = new XMLSerializer().serializeToString(copy);
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  const style = getComputedStyle(chart.node);
  const font = ({ bold }) => `${bold ? "600 " : ""}12px ${style.fontFamily}`;
  const measure = (one) => {
    pen.font = font(one);
    return pen.measureText(one.words).width;
  };
  const rows = legendRows(chart.spec, measure, width), above = rows.length * LEGEND_ROW + LEGEND_MARGIN;
  [canvas.width, canvas.height] = [width * PIXELS, (height + above) * PIXELS];
  pen.scale(PIXELS, PIXELS);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, width, height + above);
  rows.forEach((row, at) => row.forEach((one) => {
    const y = (at + 1) * LEGEND_ROW;
    if (one.color) {
      pen.strokeStyle = style.getPropertyValue(`--nbt-${one.color}`).trim();
      pen.lineWidth = 2;
      pen.setLineDash(one.dash ? [4, 2] : []);
      pen.beginPath();
      pen.moveTo(one.x, y - 4);
      pen.lineTo(one.x + LINE_SAMPLE, y - 4);
      pen.stroke();
    }
    pen.fillStyle = style.color;
    pen.font = font(one);
    pen.fillText(one.words, one.x + (one.color ? LINE_SAMPLE + 4 : 0), y);
  }));
  pen.drawImage(image, 0, above, width, height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
