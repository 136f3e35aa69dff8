// The names of lines at their ends, in a margin at the right of a chart. They are moved apart, so that no name covers
// another.

const END_NAME_PIXELS = 11, END_LETTER_PIXELS = 6, END_MARK_PIXELS = 12, END_GAP = 4;
// Largest margin, also as a share of the chart; a chart that is narrower than LEAST_NAMED_WIDTH has no names.
const MOST_END_MARGIN = 148, MOST_END_SHARE = 0.3, LEAST_NAMED_WIDTH = 300;
const END_TEXT_AT = END_MARK_PIXELS + 2 * END_GAP;

/** Shorten a name in its middle, because the names of related runs differ at their ends. */
export function shortName(text, most) {
  if (text.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - end)}\u2026${text.slice(text.length - end)}`;
}

/** Return the margin in pixels that the names of `lines` need at the right; 0 if the chart has no room for them. */
export function endMargin(lines, width) {
  if (width < LEAST_NAMED_WIDTH || !lines.length) return 0;
  const longest = Math.max(...lines.map(({ label }) => label.length));
  return Math.min(END_TEXT_AT + END_LETTER_PIXELS * longest, MOST_END_MARGIN, MOST_END_SHARE * width);
}

/** Move positions apart by at least `least`, within [low, high]. Their order is kept. */
export function spreadApart(positions, least, low, high) {
  const order = positions.map((_, at) => at).sort((one, two) => positions[one] - positions[two]);
  const placed = [...positions];
  let free = low;
  for (const at of order) {
    placed[at] = Math.max(positions[at], free);
    free = placed[at] + least;
  }
  free = high;
  for (const at of [...order].reverse()) {
    placed[at] = Math.min(placed[at], free);
    free = placed[at] - least;
  }
  return placed;
}

/**
 * Return the elements of the names: [[tag, attributes, text, title], ...].
 *
 * ends   [{line, x, y}]: the last visible point of each line, in pixels
 * place  {right, width, top, floor}: the frame's right edge, the chart's width, and the frame's vertical range
 */
export function endNames(ends, { right, width, top, floor }, stroke) {
  const heights = spreadApart(ends.map(({ y }) => y), END_NAME_PIXELS, top, floor);
  const letters = Math.floor((width - right - END_TEXT_AT) / END_LETTER_PIXELS);
  return ends.flatMap(({ line, x, y }, at) => {
    const style = `stroke:${stroke(line)}`, dash = line.dash ? { "stroke-dasharray": line.dash } : {};
    const height = heights[at], from = right + END_GAP;
    const across = { x1: from, x2: from + END_MARK_PIXELS, y1: height, y2: height };
    const mark = { class: "nbt-end-mark", ...across, style, ...dash };
    const name = { class: "nbt-end", x: right + END_TEXT_AT, y: height + 3 };
    return [
      ["line", { class: "nbt-end-leader", x1: x, y1: y, x2: from, y2: height, style }],
      ["line", mark],
      ["text", name, shortName(line.label, letters), line.label],
    ];
  });
}
