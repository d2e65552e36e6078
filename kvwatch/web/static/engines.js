// One row for each pool owner, worst first; a row opens into its pools, its figures and its last minutes.

import { fullness, meter, stack } from "./bars.js";
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { badge, levelOf, ownerKey, prose, rankOf } from "./findings.js";
import { bounds, isKnown, show } from "./format.js";

const natural = new Intl.Collator("en", { numeric: true });
const CALM_ROWS = 20; // rows without trouble that are shown before somebody asks for all

const UNEASY = { unknown: "unknown", stalled: "warning" }; // states that are not fine even before a finding says so

/** What the rest of the verdict says about an engine. */
function judge(engine, verdict) {
  const key = ownerKey(engine);
  const about = verdict.findings.filter(({ subject }) => subject.target === engine.target && (!subject.engine || ownerKey(subject) === key));
  const worst = about.toSorted((a, b) => rankOf(levelOf(a)) - rankOf(levelOf(b)))[0];
  const target = verdict.targets.find(({ name }) => name === engine.target);
  const level = worst && worst.status !== "unknown" ? levelOf(worst) : (UNEASY[engine.state] ?? "ok");
  return { engine, key, level, rules: about.filter(({ status }) => status !== "unknown").map(({ rule }) => rule), failing: target && !target.ok ? target : null };
}

const name = ({ target, rank }) => `${target} ${rank}`;
const model = (engine) => engine.model ?? (engine.engine === "lmcache" ? "LMCache server" : "model unknown");

