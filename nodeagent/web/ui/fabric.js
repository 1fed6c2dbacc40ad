// The fabric map: joins the document, the map, the lists and the state of the view.

import { connect } from "./connection.js";
import { describe, sentence } from "./detail.js";
import { count, download, el, plain, replace } from "./dom.js";
import { asSvg } from "./drawing.js";
import { FabricMap } from "./fabric_map.js";
import { FabricModel } from "./fabric_model.js";
import { JobFilter } from "./job_filter.js";
import { asCsv, showLists } from "./lists.js";
import { symbol } from "./parts.js";
import { legendOf, readColors, roleSymbol, STATES } from "./symbols.js";
import { TimeSlider } from "./time_slider.js";
import { ViewState } from "./view_state.js";

const byId = (id) => document.getElementById(id);
let model = null;
let connectionState = {};

const view = new ViewState((values, changed) => {
  if (!model) return;
  if (["color", "only", "rail", "fabric"].some((key) => changed.has(key))) showMap();
  if (changed.has("at")) showSelection(true);
  if (changed.has("list")) showSide();
  if (changed.has("job") && connectionState.jobs) jobs.show(view.values.job);
  if (changed.has("view")) followView();
});

const map = new FabricMap(byId("map"), {
  select: (at) => select(at),
  hover: showTip,
  moved: laterMoved(),
});

const jobs = new JobFilter(byId("job"), ask, (job) => view.set({ job }), showMap);

const changes = new TimeSlider(byId("history"), ask, () => connectionState.live);

function select(at) {
  view.set({ at });
}

// --- the document -------------------------------------------------------------------------------------------

connect((content) => {
  model = new FabricModel(content);
  document.title = plain(`Fabric ${content.fabric} · nodeagent`);
  byId("title").textContent = plain(`fabric ${content.fabric}`);
  showMap();
  followView();
  showSelection(false);
  showSide();
  if (connectionState.jobs) jobs.show(view.values.job);
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("nodeagent-painted")));
}, (state) => {
  connectionState = state;
  byId("state").textContent = plain(state.text);
  byId("state").className = `state ${state.bad ? "bad" : state.live ? "live" : ""}`;
});

/** The whole report of a node: from the file, or from the server. */
async function reportOf(name) {
  if (!connectionState.live) return new Map(Object.entries(model.content.details ?? {})).get(name) ?? null;
  return ask(`node.json?name=${encodeURIComponent(name)}`);
}

