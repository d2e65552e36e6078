// What is watched: the GPUs with their memory, and the targets with what they fail to tell.

import { memory } from "./bars.js";
import { h } from "./dom.js";
import { badge, prose } from "./findings.js";
import { show } from "./format.js";

const natural = new Intl.Collator("en", { numeric: true });
const NVML = {
  "no-library": "This machine has no NVML library, so GPU memory is not watched.",
  "no-driver": "The NVIDIA driver is not loaded, so GPU memory is not watched.",
  "driver-mismatch": "The NVML library and the driver are of different versions; GPU memory cannot be read until the node is restarted.",
  unavailable: "NVML does not answer; GPU memory is unknown.",
  stuck: "NVML hangs; GPU memory is unknown.",
  off: "GPU watching is off.",
};

/** GPUs, MIG instances below their card. */
export function gpuList({ nvml, gpus }, parts) {
  const cards = gpus.filter(({ parent }) => !parent || !gpus.some(({ uuid }) => uuid === parent));
  return [
    nvml && nvml.state !== "ok" ? h("p", { key: "nvml", class: "dim" }, NVML[nvml.state] ?? nvml.state, nvml.detail ? ` (${nvml.detail})` : "") : null,
    cards.length ? h("ul", { key: "cards", class: "cards" }, cards.map((card) => gpuItem(card, gpus.filter(({ parent }) => parent === card.uuid), parts))) : null,
  ];
}

function gpuItem(gpu, instances, parts) {
  const key = `gpu ${gpu.uuid}`;
  const healthy = gpu.state === "ok" || gpu.state === "unified";
  return h("li", { key, class: "gpu" },
    h("div", { class: "card" },
      healthy ? badge("ok", gpu.state) : badge(gpu.state === "lost" ? "critical" : "unknown", gpu.state),
      h("div", null,
        h("h3", null, gpu.profile ? `MIG ${gpu.profile}` : `GPU ${gpu.index}`, h("small", null, ` ${gpu.host}`)),
        h("p", { class: "dim uuid" }, gpu.uuid),
        processes(gpu, key, parts)),
      h("div", null, memory(gpu), gpu.detail ? h("p", { class: "detail" }, gpu.detail) : null)),
    instances.length ? h("ul", { class: "instances" }, instances.map((instance) => gpuItem(instance, [], parts))) : null);
}

function processes(gpu, key, parts) {
  if (!gpu.processes?.length) return null;
  const owner = (mine) => (mine === true ? "watched engine" : mine === false ? "another process" : "owner unknown");
  return h("details", parts.fold(`${key} processes`),
    h("summary", null, gpu.processes.length === 1 ? "1 process" : `${gpu.processes.length} processes`),
    h("ul", null, gpu.processes.map(({ pid, used, mine }) => h("li", { key: String(pid) }, `pid ${pid}: ${show(used, "bytes")}, ${owner(mine)}`))));
}

/** Targets, failing ones first. */
export function targetList({ targets }, parts) {
  const order = targets.toSorted((a, b) => Number(a.ok) - Number(b.ok) || natural.compare(a.name, b.name));
  return [h("ul", { key: "targets", class: "targets" }, order.map((target) => targetItem(target, parts)))];
}

function targetItem({ name, url, ok, reason, detail, age_seconds: age, missing }, parts) {
  const key = `target ${name}`;
  return h("li", { key },
    h("div", { class: "target" },
      ok ? badge("ok", "answers") : badge(reason === "starting" || reason === null ? "pending" : "critical", reason ?? "not tried yet"),
      h("h3", null, name),
      h("span", { class: "dim url" }, url),
      h("span", { class: "age" }, typeof age === "number" ? `${show(Math.round(age), "seconds")} old` : "no sample yet")),
    !ok && detail ? h("p", { class: "detail" }, prose(detail)) : null,
    missing?.length
      ? h("details", { ...parts.fold(`${key} missing`) },
        h("summary", null, missing.length === 1 ? "1 series is missing" : `${missing.length} series are missing`),
        h("dl", { class: "missing" }, missing.map(({ series, why, enable }) => h("div", { key: series }, h("dt", null, h("code", null, series)), h("dd", null, prose(why)), h("dd", null, h("b", null, "To have it: "), prose(enable))))))
      : null);
}
