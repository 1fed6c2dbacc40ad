// The top of the node page: the cells of the node, what is wrong with it, and all names of each link.

import { bits, el, since, table } from "./dom.js";
import { few, reasonKey } from "./parts.js";
import { byRail, stateOf } from "./node_cards.js";

const QUIET = ["healthy", "unused"];
const NEARNESS = ["PIX", "PXB", "PHB", "NODE", "SYS"];

/** The NICs and GPUs of the node in one form. */
export function devicesOf(node) {
  const healthOf = (device) => node.health.find((entry) => entry.device === device);
  const nics = byRail(node.nics).map((nic) => ({
    name: nic.name, also: nic.netdev !== nic.name ? nic.netdev : "", state: nic.state, reasons: nic.reasons, remedy: nic.remedy, health: healthOf(nic.address),
    withdrawn: !nic.allocatable, to: portOf(nic), pods: nic.pods,
  }));
  const gpus = node.gpus.gpus.map((gpu) => {
    const place = node.places.find((entry) => entry.uuid === gpu.uuid);
    return {
      name: `GPU ${gpu.index}`, also: "", state: gpu.state, reasons: place?.reasons ?? [], remedy: place?.remedy ?? "", health: healthOf(gpu.uuid),
      withdrawn: false, to: "", pods: place?.pods ?? [],
    };
  });
  return { nics, gpus };
}

/** `nodeagent maintain`: work on it is planned. */
function isPlanned(device) {
  return device.reasons.some((reason) => reason.key === "maintenance");
}

export function isBad(device) {
  return !QUIET.includes(device.state) || device.reasons.some((reason) => !reason.warning);
}

function portOf(nic) {
  const [neighbor] = nic.neighbors;
  return neighbor ? `${neighbor.system_name ?? neighbor.chassis_id.value} ${neighbor.port_id.value}` : "";
}

/** A cell for each device, as on the map. A click shows its tile. */
export function cellStrip({ nics, gpus }) {
  const cells = (title, devices) => devices.length > 0 && el("div", { class: "cells", role: "group", "aria-label": title }, el("b", { text: title }),
    devices.map((device) => el("button", {
      type: "button", class: `${isBad(device) ? "bad" : ""}${isPlanned(device) ? " planned" : ""}`, title: `${device.name}: ${device.state}`, "aria-label": `${device.name}: ${device.state}`, onclick: () => showTile(device.name),
    }, stateOf(device.state, false), el("span", { text: device.name.replace(/^(GPU |nic)(?=\d)/, "") }))));
  return [cells("NICs", nics), cells("GPUs", gpus)];
}

function showTile(name) {
  const tile = [...document.querySelectorAll(".tile")].find((entry) => entry.dataset.name === name);
  if (!tile) return;
  tile.open = true;
  tile.scrollIntoView({ block: "center" });
  tile.querySelector("summary").focus({ preventScroll: true });
}

/** What is wrong, what concerns most pods first: since when, why, whose pods, and what to do. */
export function troubleCards(node, { nics, gpus }) {
  const bad = [...nics, ...gpus].filter(isBad).sort((a, b) => b.pods.length - a.pods.length || b.withdrawn - a.withdrawn);
  return bad.map((device) => el("article", { class: "card entry", "data-name": device.name },
    el("h3", {}, stateOf(device.state, false), el("span", { text: ` ${device.name}${device.also ? ` (${device.also})` : ""}: ${device.state}` }),
      device.health && device.health.forS !== null && since(node.taken - device.health.forS)),
    device.to && el("p", { class: "quiet", text: `to ${device.to}` }),
    device.withdrawn && el("p", { class: "withdrawn", text: "withdrawn: the kubelet gives its VFs to no new pod" }),
    ...device.reasons.map((reason) => reasonWithRule(reason, device.health, node.runbook)),
    device.pods.length > 0 && el("p", {}, el("b", { text: "pods " }), few(device.pods)),
    device.remedy && el("p", {}, el("b", { text: "do " }), device.remedy),
    el("p", {}, el("button", { type: "button", class: "link", onclick: () => showTile(device.name), text: `all of ${device.name}` }))));
}

/** The reason, and from an agent the value now beside its threshold and what clears it. */
function reasonWithRule(reason, health, runbook) {
  const rule = health?.rules.find((entry) => entry.rule === reason.key);
  return el("div", { class: `reason ${reason.warning ? "" : "grave"}` }, reasonKey(reason.key, runbook), el("p", { text: reason.detail }),
    rule && el("p", {}, `${rule.measured === null ? "no value now" : `now ${rule.measured}`}, threshold ${rule.threshold}${rule.clears ? `; clears ${rule.clears}` : ""}`));
}

/** One row for each link with all its names. */
export function linkTable(node) {
  if (!node.nics.length) return [];
  const rows = byRail(node.nics).map((nic) => [nic.name, stateOf(nic.state), nic.netdev, el("span", { class: "mono", text: nic.address }), nic.rdma ?? "–", portOf(nic) || "–", bits(nic.speedMbps) || "–", nearest(node, node.nics.indexOf(nic))]);
  return [el("h2", { text: "Links" }), el("div", { class: "matrix" }, table("", ["Name", "State", "Netdev", "PCI address", "RDMA", "Switch port", "Speed", "Nearest GPU"], rows))];
}

/** The GPUs that are nearest to a NIC. */
function nearest(node, nic) {
  const ranks = node.places.map((place) => NEARNESS.indexOf(place.nearness[nic]));
  const best = Math.min(...ranks);
  const found = node.places.filter((_, i) => ranks[i] === best).map((place) => node.gpus.gpus.find((gpu) => gpu.uuid === place.uuid)?.index ?? "?");
  return found.length ? `${few(found)} (${NEARNESS[best]})` : "–";
}
