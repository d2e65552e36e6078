// Asks the daemon every few seconds and draws what it says. All state of the page is here.

import { draw, h } from "./dom.js";
import { engineList, engineRows } from "./engines.js";
import { badge, findingKey, findingList, prose } from "./findings.js";
import { clock } from "./format.js";
import { gpuList, targetList } from "./hosts.js";

const EVERY = 3000; // ms between two looks
const HISTORY_EVERY = (engines) => (engines > 20 ? 15000 : 5000); // ms between two looks at the history
const SLOWEST = 24000; // ms, the longest pause while the daemon does not answer
const PATIENCE = 10000; // ms until an answer counts as lost
const FILTER_FROM = 6; // engines that make a filter worth its room
const OPEN_ALL = 2; // engines that are few enough to be shown open

const state = { verdict: null, history: null, historyAt: -Infinity, lostSince: null, why: "", failures: 0, filter: "", order: null, opened: new Map(), led: null, leading: true };
const element = (id) => document.getElementById(id);

/** What is folded open, by key; the reader's choice outlives every refresh. */
const parts = {
  isOpen: (key) => state.opened.get(key) === true,
  fold: (key) => ({ open: parts.isOpen(key), ontoggle: ({ currentTarget }) => parts.open(key, currentTarget.open) }),
  open: (key, open = true) => {
    if (parts.isOpen(key) === open) return;
    if (key === state.led) state.leading = false;
    state.opened.set(key, open);
    render();
  },
  /** The worst finding stands open, also when another takes its place, until the reader closes it. */
  lead: (key) => {
    if (!state.leading || key === state.led) return;
    state.led = key;
    state.opened.set(key, true);
  },
};

async function ask(path) {
  const response = await fetch(path, { cache: "no-store", headers: { Accept: "application/json" }, signal: AbortSignal.timeout(PATIENCE) });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  return response.json();
}

async function refresh() {
  try {
    state.verdict = await ask("diagnose");
    Object.assign(state, { failures: 0, lostSince: null, seen: new Date() });
    render(); // the verdict does not wait for the history
    announce(state.verdict);
    if (performance.now() - state.historyAt >= HISTORY_EVERY(state.verdict.engines.length)) {
      state.history = await ask("history").catch(() => state.history); // lines are no reason to call the daemon lost
      state.historyAt = performance.now();
      render();
    }
  } catch (error) {
    state.failures += 1;
    state.lostSince ??= new Date();
    state.why = error.message.startsWith("HTTP") ? ` (${error.message})` : "";
    render();
  }
}

let timer = null;
let asking = false;

/** Look now and again later, slower while nobody answers, not at all while nobody watches. */
async function watch() {
  clearTimeout(timer);
  if (document.hidden || asking) return;
  asking = true;
  await refresh();
  asking = false;
  clearTimeout(timer);
  timer = setTimeout(watch, Math.min(EVERY * 2 ** state.failures, SLOWEST));
}

/** What is new, said once to those who listen: the figures in the summary change with every look, and are no news. */
function announce({ status, summary, findings }) {
  const firing = findings.filter((finding) => finding.status === "firing").map(findingKey);
  const news = JSON.stringify([status, firing.toSorted()]);
  draw(element("news"), news === state.news ? [] : [`${status}: ${summary}`]);
  state.news = news;
}

function render() {
  connection();
  const { verdict } = state;
  if (verdict === null) return;
  document.title = `${state.lostSince === null ? verdict.status : "connection lost"} · kvwatch`;
  const counts = { findings: verdict.findings.filter(({ status }) => status !== "unknown").length, engines: verdict.engines.length, gpus: verdict.gpus.length, targets: verdict.targets.length };
  draw(element("summary"), [banner(verdict)]);
  draw(element("findings"), [...findingList(verdict.findings, parts), counts.targets ? null : h("p", { key: "empty", class: "nobody" }, ...nobody())]);
  engines(verdict);
  section("gpus", counts.gpus > 0 || (verdict.nvml && verdict.nvml.state !== "ok" && counts.engines > 0), () => gpuList(verdict, parts));
  section("targets", counts.targets > 0, () => targetList(verdict, parts));
  const names = [["findings", "Findings"], ["engines", "Engines"], ["gpus", "GPUs"], ["targets", "Targets"]];
  draw(element("sections"), names.filter(([id]) => counts[id]).map(([id, name]) => h("a", { key: id, href: `#${id}` }, `${name} `, h("b", null, String(counts[id])))));
}

function section(id, wanted, list) {
  element(id).hidden = !wanted;
  if (wanted) draw(element(`${id.slice(0, -1)}-list`), list());
}

function engines(verdict) {
  const list = element("engine-list");
  const held = list.matches(":hover") || list.contains(document.activeElement) ? state.order : null;
  const rows = engineRows(verdict, state.filter, held);
  if (state.order === null) for (const { key } of verdict.engines.length <= OPEN_ALL ? rows : rows.filter(({ level }) => level === "critical").slice(0, 1)) state.opened.set(key, true);
  if (verdict.engines.length) state.order = rows.map(({ key }) => key);
  element("filter").closest("label").hidden = verdict.engines.length < FILTER_FROM && state.filter === "";
  section("engines", verdict.engines.length > 0, () => engineList(rows, state.history, parts));
}

function banner(verdict) {
  return h("div", { class: `banner ${verdict.status}` }, h("h2", null, badge(verdict.status)), h("p", null, prose(verdict.summary)));
}

function nobody() {
  return ["Looking for an engine on 127.0.0.1:8000 (vLLM) and 127.0.0.1:30000 (SGLang). To watch another, start ", h("code", null, "kvwatch serve ", h("span", { class: "flag" }, "--target"), " http://HOST:PORT/metrics"), " or name it under ", h("code", null, "targets"), " in the configuration."];
}

function connection() {
  const lost = state.lostSince !== null;
  const text = lost
    ? `Connection lost since ${clock(state.lostSince)}${state.why}; ${state.verdict ? "last known state below" : "trying again"}`
    : state.verdict ? "live" : "connecting";
  draw(element("connection"), [h("span", { class: lost ? "lost" : "live" }, text)]);
  draw(element("updated"), state.seen ? [clock(state.seen)] : []);
  document.documentElement.classList.toggle("stale", lost);
}

element("filter").addEventListener("input", ({ target }) => {
  state.filter = target.value;
  render();
});
document.addEventListener("visibilitychange", watch);
window.addEventListener("online", watch);
watch();
