// Numbers as people read them. Every one has its unit.

type Maybe = number | null | undefined;
const DASH = "–";
const PREFIXES: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const digits = (value: number, count: number): string => {
  const whole = Math.floor(Math.log10(Math.abs(value) || 1)) + 1;
  return value.toFixed(Math.max(0, count - Math.max(1, whole)));
};

/** At most about four digits: 0.0123, 21.04, 2,011, 52.4 M, 1.2e-7. */
export function number(value: Maybe): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1e5) return scaled(value, "");
  if (Number.isInteger(value)) return value.toLocaleString("en");
  if (size < 1e-3) return value.toExponential(1);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : size < 1 ? value.toPrecision(3) : digits(value, 4);
}

function scaled(value: number, unit: string): string {
  const [factor, prefix] = PREFIXES.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${digits(value / factor, 3)} ${prefix}${unit}`.trimEnd();
}

/** Labels of an axis: all with as many digits as its steps need, and no more. */
export function ticks(splits: number[]): string[] {
  const most = Math.max(...splits.map(Math.abs));
  const [factor, prefix] = PREFIXES.find(([least]) => most >= 10 * least) ?? [1, ""];
  const step = Math.abs((splits[1] ?? 0) - (splits[0] ?? 1)) / factor;
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return splits.map((split) => (split ? `${(split / factor).toLocaleString("en", { minimumFractionDigits: places })} ${prefix}`.trim() : "0"));
}

export const count = (value: Maybe): string =>
  value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en");

/** Binary units, as the terminal has them: 84.3 MiB. */
export function bytes(value: Maybe): string {
  if (value === null || value === undefined) return DASH;
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  const size = value / 1024 ** power;
  return `${Number.isInteger(size) ? size : digits(size, 3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export const percent = (share: Maybe): string =>
  share === null || share === undefined ? DASH : `${(100 * share).toFixed(share < 0.1 && share >= 0.0005 ? 1 : 0)} %`;

/** 4 ms, 1.2 s, 4 min 10 s, 7 h 54 min, 2 d 3 h. */
export function duration(seconds: Maybe): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${digits(seconds * 1000, 2)} ms`;
  if (seconds < 59.5) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const [whole, minutes] = [Math.round(seconds), Math.round(seconds / 60)];
  if (minutes < 10) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

export const ago = (unixS: number): string => `${duration(Math.max(0, Date.now() / 1000 - unixS))} ago`;

/** Any value of a configuration, as it stands in YAML. */
export const plain = (value: unknown): string =>
  value === undefined ? DASH : typeof value === "string" ? value || '""' : JSON.stringify(value);

/** A nested configuration as `a.b.c` and value. */
export function flat(tree: unknown, path = ""): [string, unknown][] {
  const isBranch = tree !== null && typeof tree === "object" && !Array.isArray(tree) && Object.keys(tree).length > 0;
  if (!isBranch) return [[path, tree]];
  return Object.entries(tree as object).flatMap(([key, value]) => flat(value, path ? `${path}.${key}` : key));
}
