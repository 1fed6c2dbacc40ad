// The parts of the node page: GPUs, NICs with their VFs and neighbors, the kubelet's resources, health.

import { affinityPicture } from "./affinity_picture.js";
import { bits, duration, el, gib, pairs, svg, table } from "./dom.js";
import { few } from "./parts.js";
import { amount, sparkline } from "./sparkline.js";
import { SHAPES, STATES } from "./symbols.js";

const BY_WORD = Object.fromEntries(Object.values(STATES).map((state) => [state.word, state]));

/** The symbol of a state, and its word. */
export function stateOf(word, withWord = true) {
  const state = BY_WORD[word] ?? (word === "unhealthy" ? { ...STATES.x } : STATES["?"]);
  const picture = svg("svg", { class: "symbol", viewBox: "-1 -1 12 12", "aria-hidden": "true" }, svg("path", { d: SHAPES[state.shape] }));
  picture.firstChild.style.fill = `var(${state.color})`;
  return withWord ? el("span", { class: "statesign" }, picture, ` ${word}`) : picture;
}

/** `told`: the names of the devices whose reasons stand at the top of the page. */
export function gpuCards(node, told) {
  const { gpus, obstacle } = node.gpus;
  if (!gpus.length) return [el("h2", { text: "GPUs" }), el("p", { class: "quiet", text: "No GPU is known on this node." })];
  return [
    el("h2", {}, "GPUs", el("span", { class: "quiet", text: oneModel(node) ? ` ${gpus.length} × ${oneModel(node)}` : "" })),
    obstacle && el("p", { class: "quiet", text: `How much the pods use is not known: ${obstacle}.` }),
    el("div", { class: "tiles" }, gpus.map((gpu) => {
      const place = node.places.find((entry) => entry.uuid === gpu.uuid);
      return tile(`GPU ${gpu.index}`, "", gpu.state, loadOf(gpu),
        gpu.memory_bytes ? memoryBar(gpu) : null,
        told.has(`GPU ${gpu.index}`) ? aboveText() : reasonList(place?.reasons ?? []),
        pairs(
          ["Model", oneModel(node) ? "" : place?.name],
          ["Load", gpu.utilization !== null && (gpu.old_seconds === null ? amount(gpu.utilization, "of the time")
            : el("span", { class: "quiet", text: `${amount(gpu.utilization, "of the time")} ${age(gpu)}` }))],
          ["Devices", gpu.resource && `${gpu.slices} of ${gpu.resource}${gpu.free === null ? "" : `, ${gpu.free} free`}`],
          ["PCI address", place?.address],
          ["UUID", el("span", { class: "mono", text: gpu.uuid })],
        ),
        curves(node, gpu.uuid));
    })),
  ];
}

/** The age of the values of a GPU that is not measured any more. */
function age(gpu) {
  return `(${duration(gpu.old_seconds)} old)`;
}

/** The memory of a GPU: what each pod was granted, with a mark at what it uses. */
function memoryBar(gpu) {
  const share = (bytes) => Math.max(0, Math.min(100, (100 * bytes) / gpu.memory_bytes));
  const bar = el("div", { class: "memory", role: "img", "aria-label": `${gib(gpu.memory_bytes)}, ${gpu.pods.length} pods` });
  gpu.pods.forEach((pod, i) => {
    const part = el("div", { class: `part pattern${i % 4}`, title: `${pod.namespace}/${pod.pod}: ${gib(pod.granted_bytes)} granted` });
    part.style.width = `${share(pod.granted_bytes || pod.used_bytes || 0)}%`;
    if (pod.used_bytes !== null && pod.granted_bytes) {
      const used = el("i");
      used.style.width = `${Math.min(100, (100 * pod.used_bytes) / pod.granted_bytes)}%`;
      part.append(used);
    }
    bar.append(part);
  });
  const used = gpu.used_bytes === null ? "" : `${gib(gpu.used_bytes)} used${gpu.old_seconds === null ? "" : ` ${age(gpu)}`} · `;
  const granted = gpu.granted_bytes === null ? "" : `${gib(gpu.granted_bytes)} granted · `;
  return el("div", {}, bar, el("p", { class: "quiet", text: `${used}${granted}${gib(gpu.memory_bytes)}` }),
    el("ul", { class: "pods" }, gpu.pods.map((pod, i) => el("li", {}, el("span", { class: `part pattern${i % 4}` }), ` ${[pod.namespace, pod.pod].filter(Boolean).join("/")}`,
      el("span", { class: "quiet", text: ` ${gib(pod.granted_bytes)}${pod.used_bytes === null ? "" : `, uses ${gib(pod.used_bytes)}`}` }))),
    gpu.outside.map((process) => el("li", { text: `process ${process.pid} ${process.name}, in no pod: ${gib(process.memory_bytes)}` }))));
}

