// How numbers are shown.

// A lower bound: never above the value.
export function roundDown(value, digits = 4) {
  const unit = 10 ** digits;
  const nearest = value.toFixed(digits);
  return Number(nearest) > value ? ((Math.round(Number(nearest) * unit) - 1) / unit).toFixed(digits) : nearest;
}

// An upper bound: never below the value.
export function roundUp(value, digits = 6) {
  const unit = 10 ** digits;
  const nearest = value.toFixed(digits);
  return Number(nearest) < value ? ((Math.round(Number(nearest) * unit) + 1) / unit).toFixed(digits) : nearest;
}

// A certified radius in words short enough for a headline.
export function radiusText(radius) {
  if (radius === Infinity) return "unbounded";
  const text = roundDown(radius);
  return radius > 0 && Number(text) === 0 ? "< 0.0001" : text;
}

export const grouped = (count) => String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

export const plural = (count, one, many = `${one}s`) => `${grouped(count)} ${count === 1 ? one : many}`;

export function bytesText(bytes) {
  if (bytes < 1024) return plural(bytes, "byte");
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

export function timeText(milliseconds) {
  if (milliseconds < 1) return "less than 1 ms";
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

// The smallest of 1, 2, 5, 10, … times a power of ten that is at least `value`.
export function niceStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 5, 10].find((each) => each * power >= value * (1 - 1e-9)) ?? 10;
  return Number((factor * power).toPrecision(1));
}
