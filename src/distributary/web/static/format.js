// Numbers and times as text.

const whole = new Intl.NumberFormat("en");
const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 1 && size > 0) return String(Number(value.toPrecision(2)));
  return whole.format(size < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value));
}

export function compact(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 10_000 ? number(value) : brief.format(value);
}

export function counted(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (size < 10) return `${seconds.toFixed(1)} s`;
  if (size < 120) return `${Math.round(seconds)} s`;
  if (size < 7200) return `${Math.round(seconds / 60)} min`;
  if (size < 172_800) return `${(seconds / 3600).toFixed(size < 36_000 ? 1 : 0)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

export function ago(moment, now = Date.now()) {
  const seconds = (now - moment.getTime()) / 1000;
  if (seconds < 2) return "now";
  return `${duration(seconds).replace(".0 ", " ")} ago`;
}

export function clock(moment) {
  return new Intl.DateTimeFormat("en-GB", {
    year: "numeric", month: "short", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit",
  }).format(moment);
}

// `["shop","","orders"]` of a database is `shop.orders`
export function spelled(type) {
  if (!type || !type.startsWith("[")) return type || "";
  try {
    const names = JSON.parse(type);
    return names.filter((name) => typeof name === "string" && name).join(".") || type;
  } catch {
    return type;
  }
}

// one quoted word of a command
export function shellQuoted(text) {
  return /^[\w./:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