/** Rails first, as on the map. */
export function byRail(nics) {
  return [...nics].sort((a, b) => (a.rail ?? 1e9) - (b.rail ?? 1e9));
}

/** `told`: as for `gpuCards`. */
export function nicCards(node, told) {
  const known = node.resources.every((resource) => resource.held !== null);
  return [
    el("h2", { text: "NICs" }),
    el("div", { class: "tiles" }, byRail(node.nics).map((nic) => tile(nic.name, nic.netdev === nic.name ? "" : nic.netdev, nic.state, shortOf(nic, known),
      nic.allocatable ? null : el("p", { class: "withdrawn", text: "withdrawn: the kubelet gives its VFs to no new pod" }),
      told.has(nic.name) ? aboveText() : reasonList(nic.reasons),
      ...nic.neighbors.map((neighbor) => el("p", { class: "neighbor" }, "↔ ", el("b", { text: neighbor.system_name ?? neighbor.chassis_id.value }),
        ` ${neighbor.port_id.value}`, el("span", { class: "quiet", text: [neighbor.port_description, neighbor.stale && "expired"].filter(Boolean).map((text) => ` · ${text}`).join("") }))),
      nic.neighbors.length ? null : el("p", { class: "quiet", text: "no neighbor is known" }),
      ...nic.remarks.map((remark) => el("div", { class: "reason" }, el("b", { text: remark.key }), el("p", { text: remark.detail }))),
      pairs(
        ["Netdev", nic.netdev],
        ["Rail", nic.rail],
        ["Speed", bits(nic.speedMbps)],
        ["Carrier", nic.carrier === null ? "" : nic.carrier ? "yes" : "no"],
        ["MTU", nic.mtu],
        ["PCI address", nic.address],
        ["RDMA", nic.rdma],
        ["Driver", nic.driver],
        ["Default route", nic.defaultRoute && "yes: never offered"],
      ),
      curves(node, nic.address),
      vfTable(nic, known)))),
  ];
}

/** `known`: whether it is known what pods hold. */
function vfTable(nic, known) {
  if (!nic.vfs.length) return null;
  const held = nic.vfs.filter((vf) => vf.holder).length;
  const free = known ? "free" : "not known";
  const rows = nic.vfs.map((vf) => [vf.index === null ? "" : String(vf.index), el("span", { class: "mono", text: vf.address }), vf.holder ? inPod(vf) : el("span", { class: "quiet", text: vf.resource ? free : "not offered" }),
    vf.healthy === null ? stateOf(vf.state) : vf.healthy ? "Healthy" : "Unhealthy"]);
  return el("details", { class: "vfs" }, el("summary", { text: `${nic.vfs.length} VFs${known ? `, ${held} held` : ""}` }), table("", ["VF", "PCI address", "Holder", "Kubelet"], rows));
}

/** The holder of a VF, and the name and addresses of its netdev in the pod. */
function inPod(vf) {
  return vf.podNetdev ? `${vf.holder} as ${[vf.podNetdev, ...vf.podAddresses].join(", ")}` : vf.holder;
}

/** A device: its name, state and the most important value; the rest when it is opened. */
function tile(name, also, state, value, ...content) {
  return el("details", { class: "tile", "data-name": name },
    el("summary", {}, el("b", { text: name }), also && el("span", { class: "quiet", text: also }), stateOf(state), value && el("span", { class: "value", text: value })), ...content);
}

/** The model of the GPUs, if all have the same. */
function oneModel(node) {
  const models = new Set(node.places.map((place) => place.name));
  return models.size === 1 ? [...models][0] : "";
}

/** Where a NIC leads, and how many of its VFs are in use. */
function shortOf(nic, known) {
  const to = nic.neighbors.map((neighbor) => `${neighbor.system_name ?? neighbor.chassis_id.value} ${neighbor.port_id.value}`)[0] ?? "no neighbor is known";
  const held = nic.vfs.filter((vf) => vf.holder).length;
  return [to, nic.vfs.length > 0 && (known ? `${held} of ${nic.vfs.length} VFs held` : `${nic.vfs.length} VFs`)].filter(Boolean).join(" · ");
}

function loadOf(gpu) {
  const load = gpu.utilization === null ? "" : `${amount(gpu.utilization, "of the time")} load`;
  const pods = gpu.pods.map((pod) => [pod.namespace, pod.pod].filter(Boolean).join("/"));
  return [load, few(pods), gpu.used_bytes !== null && gpu.memory_bytes ? `${gib(gpu.used_bytes)} of ${gib(gpu.memory_bytes)}` : ""].filter(Boolean).join(" · ");
}

