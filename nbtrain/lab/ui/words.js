// Small helpers for text and elements. Numbers come in words from the snapshot; only times are worded here,
// in the reader's own time zone.

export const known = (value) => value !== null && value !== undefined;
export const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
/** The time, and the day if it is not today's. */
export function moment(time) {
  const then = new Date(time * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return today ? clock(time) : `${then.toLocaleDateString("sv-SE")} ${clock(time)}`;
}
export const plain = (line) => line.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, "");

export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (known(text)) node.textContent = text;
  return node;
}
