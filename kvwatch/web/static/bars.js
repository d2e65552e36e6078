// A pool as a bar: what is proven is filled, what can be either of two states is striped in both colours, what is unknown is empty
// and said in words.

import { h } from "./dom.js";
import { bounds, brief, isKnown, show } from "./format.js";

const STATES = ["used", "evictable", "available", "held"];

/** The states of a pool as shares of its capacity, each [lo, hi]; null when nothing says how the pool is filled. */
function shares(pool) {
  const capacity = typeof pool.capacity === "number" && pool.capacity > 0 ? pool.capacity : null;
  if (capacity !== null && STATES.some((state) => state !== "held" && isKnown(pool[state]))) {
    return STATES.map((state) => bounds(pool[state]).map((end) => Math.min(end / capacity, 1)));
  }
  if (!isKnown(pool.used_ratio) && !isKnown(pool.resident_ratio)) return null;
  const [usedLow, usedHigh] = bounds(pool.used_ratio).map((end) => Math.min(end, 1));
  const [fullLow, fullHigh] = bounds(pool.resident_ratio).map((end) => Math.min(end, 1));
  return [[usedLow, Math.min(usedHigh, fullHigh)], [Math.max(0, fullLow - usedHigh), fullHigh - usedLow], [1 - fullHigh, 1 - Math.max(fullLow, usedLow)], [0, 0]];
}

/** What to paint: the proven least of each state, and one part for the rest, owned by every state that could be more. */
function segments(pool) {
  const known = shares(pool);
  if (known === null) return null;
  const parts = STATES.map((state, index) => ({ states: [state], share: known[index][0] }));
  const rest = 1 - parts.reduce((sum, part) => sum + part.share, 0);
  const open = STATES.filter((_, index) => known[index][1] - known[index][0] > 1e-9);
  if (rest > 1e-9 && open.length) parts.splice(STATES.indexOf(open[0]) + 1, 0, { states: open, share: rest });
  return parts.filter((part) => part.share > 1e-9);
}

const PATTERNS = new Set(["used-evictable", "used-available", "evictable-available"]);

function fill(states) {
  if (states.length === 1) return { class: states[0] };
  const name = states.join("-");
  return { fill: `url(#either${PATTERNS.has(name) ? `-${name}` : ""})` };
}

/** A horizontal bar of {share, ...attributes of a rectangle}; `label` is what it says to those who do not see it. */
export function bar(parts, label) {
  let left = 0;
  const boxes = (parts ?? []).map(({ share, ...look }) => {
    const box = h("rect", { ...look, x: `${left * 100}%`, width: `${share * 100}%`, height: "100%" });
    left += share;
    return box;
  });
  return h("svg", { class: parts === null ? "bar empty" : "bar", role: "img", "aria-label": label, width: "100%", height: "100%" }, boxes);
}

export function poolName(pool) {
  return pool.tier.toUpperCase() + (pool.pool === "full" || pool.pool === "kv" ? "" : ` ${pool.pool}`);
}

/** The share that says how full a tier is: of L1 what is used, of the tiers behind it what holds data. */
export function fullness(pool) {
  return pool.tier === "l1" ? pool.used_ratio : pool.resident_ratio;
}

/** The small bar of a row, with its share in figures. */
export function meter(pool, named) {
  const word = pool.tier === "l1" ? "used" : "filled";
  const text = isKnown(fullness(pool)) ? show(fullness(pool), "ratio") : "unknown";
  const parts = segments(pool)?.map(({ states, share }) => ({ share, ...fill(states) })) ?? null;
  return h("span", { class: "meter" }, bar(parts, `${poolName(pool)} ${text} ${word}`), h("span", { class: "figure", "aria-hidden": "true" }, text, named ? h("small", null, ` ${pool.pool}`) : null));
}

/** The large bar of a pool with every part in words. */
export function stack(pool) {
  const parts = segments(pool);
  const unit = pool.unit;
  const title = [h("h4", null, poolName(pool)), h("span", { class: "dim" }, isKnown(pool.capacity) ? `${show(pool.capacity, unit)}` : "capacity unknown")];
  const said = ["used", "evictable", "available", ...(pool.held === 0 ? [] : ["held"])].map((state) => `${state} ${show(pool[state], unit)}`);
  const words = parts === null ? filling(pool) : parts.map(({ states, share }) => legend(pool, states, share));
  const label = `${poolName(pool)}: ${said.join(", ")}; capacity ${show(pool.capacity, unit)}`;
  return h("div", { class: "pool", key: `${pool.tier} ${pool.pool}`, title: pool.source ? `from ${pool.source}` : null },
    h("div", { class: "pool-title" }, title),
    bar(parts?.map(({ states, share }) => ({ share, ...fill(states) })) ?? null, label),
    h("ul", { class: "legend" }, words));
}

function legend(pool, states, share) {
  const amount = typeof pool.capacity === "number" ? `${brief(share * pool.capacity, pool.unit)} (${show(share, "ratio")})` : show(share, "ratio");
  return h("li", { key: states.join() }, swatch(states), `${states.join(" or ")} `, h("b", null, amount));
}

/** What is still known of a pool that cannot be drawn. */
function filling(pool) {
  if (!isKnown(pool.resident)) return h("li", null, "content unknown");
  return h("li", null, h("b", null, show(pool.resident, pool.unit)), " hold data; what share that is cannot be said");
}

function swatch(states) {
  return h("svg", { class: "swatch", width: "10", height: "10", "aria-hidden": "true" }, h("rect", { ...fill(states), width: "10", height: "10" }));
}

/** The memory of a GPU, or its state in words. */
export function memory(gpu) {
  const { total, used, free, reserved } = gpu;
  const known = [["used", used], ["reserved", reserved], ["available", free]].filter(([, bytes]) => typeof bytes === "number");
  const size = typeof total === "number" ? `of ${show(total, "bytes")}` : "size unknown";
  if (typeof total !== "number" || total <= 0 || !known.length) return [bar(null, `memory unknown, ${size}`), h("p", { class: "legend" }, `memory unknown, ${size}`)];
  const parts = known.map(([state, bytes]) => ({ share: Math.min(bytes / total, 1), class: state }));
  const words = known.map(([state, bytes]) => [state, `${state === "available" ? "free" : state} `, show(bytes, "bytes")]);
  return [
    bar(parts, `${words.map(([, word, amount]) => word + amount).join(", ")} ${size}`),
    h("ul", { class: "legend" }, words.map(([state, word, amount]) => h("li", { key: state }, swatch([state]), word, h("b", null, amount))),
      h("li", null, size)),
  ];
}
