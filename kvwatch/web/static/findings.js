// Findings as a tree: a root with its effects below it, what to do first, then why and on what evidence.

import { h } from "./dom.js";
import { operator, show } from "./format.js";

const subjectOf = ({ target, engine, model, rank }) => JSON.stringify([target, engine ?? null, model ?? null, rank ?? null]);
export const ownerKey = subjectOf;
export const findingKey = (finding) => `${finding.rule} ${subjectOf(finding.subject)}`;

/** How bad it is, for order and for the eye: 0 is worst. */
const LEVELS = ["critical", "warning", "pending", "unknown", "info", "ok"];
export const levelOf = (finding) => (finding.status === "firing" ? finding.severity : finding.status);
export const rankOf = (level) => LEVELS.indexOf(level);

export function icon(level) {
  return h("svg", { class: `icon ${level}`, width: "16", height: "16", "aria-hidden": "true" }, h("use", { href: `#icon-${level}` }));
}

export function badge(level, word = level) {
  return h("span", { class: `badge ${level}` }, icon(level), word);
}

/** Code spans between backticks and flags such as --max-num-seqs, as code. */
export function prose(text) {
  return String(text).split(/(`[^`]+`|(?<![\w-])--[a-z][\w-]{1,40}(?![\w-]))/).map((part, index) => (index % 2 ? h("code", part[0] === "-" ? { class: "flag" } : null, part.replaceAll("`", "")) : part));
}

/** A finding's effects are those that name it as their cause: on the same subject, else on the same target. */
function tree(findings) {
  const nodes = findings.map((finding) => ({ finding, effects: [] }));
  const roots = [];
  for (const node of nodes) {
    const causes = nodes.filter((other) => other !== node && other.finding.rule === node.finding.caused_by);
    const subject = node.finding.subject;
    const cause = causes.find((other) => subjectOf(other.finding.subject) === subjectOf(subject))
      ?? causes.find((other) => other.finding.subject.target === subject.target);
    (cause?.effects ?? roots).push(node);
  }
  return roots;
}

/** All findings: the tree of what fires or is pending, then what could not be judged, folded away. */
export function findingList(findings, parts) {
  const unknown = findings.filter((finding) => finding.status === "unknown");
  const roots = tree(findings.filter((finding) => finding.status !== "unknown"));
  if (roots.length) parts.lead(findingKey(roots[0].finding));
  return [
    roots.length ? h("ul", { class: "findings", key: "known" }, roots.map((node) => branch(node, parts))) : null,
    unknown.length
      ? h("details", { class: "unjudged", key: "unknown", ...parts.fold("unjudged") },
        h("summary", null, icon("unknown"), `Could not be judged (${unknown.length})`),
        h("ul", { class: "findings" }, unknown.map((finding) => branch({ finding, effects: [] }, parts))))
      : null,
  ];
}

function branch({ finding, effects }, parts, sameAs) {
  const key = findingKey(finding);
  const level = levelOf(finding);
  return h("li", { key },
    h("details", { class: `finding ${level}`, ...parts.fold(key) },
      h("summary", null,
        badge(level),
        h("div", null, h("h3", null, finding.title), sameAs === subjectOf(finding.subject) ? null : h("p", { class: "dim" }, subject(finding.subject))),
        h("span", { class: "since" }, since(finding))),
      parts.isOpen(key) ? body(finding) : null),
    effects.length
      ? h("div", { class: "effects" }, h("p", { class: "dim" }, effects.length === 1 ? "Its effect" : "Its effects"), h("ul", { class: "findings" }, effects.map((node) => branch(node, parts, subjectOf(finding.subject)))))
      : null);
}

function subject({ target, engine, model, rank }) {
  return [target, engine, rank !== null && rank !== undefined ? `rank ${rank}` : null, model].filter(Boolean).join(" · ");
}

function since(finding) {
  const span = typeof finding.since_seconds === "number" ? `for ${show(Math.round(finding.since_seconds), "seconds")}` : "";
  return finding.status === "firing" ? span : [finding.severity, span].filter(Boolean).join(", ");
}

function body(finding) {
  return h("div", { class: "body" },
    finding.remedy?.length
      ? h("div", { class: "remedy" }, h("h4", null, "What to do, in this order"),
        h("ol", null, finding.remedy.map((advice) => h("li", null, h("strong", null, prose(advice.do)), advice.because ? h("span", { class: "because" }, prose(advice.because)) : null))))
      : null,
    h("div", { class: "proof" },
      h("h4", null, "Why"),
      h("p", null, prose(finding.explanation)),
      finding.evidence?.length ? [h("h4", null, "Evidence"), evidence(finding.evidence)] : null,
      finding.missing?.length ? h("p", { class: "missing" }, "Not known: ", finding.missing.map((signal, index) => [index ? ", " : "", h("code", null, signal)])) : null,
      h("p", { class: "rule" }, h("code", null, finding.rule), finding.reason ? ` (${finding.reason})` : "", " · ",
        h("a", { href: `runbook/${encodeURIComponent(finding.rule)}` }, "runbook"))));
}

function evidence(terms) {
  return h("table", { class: "evidence" },
    h("thead", { class: "hidden" }, h("tr", null, ["signal", "value", "condition"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, terms.map(({ signal, value, op, limit, unit }) => h("tr", null,
      h("th", { scope: "row" }, h("code", null, signal)),
      h("td", null, h("b", null, show(value, unit))),
      h("td", { class: "dim" }, unit === "condition" ? "" : `${operator(op)} ${show(limit, unit)}`)))));
}
