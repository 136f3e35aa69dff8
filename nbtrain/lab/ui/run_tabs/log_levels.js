// The level of a log line, which decides its colour: "error", "warning", "debug" or "".

// Levels as written by Python's logging and warnings, and by torch (in glog's format, such as E1128).
const LEVELS = [
  ["error", /\b(ERROR|CRITICAL|FATAL)\b|^(\w+\.)*\w*(Error|Exception|Interrupt): |(^|\[)[EF]\d{4} /],
  ["warning", /\b(WARNING|WARN)\b|\b\w*Warning: |(^|\[)W\d{4} /],
  ["debug", /\b(DEBUG|TRACE)\b/],
];
const OF_RANK = /^\[rank\d+\]:\s?/;

/** Return {level, inTraceback}: the level of a line, and whether the next line may continue a traceback. The argument
 *  `inTraceback` is that of the previous line. */
export function levelOf(text, inTraceback) {
  const words = text.replace(OF_RANK, "");
  if (/^Traceback \(most recent call last\)/.test(words)) return { level: "error", inTraceback: true };
  // The frames are indented; the line below them is the exception.
  if (inTraceback) return { level: "error", inTraceback: /^\s/.test(words) };
  const known = LEVELS.find(([, form]) => form.test(words));
  return { level: known ? known[0] : "", inTraceback: false };
}
