// Quantities as people read them. A quantity is a number (exact), [lo, hi] (bounded), [lo, null] (from below) or null (unknown),
// and what is unknown is said, never shown as 0.

const NARROW = "\u202f"; // between a number and its unit
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

/** The least and the greatest a quantity may be. */
export function bounds(quantity) {
  if (typeof quantity === "number") return [quantity, quantity];
  if (Array.isArray(quantity)) return [quantity[0] ?? 0, quantity[1] ?? Infinity];
  return [0, Infinity];
}

export const isKnown = (quantity) => bounds(quantity)[0] > 0 || Number.isFinite(bounds(quantity)[1]);

function plain(value) {
  return value >= 100 || Number.isInteger(value) ? whole.format(value) : three.format(value);
}

function scaled(value, step, units) {
  let index = 0;
  while (value >= step && index < units.length - 1) {
    value /= step;
    index += 1;
  }
  return [plain(value), units[index]];
}

function percent(value) {
  const hundredths = value * 100;
  if (value > 0 && hundredths < 0.1) return ["<0.1", "%"];
  const rounded = hundredths >= 10 && hundredths <= 99 ? Math.round(hundredths) : Math.round(hundredths * 10) / 10;
  return [String(value < 1 ? Math.min(rounded, 99.9) : rounded), "%"]; // nearly full is not full
}

function seconds(value) {
  if (value < 1 && value > 0) return [three.format(value * 1000), "ms"];
  if (value < 60) return [three.format(value), "s"];
  if (value < 3600) return parts(Math.round(value), 60, "min", "s");
  return parts(Math.round(value / 60), 60, "h", "min");
}

function parts(value, step, big, small) {
  const rest = value % step;
  return [`${Math.floor(value / step)}${NARROW}${big}${rest ? ` ${rest}${NARROW}${small}` : ""}`, ""];
}

const UNITS = {
  ratio: percent,
  bytes: (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]),
  seconds,
  tokens: (value) => [plain(value), "tokens"],
  slots: (value) => [plain(value), "slots"],
  "per second": (value) => [plain(value), "/s"],
  "tokens/s": (value) => [plain(value), "tokens/s"],
  times: (value) => [plain(value), "×"],
  condition: (value) => [value ? "yes" : "no", ""],
  short: (value) => [scaled(value, 1000, ["", "k", "M", "G", "T"]).join(""), ""],
};

/** A quantity in words: "126,720 tokens", "0–1,280 tokens", "≥ 7,920 tokens" or "unknown". */
export function show(quantity, unit = "count") {
  if (!isKnown(quantity)) return "unknown";
  const write = UNITS[unit] ?? ((value) => [plain(value), ""]);
  const [lo, hi] = bounds(quantity);
  const [low, lowUnit] = write(lo);
  const join = (number, suffix) => (suffix ? number + NARROW + suffix : number);
  if (hi === Infinity) return `≥${NARROW}${join(low, lowUnit)}`;
  const [high, highUnit] = write(hi);
  if (low === high && lowUnit === highUnit) return join(low, lowUnit);
  return lowUnit === highUnit || lo === 0 ? `${low}–${join(high, highUnit)}` : `${join(low, lowUnit)}–${join(high, highUnit)}`;
}

/** The same in little room: "127k", without the unit of a count. */
export function brief(quantity, unit) {
  return show(quantity, unit === "bytes" || unit === "ratio" || unit === "seconds" ? unit : "short");
}

/** A moment as a clock time of the reader's zone. */
export function clock(date) {
  return date.toLocaleTimeString("en-GB");
}

/** How an operator is written. */
export const operator = (op) => ({ ">=": "≥", "<=": "≤", "==": "=" })[op] ?? op;
