// Number formats, axis ticks and smoothing for zoomable charts. They give the same results as base/text/amounts.py and
// monitor/metrics/chart_data.py; tests/lab/ui/numbers.json has the expected results for both languages.

/** Round as Python does: a number exactly halfway between two results is rounded to the one with the even last digit. */
function fixed(value, digits) {
  const scaled = Math.abs(value) * 10 ** digits, low = Math.floor(scaled);
  const tie = scaled < 1e15 && scaled - low === 0.5 && scaled / 10 ** digits === Math.abs(value);
  if (!tie || low % 2 === 1) return value.toFixed(digits);
  return `${value < 0 ? "-" : ""}${(low / 10 ** digits).toFixed(digits)}`;
}

/** Format a number with at most six significant digits, as Python's format "g" does. */
function general(value) {
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(value)));
  if (exponent < -4 || exponent >= 6) {
    const [mantissa, power] = value.toExponential(5).split("e");
    const sign = power[0] === "-" ? "-" : "+";
    return `${trimmed(mantissa)}e${sign}${power.slice(1).padStart(2, "0")}`;
  }
  return trimmed(value.toPrecision(6));
}

const trimmed = (text) => (text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text);
/** Add commas to the text of a number: "1234.5" becomes "1,234.5". */
export const grouped = (text) => text.replace(/^-?\d+/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));

/** Format 126638592 as "126.6M". */
export function count(value) {
  for (const [unit, mark] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= unit)
      return trimmed(fixed(value / unit, Math.abs(value) < 10 * unit ? 2 : 1)) + mark;
  return general(value);
}

/** Format 42949672960 as "40.0 GiB". */
export function size(bytes) {
  for (const [unit, mark] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(bytes) >= unit) return `${fixed(bytes / unit, 1)} ${mark}`;
  return `${fixed(bytes, 0)} B`;
}

/** Format steps and other whole numbers: "1,200", or "12k" if all ticks are thousands. */
export const whole = (value, step) =>
  value >= 10000 && step % 1000 === 0 ? count(value) : grouped(Math.round(value).toString());

/** Format 0.00015 as "1.5e-4", with as many digits as needed to differ from the next tick, which is `step` away. */
export function scientific(value, step = 0) {
  if (!value) return "0";
  const order = (one) => Math.floor(Math.log10(Math.abs(one)) + 1e-9);
  const digits = step ? Math.min(6, Math.max(1, order(value) - order(step))) : 1;
  const [mantissa, exponent] = value.toExponential(digits).split("e");
  return `${trimmed(mantissa)}e${Number(exponent)}`;
}

// Formats a number with just enough decimals to differ from the next tick, which is `step` away.
const decimals = (value, step) =>
  fixed(value, Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));

function number(value, step) {
  if (step < 1e-3) return scientific(value, step);
  return step >= 1000 ? count(value) : grouped(decimals(value, step));
}

const BYTES = (value) => size(value).replace(".0 ", " ");
const FORMS = {
  decimals,
  scientific,
  number,
  count,
  whole,
  bytes: BYTES,
  "bytes/s": (value) => `${BYTES(value)}/s`,
  share: (value, step) => `${decimals(100 * value, 100 * step)} %`,
  "1/s": (value) => `${count(value)}/s`,
  cores: (value) => (value === 1 ? "1 core" : `${count(value)} cores`),
  seconds: (value, step) => {
    const [length, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([one]) => step >= one)
      || [1, "s"];
    return value ? `${general(value / length)} ${unit}` : "0";
  },
};

/** Return the label of a tick. A form that FORMS does not have is a unit, which is written after the number. */
export const tickLabel = (form, value, step) =>
  FORMS[form] ? FORMS[form](value, step) : `${count(value)} ${form}`;

const spread = (first, last, step) =>
  Array.from({ length: Math.max(0, last - first + 1) }, (_, at) =>
    Number(((first + at) * step).toPrecision(12)),
  );

/** Format the value at the pointer, with four digits, or five for a loss. */
export function readLabel(form, value) {
  const size = Math.abs(value), digits = form === "decimals" ? 5 : 4;
  if (form === "count" || form === "whole") return grouped(trimmed(value.toFixed(size < 100 ? 2 : 0)));
  if (form !== "decimals" && form !== "number") return tickLabel(form, value, size / 1000 || 1);
  if (size && size < 1e-3) return scientific(value, size / 1000);
  const text = value.toPrecision(digits);
  // The rounded number has more digits before the decimal point.
  return grouped(text.includes("e") ? value.toFixed(0) : text);
}

/** Return round numbers from `low` to `high`. Their distance is 1, 2 or 5 times a power of ten. If that gives fewer than
 *  `least` ticks, a smaller distance is used. */
export function ticks(low, high, most, least = 3, integer = false) {
  for (let wanted = most; ; wanted += 1) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 5, 10].find((one) => one * power >= rough * 0.999) * power;
    if (integer) step = Math.max(1, Math.round(step));
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    if (last - first + 1 >= least || (integer && step === 1) || wanted >= most + 12)
      return spread(first, last, step);
  }
}

const TIMES = [
  1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000,
  864000, 1728000, 4320000, 8640000,
];

/** Return at most `most` round times between two times, in seconds. */
export function timeTicks(low, high, most) {
  const ends = (step) => [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  const fits = (step) => ends(step)[1] - ends(step)[0] < most;
  const step = TIMES.find(fits) || TIMES[TIMES.length - 1];
  return spread(...ends(step), step);
}

/** Return round numbers of bytes from `low` to `high`, a power of two apart. */
export function byteTicks(low, high) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(high - low, 1) / 5)));
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  return spread(first, last, step);
}

/** Return the powers of ten between two positive numbers. If there are fewer than 3, multiples of them are added; if that
 *  is still too few, return round numbers. */
export function logTicks(low, high) {
  const between = (factors) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      for (const factor of factors) {
        const value = Number((factor * 10 ** power).toPrecision(12));
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    return found;
  };
  for (const factors of [[1], [1, 3], [1, 2, 5]]) {
    const found = between(factors);
    if (found.length >= 3) return found.length > 8 ? found.filter((_, at) => at % 2 === 0) : found;
  }
  return ticks(low, high, 4);
}

/** Return the exponential moving average with bias correction; the first value is unchanged. */
export function smoothed(values, weight) {
  if (!(weight > 0)) return values;
  let sum = 0, share = 1;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    share *= weight;
    return sum / (1 - share);
  });
}

/** Return the index of the number nearest to `wanted` in sorted numbers. */
export function nearest(sorted, wanted) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
}
