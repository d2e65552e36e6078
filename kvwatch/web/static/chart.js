// The last minutes as lines. `/history` gives, for every pool owner, seconds before now (descending) and one list of numbers or
// nulls for each signal; a null is a gap in the line, never a 0.

import { h } from "./dom.js";
import { show } from "./format.js";

const WIDTH = 300;
const HEIGHT = 72;

/** A round number at or above the greatest value. */
function ceiling(greatest) {
  if (greatest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(greatest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= greatest);
}

/** Runs of samples without a gap, as lists of indices: a gap is a null, or a pause of three usual steps. */
function runs(values, ages) {
  const steps = ages.slice(1).map((age, index) => ages[index] - age);
  const pause = 3 * (steps.toSorted((a, b) => a - b)[Math.floor(steps.length / 2)] ?? 0);
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index > 0 && values[index - 1] !== null && steps[index - 1] <= pause) found.at(-1).push(index);
    else found.push([index]);
  });
  return found;
}

/** The least of a few round spans that holds all samples, so that a young history is not a sliver at the edge. */
function span(ages, window) {
  return [60, 180, 360, window].find((seconds) => seconds >= Math.min(ages[0] ?? window, window));
}

function words(line, unit, ages) {
  const known = line.values.filter((value) => value !== null);
  if (!known.length) return `${line.label}: no data`;
  const gaps = runs(line.values, ages).length > 1 ? ", with gaps" : "";
  return `${line.label}: now ${show(line.now, unit)}, lowest ${show(Math.min(...known), unit)}, highest ${show(Math.max(...known), unit)}${gaps}`;
}

/**
 * One chart. `lines` are {label, look, now, values, low?}: with `low` the area between both lists is shaded, because the value is only
 * known to be in it; `now` is the verdict's own figure. `level` is a horizontal line to compare with.
 */
export function chart({ title, unit, top, lines: given, level, ages, window }) {
  const lines = given.map((line) => ({ ...line, values: line.values ?? [] }));
  const seconds = span(ages, window);
  const shown = lines.filter((line) => line.values.some((value) => value !== null));
  const greatest = Math.max(0, level?.value ?? 0, ...shown.flatMap((line) => line.values.filter((value) => value !== null)));
  const ceil = top ?? ceiling(greatest);
  const x = (index) => ((1 - Math.min(ages[index], seconds) / seconds) * WIDTH).toFixed(1);
  const y = (value) => ((1 - Math.min(value / ceil, 1)) * HEIGHT).toFixed(1);
  const trace = (values, indices) => indices.map((index) => `${x(index)} ${y(values[index])}`).join("L");
  const drawn = shown.flatMap((line) => runs(line.values, ages).map((run) => {
    const upper = trace(line.values, run);
    if (!line.low) return h("path", { class: `line ${line.look}`, d: run.length === 1 ? `M${upper}h0` : `M${upper}` });
    const lower = trace(line.low.map((value) => value ?? 0), run.toReversed());
    return h("path", { class: `band ${line.look}`, d: `M${upper}L${lower}Z` });
  }));
  const label = `${title} over the last ${show(seconds, "seconds")}. ${lines.map((line) => words(line, unit, ages)).join(". ")}`;
  return h("figure", { class: "chart", key: title },
    h("figcaption", null, lines.map((line) => h("span", null, h("i", { class: `key ${line.look}` }), `${line.label} `, h("b", null, show(line.now, unit)))), level && h("span", null, h("i", { class: "key level" }), level.label)),
    h("div", { class: "plot" },
      h("span", { class: "scale", "aria-hidden": "true" }, shown.length ? show(ceil, unit) : ""),
      h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
        h("path", { class: "axis", d: `M0 ${HEIGHT}H${WIDTH}M0 0H${WIDTH}M${WIDTH / 3} 0V${HEIGHT}M${(WIDTH * 2) / 3} 0V${HEIGHT}` }),
        level && typeof level.value === "number" && h("path", { class: "level", d: `M0 ${y(level.value)}H${WIDTH}` }),
        drawn),
      shown.length ? null : h("span", { class: "nothing" }, "no data")),
    h("div", { class: "span", "aria-hidden": "true" }, [3, 2, 1].map((third) => h("span", null, `−${show((seconds * third) / 3, "seconds")}`)), h("span", null, "now")));
}
