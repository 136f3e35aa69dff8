// A chart as a file: PNG of what is in sight, CSV of all its points.

const PIXELS = 2;
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];

/** The points of all lines by x, one column for each. */
export function chartCsv(spec) {
  const rows = new Map();
  spec.lines.forEach((line, column) =>
    line.x.forEach((x, at) => {
      if (!rows.has(x)) rows.set(x, Array(spec.lines.length).fill(""));
      rows.get(x)[column] = line.y[at] ?? "";
    }),
  );
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const head = [spec.xName || "x", ...spec.lines.map((line) => line.label)].map(quoted);
  const body = [...rows].sort(([one], [two]) => one - two).map(([x, cells]) => [x, ...cells]);
  return [head, ...body].map((cells) => cells.join(",")).join("\n") + "\n";
}

/** The chart's picture with the colours of the theme, as a Blob. */
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
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * PIXELS, (height + 24) * PIXELS];
  const pen = canvas.getContext("2d");
  pen.scale(PIXELS, PIXELS);
  const style = getComputedStyle(chart.node);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, width, height + 24);
  pen.fillStyle = style.color;
  pen.font = `12px ${style.fontFamily}`;
  pen.fillText(chart.legend.innerText.replaceAll("\n", "  "), 8, 15);
  pen.drawImage(image, 0, 24, width, height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