function matches({ engine, level, rules }, filter) {
  const text = [engine.target, engine.engine, model(engine), engine.state, `rank ${engine.rank}`, level, ...rules].join(" ").toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** The rows to show, worst first. `keep` is an order to hold on to: a list must not move under the hand of its reader. */
export function engineRows(verdict, filter, keep) {
  const rows = verdict.engines.map((engine) => judge(engine, verdict)).filter((row) => matches(row, filter));
  const place = new Map((keep ?? []).map((key, index) => [key, index]));
  const order = ({ key, level, engine }) => [place.get(key) ?? Infinity, rankOf(level), name(engine)];
  return rows.toSorted((a, b) => {
    const [[placeA, rankA, nameA], [placeB, rankB, nameB]] = [order(a), order(b)];
    return (placeA < placeB ? -1 : placeA > placeB ? 1 : 0) || rankA - rankB || natural.compare(nameA, nameB);
  });
}

export function engineList(rows, history, parts) {
  const past = new Map((history?.engines ?? []).map((series) => [ownerKey(series), series]));
  const troubled = rows.filter(({ level }) => level !== "ok").length;
  const shown = parts.isOpen("all engines") ? rows : rows.slice(0, Math.max(troubled, CALM_ROWS));
  return [
    h("div", { class: "row columns", key: "columns", "aria-hidden": "true" }, ["", "Engine", "State", "Run / wait", "L1 used", "L2 filled", "TTFT p99"].map((text) => h("span", null, text))),
    h("ul", { class: "rows", key: "rows" }, shown.map((row) => item(row, history, past, parts))),
    rows.length ? null : h("p", { key: "none", class: "dim" }, "No engine matches the filter."),
    shown.length < rows.length
      ? h("button", { key: "more", type: "button", onclick: () => parts.open("all engines") }, `Show ${rows.length - shown.length} more without trouble`)
      : null,
  ];
}

const items = new WeakMap(); // engine -> how it was drawn, so that a filter or a fold costs only the rows it changes

function item(row, history, past, parts) {
  const open = parts.isOpen(row.key);
  const before = items.get(row.engine);
  if (before && before.open === open && (!open || before.history === history)) return before.node;
  const node = h("li", { key: row.key },
    h("details", { class: `engine ${row.level}`, ...parts.fold(row.key) }, summary(row), open ? inside(row, history, past.get(row.key)) : null));
  items.set(row.engine, { open, history, node });
  return node;
}

const hidden = (text) => h("span", { class: "hidden" }, text);

function summary({ engine, level, rules, failing }) {
  const ttft = engine.ttft?.p99 ?? null;
  return h("summary", { class: "row" },
    badge(level),
    h("span", { class: "who" }, h("h3", { title: engine.target }, engine.target, h("small", null, ` rank ${engine.rank}`)),
      h("span", { class: "dim" }, `${engine.engine} · ${model(engine)}`),
      rules.length ? h("span", { class: "rules" }, rules[0], rules.length > 1 ? ` +${rules.length - 1}` : "") : null),
    h("span", { class: "state" }, engine.state, failing ? h("small", { class: "failing" }, `scrape fails: ${failing.reason}`) : null),
    h("span", { class: "queue" }, h("i", { class: "tag" }, "run / wait "), ...queue(engine)),
    tier(engine, "l1"),
    tier(engine, "l2"),
    h("span", { class: "ttft" }, h("i", { class: "tag" }, "TTFT p99 "), hidden("time to first token p99 "), isKnown(ttft) ? show(ttft, "seconds") : nothing(engine)));
}

/** An LMCache server runs no requests; of an engine that does, it is not known. */
const nothing = (engine) => h("span", { class: "dim" }, engine.engine === "lmcache" ? "none" : "unknown");

function queue(engine) {
  const { running, waiting } = engine.requests ?? {};
  if (!isKnown(running) && !isKnown(waiting)) return [hidden("requests "), nothing(engine)];
  return [show(running), hidden(" running,"), " / ", show(waiting), hidden(" waiting")];
}

/** Of several pools of a tier the fullest is the one that binds. */
function fullest(engine, which) {
  const pools = engine.pools.filter((pool) => pool.tier === which);
  return pools.toSorted((a, b) => bounds(fullness(b))[0] - bounds(fullness(a))[0])[0];
}

function tier(engine, which) {
  const pool = fullest(engine, which);
  const several = engine.pools.filter((other) => other.tier === which).length > 1;
  return h("span", { class: which }, h("i", { class: "tag" }, which.toUpperCase()), pool ? meter(pool, several) : h("span", { class: "dim" }, without(engine, which)));
}

/** Only of an engine that tells about itself is it known that it lacks a tier; every engine but an LMCache server has an L1. */
function without({ engine, state }, which) {
  const silent = state === "unknown" || state === "starting";
  return silent || (which === "l1" && engine !== "lmcache") ? "unknown" : `no ${which.toUpperCase()}`;
}

function inside({ engine, failing }, history, series) {
  const tiers = ["l1", "l2", "l3"].map((which) => engine.pools.filter((pool) => pool.tier === which)).filter((pools) => pools.length);
  return h("div", { class: "body" },
    failing ? h("p", { class: "failing" }, `The last scrape failed (${failing.reason}); ${engine.state === "unknown" ? "its figures are too old to show" : `these figures are ${show(failing.age_seconds, "seconds")} old`}.`) : null,
    h("div", { class: "tiers" }, tiers.map((pools) => h("div", { key: pools[0].tier }, pools.map(stack)))),
    figures(engine),
    series ? charts(engine, series, history.window_seconds) : h("p", { class: "dim" }, "No history yet."),
    engine.notes?.length
      ? h("div", { class: "notes" }, h("h4", null, "Notes on the data"), h("ul", null, engine.notes.map((note) => h("li", null, h("code", null, note.code), " ", prose(note.text)))))
      : null);
}

function figures(engine) {
  const { requests = {}, ttft, capacity, prefix_cache: prefix } = engine;
  const [low, high] = [bounds(requests.running), bounds(requests.waiting)];
  const demand = isKnown(requests.running) || isKnown(requests.waiting) ? [low[0] + high[0], Number.isFinite(low[1] + high[1]) ? low[1] + high[1] : null] : null;
  const ceiling = isKnown(capacity?.concurrency_ceiling) ? bounds(capacity.concurrency_ceiling).map((end) => (Number.isFinite(end) ? Math.floor(end) : null)) : null;
  const excess = low[0] + high[0] - bounds(ceiling)[1];
  const why = [["waiting_capacity", "for capacity"], ["waiting_deferred", "deferred"]].filter(([key]) => bounds(requests[key])[0] > 0).map(([key, word]) => `${show(requests[key])} ${word}`);
  const list = [
    ["Running", show(requests.running)],
    ["Waiting", show(requests.waiting), why.join(", ")],
    ["Demand / ceiling", isKnown(demand) || isKnown(ceiling) ? `${show(demand)} / ${show(ceiling)}` : "unknown", excess > 0 ? `${show(excess)} more than fit` : "requests at once"],
    ["TTFT p50", show(ttft?.p50, "seconds")],
    ["TTFT p99", show(ttft?.p99, "seconds"), isKnown(ttft?.baseline_p99) ? `calm ${show(ttft.baseline_p99, "seconds")}` : "no calm baseline yet"],
    ["Preemptions", show(engine.preemptions_per_second, "per second")],
    ["Generated", show(engine.generation_tokens_per_second, "tokens/s")],
    ["Prefix cache hits", show(prefix?.hit_ratio, "ratio")],
    ["KV per token", show(capacity?.kv_bytes_per_token, "bytes")],
    ["Mean sequence", show(capacity?.mean_sequence_tokens, "tokens")],
  ];
  const told = engine.engine === "lmcache" ? list.filter(([, value]) => value !== "unknown") : list;
  return h("dl", { class: "figures" }, told.map(([term, value, remark]) => h("div", null, h("dt", null, term), h("dd", null, h("b", { class: value === "unknown" ? "dim" : null }, value), remark ? h("small", null, remark) : null))));
}

function charts(engine, { age_seconds: ages, series }, window) {
  const at = { ages, window };
  const { requests, ttft } = engine;
  const [l1, l2] = ["l1", "l2"].map((which) => fullest(engine, which));
  const past = (values) => values?.some((value) => value !== null); // what an engine had is drawn, also when it is silent now
  return h("div", { class: "charts" },
    chart({ ...at, title: "Tiers", unit: "ratio", top: 1, lines: [
      ...(l1 || past(series.l1_used_ratio) ? [{ label: "L1 used", look: "first", now: l1?.used_ratio, values: series.l1_used_ratio }] : []),
      ...(l2 || past(series.l2_resident_ratio_max) ? [{ label: "L2 filled", look: "second", now: l2?.resident_ratio, values: series.l2_resident_ratio_max, low: series.l2_resident_ratio_min }] : []),
    ] }),
    chart({ ...at, title: "Requests", unit: "count", lines: [
      { label: "waiting", look: "first", now: requests?.waiting, values: series.requests_waiting },
      { label: "running", look: "second", now: requests?.running, values: series.requests_running },
    ] }),
    chart({ ...at, title: "Time to first token, p99", unit: "seconds", lines: [{ label: "TTFT p99", look: "first", now: ttft?.p99, values: series.ttft_p99 }],
      level: isKnown(ttft?.baseline_p99) ? { value: bounds(ttft.baseline_p99)[0], label: `calm ${show(ttft.baseline_p99, "seconds")}` } : null }),
    chart({ ...at, title: "Generated tokens", unit: "tokens/s", lines: [{ label: "generated", look: "first", now: engine.generation_tokens_per_second, values: series.token_rate }] }));
}

