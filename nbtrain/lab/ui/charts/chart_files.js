// Charts as files: PNG and SVG of the visible part, CSV of all points.

const PIXELS = 2;
// The legend above a picture, in pixels: height of a row, margin, length of a line sample, space between names.
const LEGEND_ROW = 17, LEGEND_MARGIN = 8, LINE_SAMPLE = 14, NAMES_APART = 14;
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];

/** Return CSV with the points of all lines: a row for each x, and a column for each line, or three for a thinned line. */
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
  const lines = spec.lines.map(named);
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

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

/** Return the chart's picture with its legend and the colours of the theme, as {text: an SVG file, width, height}. */
export function chartSvg(chart) {
  const picture = chart.picture, copy = picture.cloneNode(true);
  const [from, to] = [picture, copy].map((node) => [node, ...node.querySelectorAll("*")]);
  from.forEach((node, at) => {
    const style = getComputedStyle(node);
    const looks = DRAWN.map((name) => `${name}:${style.getPropertyValue(name).replaceAll('"', "'")}`);
    to[at].setAttribute("style", looks.join(";"));
  });
  const width = picture.clientWidth, style = getComputedStyle(chart.node);
  const pen = document.createElement("canvas").getContext("2d");
  const measure = ({ words, bold }) => {
    pen.font = `${bold ? "600 " : ""}12px ${style.fontFamily}`;
    return pen.measureText(words).width;
  };
  const rows = legendRows(chart.spec, measure, width), above = rows.length * LEGEND_ROW + LEGEND_MARGIN;
  const height = chart.height + above, family = escaped(style.fontFamily.replaceAll('"', "'"));
  const legend = rows.flatMap((row, at) => row.flatMap(({ words, x, color, dash, bold }) => {
    const y = (at + 1) * LEGEND_ROW, look = color && style.getPropertyValue(`--nbt-${color}`).trim();
    const sample = color
      ? [`<line x1="${x}" x2="${x + LINE_SAMPLE}" y1="${y - 4}" y2="${y - 4}" stroke="${look}" stroke-width="2"${dash ? ' stroke-dasharray="4 2"' : ""}/>`]
      : [];
    const place = `x="${x + (color ? LINE_SAMPLE + 4 : 0)}" y="${y}"`, weight = bold ? ' font-weight="600"' : "";
    return [...sample, `<text ${place}${weight} font-size="12" font-family="${family}" fill="${style.color}">${escaped(words)}</text>`];
  }));
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height: chart.height, y: above }))
    copy.setAttribute(name, value);
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`
    + `<rect width="100%" height="100%" fill="${style.backgroundColor}"/>${legend.join("")}`
    + `${new XMLSerializer().serializeToString(copy)}</svg>`;
  return { text, width, height };
}

/** Return chartSvg() as a PNG, as a Blob. */
export async function chartPng(chart) {
  const { text, width, height } = chartSvg(chart), image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [width * PIXELS, height * PIXELS];
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
