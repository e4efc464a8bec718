// Numbers as people read them.

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 9.95) return `${value.toFixed(1)} ms`;
  if (value < 999.5) return `${Math.round(value)} ms`;
  return seconds(value / 1000);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 172_800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86_400)} d`;
}

export function rate(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value < 9.95 ? value.toFixed(1) : count(Math.round(value));
}

export const count = (value) => value.toLocaleString("en");

export const percent = (share) => `${Math.round(share * 100)} %`;

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** The `share` quantile of sorted numbers, by the nearest rank. */
export const quantile = (sorted, share) => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
