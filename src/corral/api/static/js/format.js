/** Numbers as people read them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/**
 * Bytes in the largest unit that keeps three digits; null is what nobody could read.
 * @param {number | null} count
 */
export function bytes(count) {
  if (count === null) return "unknown";
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : digits(value)} ${UNITS[unit]}`;
}

/**
 * A measured number with three digits at most.
 * @param {number} value
 */
export function digits(value) {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toString();
  return value.toFixed(value >= 10 ? 1 : 2);
}

/**
 * A rate, where more than one decimal is noise.
 * @param {number} value
 */
export function rate(value) {
  return value >= 100 || value === 0 ? Math.round(value).toString() : value.toFixed(1);
}

/**
 * A duration.
 * @param {number} ms
 */
export function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

/**
 * A count with its word.
 * @param {number} count
 * @param {string} word
 */
export function counted(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
