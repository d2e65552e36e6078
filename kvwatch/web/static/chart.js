// The last minutes as lines. `/history` gives, for every pool owner, seconds before now (descending) and one list of numbers or
// nulls for each signal; a null is a gap in the line, never a 0.

import { h } from "./dom.js";
import { show } from "./format.js";

const WIDTH = 300;
const HEIGHT = 72;

const last = (values) => values.findLast((value) => value !== null) ?? null;

/** A round number at or above the greatest value. */
function ceiling(greatest) {
  if (greatest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(greatest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= greatest);
}

/** Runs of neighbouring samples without a gap, as lists of indices. */
function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index > 0 && values[index - 1] !== null) found.at(-1).push(index);
    else found.push([index]);
  });
  return found;
}

function words(line, unit) {
  const known = line.values.filter((value) => value !== null);
  if (!known.length) return `${line.label}: no data`;
  const gaps = known.length < line.values.length ? ", with gaps" : "";
  const now = line.values.at(-1) === null ? "no value now" : `now ${show(line.values.at(-1), unit)}`;
  return `${line.label}: ${now}, lowest ${show(Math.min(...known), unit)}, highest ${show(Math.max(...known), unit)}${gaps}`;
}

/**
 * One chart. `lines` are {label, look, values, low?}: with `low` the area between both lists is shaded, because the value is only known
 * to be in it. `level` is a horizontal line to compare with.
 */
export function chart({ title, unit, top, lines, level, ages, span }) {
  const shown = lines.filter((line) => line.values?.some((value) => value !== null));
  const greatest = Math.max(0, level?.value ?? 0, ...shown.flatMap((line) => line.values.filter((value) => value !== null)));
  const ceil = top ?? ceiling(greatest);
  const x = (index) => ((1 - Math.min(ages[index], span) / span) * WIDTH).toFixed(1);
  const y = (value) => ((1 - Math.min(value / ceil, 1)) * HEIGHT).toFixed(1);
  const trace = (values, indices) => indices.map((index) => `${x(index)} ${y(values[index])}`).join("L");
  const drawn = shown.flatMap((line) => runs(line.values).map((run) => {
    const upper = trace(line.values, run);
    if (!line.low) return h("path", { class: `line ${line.look}`, d: run.length === 1 ? `M${upper}h0` : `M${upper}` });
    const lower = trace(line.low.map((value) => value ?? 0), run.toReversed());
    return h("path", { class: `band ${line.look}`, d: `M${upper}L${lower}Z` });
  }));
  const label = `${title} over the last ${show(span, "seconds")}. ${lines.map((line) => words({ ...line, values: line.values ?? [] }, unit)).join(". ")}`;
  return h("figure", { class: "chart", key: title },
    h("figcaption", null, lines.map((line) => h("span", null, h("i", { class: `key ${line.look}` }), `${line.label} `, h("b", null, current(line, unit)))), level && h("span", null, h("i", { class: "key level" }), level.label)),
    h("div", { class: "plot" },
      h("span", { class: "scale", "aria-hidden": "true" }, shown.length ? show(ceil, unit) : ""),
      h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
        h("path", { class: "axis", d: `M0 ${HEIGHT}H${WIDTH}M0 0H${WIDTH}M${WIDTH / 3} 0V${HEIGHT}M${(WIDTH * 2) / 3} 0V${HEIGHT}` }),
        level && typeof level.value === "number" && h("path", { class: "level", d: `M0 ${y(level.value)}H${WIDTH}` }),
        drawn),
      shown.length ? null : h("span", { class: "nothing" }, "no data")),
    h("div", { class: "span", "aria-hidden": "true" }, [3, 2, 1].map((third) => h("span", null, `−${show((span * third) / 3, "seconds")}`)), h("span", null, "now")));
}

function current(line, unit) {
  const value = line.values ? line.values.at(-1) ?? null : null;
  const low = line.low?.at(-1);
  if (value === null) return last(line.values ?? []) === null ? "no data" : "no value now";
  return show(typeof low === "number" && low < value ? [low, value] : value, unit);
}