async function ask(question) {
  const answer = await fetch(question, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

// --- showing ------------------------------------------------------------------------------------------------

function showMap() {
  const { color, only, rail, fabric } = view.values;
  map.setColors(readColors());
  map.show(model, { color, only, rail, fabric, nodes: jobs.nodes });
  map.select(model.find(view.values.at), false);
  showSummary();
  showControls();
  replace(byId("legend"), legendOf(color, model.fabrics, model).map((entry) => el("li", {}, symbol(entry), entry.word)));
  const empty = byId("empty");
  empty.hidden = map.layout.blocks.length > 0;
  empty.textContent = model.content.nodes.length ? "Nothing matches the filters." : "No node has reported yet.";
}

function showSummary() {
  const { content } = model;
  const counts = model.countStates();
  const leaves = content.hypernodes.filter((entry) => entry.tier === 1).length;
  const parts = [count(content.nodes.length, "node"), count(leaves, "leaf group")];
  for (const [letter, state] of Object.entries(STATES)) if (counts[letter] && letter !== "o") parts.push(`${counts[letter]} ${state.word}`);
  if (model.away.size) parts.push(`${count(model.away.size, "node")} away`);
  parts.push(count(content.anomalies.length, "anomaly"));
  const legs = model.legs.length + (content.moreLegs ?? 0);
  if (legs) parts.push(`${count(legs, "pair")} of links with lost probes`);
  byId("summary").textContent = parts.join(" · ");
}

function showControls() {
  const { values } = view;
  const choice = (key, options) => el("div", { class: "choice", role: "group", "aria-label": key }, options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(values[key] === value), onclick: () => view.set({ [key]: value }), text })));
  const chosen = (key, label, options) => el("label", {}, label, el("select", { "aria-label": label, onchange: (event) => view.set({ [key]: event.target.value }) },
    el("option", { value: "", text: "all" }), options.map((value) => el("option", { value, selected: values[key] === value, text: value }))));
  const button = (text, title, onclick) => el("button", { type: "button", title, onclick, text });
  replace(byId("controls"),
    el("label", {}, "Color by", choice("color", [["health", "health"], ["anomaly", "anomaly"], ["role", "role"]])),
    el("button", { type: "button", "aria-pressed": String(values.only === "trouble"), onclick: () => view.set({ only: values.only ? "" : "trouble" }), text: "only trouble" }),
    chosen("rail", "Rail", model.rails),
    chosen("fabric", "Fabric", model.fabrics),
    el("span", { class: "right" },
      button("−", "Zoom out (-)", () => map.zoom(0.8)), button("+", "Zoom in (+)", () => map.zoom(1.25)), button("Fit", "Show everything (0)", () => map.fit()),
      button("SVG", "The map as a picture", exportSvg), button("CSV", "Every link as a row", () => download(`${fileName()}.csv`, "text/csv", asCsv(model))),
      button("Print", "Print the map and the list", () => print()), button("Keys", "The keys of this page (?)", () => byId("keys").showModal())));
}

function exportSvg() {
  const colors = readColors();
  const svg = asSvg(model, map.layout, view.values.color, colors, legendOf(view.values.color, model.fabrics, model), document.title);
  download(`${fileName()}.svg`, "image/svg+xml", svg);
}

function fileName() {
  return `fabric-${model.content.fabric.replace(/[^a-z0-9-]/gi, "_")}-${new Date().toISOString().slice(0, 16).replaceAll(":", "")}`;
}

function showSelection(reveal) {
  const found = model.find(view.values.at);
  if (!found) findByOtherName(view.values.at);
  map.select(found, reveal);
  replace(byId("detail"), describe(model, found, select, reportOf));
  byId("spoken").textContent = plain(sentence(model, found));
}

/** A link may be named by its netdev, PCI address, RDMA device or MAC address: the report of its node has them. */
async function findByOtherName(at) {
  const [, node, name] = /^link:([^/]*)\/(.*)$/.exec(at) ?? [];
  if (!model.nodeIndex.has(node)) return;
  const report = await reportOf(node).catch(() => null);
  const link = report?.links.find((entry) => [entry.netdev, entry.pciAddress, entry.rdmaDevice, entry.mac].includes(name));
  if (view.values.at !== at) return;
  if (link && model.find(`link:${node}/${link.name}`)) view.set({ at: `link:${node}/${link.name}` }, true);
  else replace(byId("detail"), el("p", { class: "quiet", text: `${node} reports no link that is called ${name}.` }));
}

function showSide() {
  changes.show(model.content.changes, (name) => model.switches.has(name), model.content.taken);
  replace(byId("lists"), showLists(model, view.values.list, select, (list) => view.set({ list })));
}

function showTip(found, x, y) {
  const tip = byId("tip");
  const target = found && model.find(map.at(found));
  tip.hidden = !target;
  if (!target) return;
  if (target.kind === "link") {
    const link = model.link(target.node, target.link);
    replace(tip, el("b", {}, symbol(view.values.color === "role" ? roleSymbol(model.fabrics, link.column.fabric) : link.state), ` ${link.node} · ${link.name}`),
      el("span", { text: `${link.state.word}${link.stale ? ", stale" : ""} · ${link.switch ? `${link.switch} ${link.port}` : "no neighbor"}` }),
      ...link.anomalies.map((anomaly) => el("div", { text: anomaly.message })));
  } else {
    replace(tip, el("b", { text: target.name }), el("span", { class: "quiet", text: target.kind }));
  }
  const { width, height } = map.size();
  tip.style.left = `${Math.min(x + 14, width - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(y + 14, height - tip.offsetHeight - 8)}px`;
}