function aboveText() {
  return el("p", { class: "quiet", text: "Why, and what to do: at the top of the page." });
}

function reasonList(reasons) {
  return el("div", {}, reasons.map((reason) => el("div", { class: `reason ${reason.warning ? "" : "grave"}` }, el("b", { text: reason.key }), el("p", { text: reason.detail }))));
}

function curves(node, device) {
  const list = node.history[device] ?? [];
  return list.length ? el("div", { class: "curves" }, list.map(sparkline)) : null;
}

export function affinityCard(node) {
  const devices = [
    ...node.places.map((gpu) => ({ name: `GPU${indexOf(node, gpu.uuid)}`, label: `GPU ${indexOf(node, gpu.uuid)} · ${gpu.address}`, path: gpu.pciPath, numa: gpu.numaNode, state: stateName(node, gpu.uuid), gpu: true })),
    ...node.nics.map((nic) => ({ name: nic.name, label: `${nic.name} · ${nic.address}`, path: nic.pciPath, numa: nic.numaNode, state: nic.state })),
  ];
  const matrix = node.places.length && node.nics.length
    ? table("Nearness, as `nvidia-smi topo -m` calls it: PIX one PCIe switch, PXB several, PHB a host bridge, NODE one NUMA node, SYS another one",
      ["", ...node.nics.map((nic) => nic.name)],
      node.places.map((gpu) => [`GPU ${indexOf(node, gpu.uuid)}`, ...gpu.nearness.map((word) => el("span", { class: `near near-${word}`, text: word }))]))
    : null;
  return [el("h2", { text: "PCIe affinity" }), el("div", { class: "numas" }, affinityPicture(devices)), matrix && el("div", { class: "matrix" }, matrix)];
}

function indexOf(node, uuid) {
  return node.gpus.gpus.find((gpu) => gpu.uuid === uuid)?.index ?? "?";
}

function stateName(node, uuid) {
  return node.gpus.gpus.find((gpu) => gpu.uuid === uuid)?.state ?? "unknown";
}

export function kubeletCard(node) {
  const rows = node.resources.map((resource) => [
    resource.name, `${resource.healthy} of ${resource.devices}`, resource.held === null ? "not known" : String(resource.held),
    resource.registered === null ? "no agent" : resource.registered ? "registered" : `not registered: ${resource.reason}`,
  ]);
  const holders = node.holders.map((holding) => [[holding.namespace, holding.pod, holding.container].filter(Boolean).join("/"), holding.resource, String(holding.device_ids.length)]);
  return [
    el("h2", { text: "What the kubelet received" }),
    rows.length ? table("", ["Resource", "Healthy", "Held", "State"], rows) : el("p", { class: "quiet", text: "pci" in node.stale || "gpus" in node.stale ? "What is offered is not known." : "Nothing is offered." }),
    holders.length ? table("Devices that containers hold", ["Container", "Resource", "Devices"], holders) : null,
  ];
}

/** Each device with its active rules: the value beside its threshold, and what clears it. `told`: those at the top. */
export function healthCard(node, told) {
  if (!node.health.length) return [el("h2", { text: "Health" }), el("p", { class: "quiet", text: "The values beside the thresholds come from an agent; the reasons are at each device." })];
  const odd = node.health.filter((device) => device.reasons.length && !told.has(device));
  return [
    el("h2", { text: "Health" }),
    odd.length ? null : el("p", { class: "quiet", text: told.size ? "No other rule is active than at the top." : "No rule is active." }),
    ...odd.map((device) => el("article", { class: "entry", "data-name": device.name },
      el("h4", {}, device.name, stateOf(device.state), device.forS !== null && el("time", { text: `for ${duration(device.forS)}` })),
      ...device.reasons.map((reason) => {
        const rule = device.rules.find((entry) => entry.rule === reason.key);
        return el("div", { class: `reason ${reason.warning ? "" : "grave"}` }, el("b", { text: reason.key }), el("p", { text: reason.detail }),
          rule && el("p", {}, `${rule.measured === null ? "no value now" : `now ${rule.measured}`}, threshold ${rule.threshold}${rule.clears ? `; clears ${rule.clears}` : ""}${rule.inS ? `, ${duration(rule.inS)} to go` : ""}`));
      }))),
    el("details", {}, el("summary", { text: "All rules" }), ...node.health.map((device) => table(device.name, ["Rule", "Phase", "Measured", "Threshold"],
      device.rules.filter((rule) => rule.phase !== "off" && rule.phase !== "unknown").map((rule) => [rule.rule, rule.phase, rule.measured ?? "–", rule.threshold])))),
  ];
}