// --- the view in the address ----------------------------------------------------------------------------------

function laterMoved() {
  let timer = 0;
  return (position) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      view.set({ view: position ? `${position.x.toFixed(0)},${position.y.toFixed(0)},${position.scale.toFixed(3)}` : "" }, true);
    }, 250);
  };
}

function followView() {
  const [x, y, scale] = view.values.view.split(",").map(Number);
  if (scale > 0 && Number.isFinite(x + y)) map.moveTo({ x, y, scale });
}

// --- search and keys ------------------------------------------------------------------------------------------

let current = 0;
let pods = { text: "", found: [] }; // the last answer
let laterPods = 0;

/** The pods with this text in their name: from the server, or from the reports in a file. */
async function findPods(text) {
  if (!text) return [];
  if (connectionState.live) return ask(`pods.json?text=${encodeURIComponent(text)}`);
  return Object.entries(model.content.details ?? {}).flatMap(([node, report]) =>
    (report.holders ?? []).map((holder) => ({ pod: `${holder.namespace}/${holder.pod}`, node }))).filter((entry) => entry.pod.includes(text)).slice(0, 12);
}

/** Ask when the last key was pressed a while ago. A pod that is found later stands below the rest. */
function searchPods() {
  clearTimeout(laterPods);
  const text = byId("search").value.trim().toLowerCase();
  laterPods = setTimeout(async () => {
    const found = await findPods(text).catch(() => []);
    if (text !== byId("search").value.trim().toLowerCase()) return;
    pods = { text, found };
    if (found.length && byId("search") === document.activeElement) showFound();
  }, 200);
}

function showFound() {
  const text = byId("search").value.trim().toLowerCase();
  const found = model ? model.search(text) : [];
  if (pods.text === text) found.push(...pods.found.map(({ pod, node }) => ({ kind: "pod", name: pod, at: `node:${node}`, more: `pod on ${node}` })));
  current = Math.min(current, Math.max(0, found.length - 1));
  replace(byId("found"), found.map((entry, i) => el("li", {}, el("button", {
    type: "button", class: i === current ? "current" : "", onclick: () => choose(entry.at),
  }, el("b", { text: entry.name }), el("i", { text: entry.more || entry.kind })))));
  if (text && !found.length) byId("found").append(el("li", { class: "none", text: "Nothing has this in its name: no node, link, switch, port, HyperNode or pod." }));
  byId("found").hidden = !text;
  return found;
}

function choose(at) {
  byId("found").hidden = true;
  select(at);
  byId("detail").focus();
}

byId("search").addEventListener("input", () => {
  current = 0;
  showFound();
  searchPods();
});
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Escape") byId("found").hidden = true;
  if (!["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return;
  const found = showFound();
  if (event.key !== "Enter") {
    current = (current + (event.key === "ArrowDown" ? 1 : -1) + found.length) % Math.max(1, found.length);
    event.preventDefault();
    showFound();
  } else if (found.length) {
    choose(found[current].at);
  }
});
// The results close when the focus or a click goes elsewhere; they would cover the map.
document.querySelector(".search").addEventListener("focusout", (event) => {
  if (event.relatedTarget && !event.currentTarget.contains(event.relatedTarget)) byId("found").hidden = true;
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".search")) byId("found").hidden = true;
});
byId("keys-close").addEventListener("click", () => byId("keys").close());
document.addEventListener("keydown", (event) => {
  if (!["/", "?"].includes(event.key) || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "/") byId("search").focus();
  else byId("keys").showModal();
  event.preventDefault();
});
for (const media of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(media).addEventListener("change", () => map.recolor(readColors()));
}
