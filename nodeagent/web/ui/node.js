// The node page: joins the document and its parts.

import { connect } from "./connection.js";
import { count, el, plain, replace } from "./dom.js";
import { affinityCard, gpuCards, healthCard, kubeletCard, nicCards } from "./node_cards.js";
import { historyCard } from "./history.js";
import { cellStrip, devicesOf, isBad, linkTable, troubleCards } from "./node_overview.js";
import { ViewState } from "./view_state.js";

const byId = (id) => document.getElementById(id);
let badBefore = new Set();
const view = new ViewState((_, changed) => {
  if (changed.has("at")) filter();
});

connect((node) => {
  document.title = plain(`${node.node} · nodeagent`);
  byId("title").textContent = plain(`node ${node.node}`);
  const devices = devicesOf(node);
  const bad = [...devices.nics, ...devices.gpus].filter(isBad);
  const known = node.resources.every((resource) => resource.held !== null);
  const held = node.resources.reduce((sum, resource) => sum + resource.held, 0);
  const counted = (devices, what, source) => devices.length || !(source in node.stale) ? count(devices.length, what) : `${what}s not known`;
  byId("summary").textContent = plain([node.product, counted(node.gpus.gpus, "GPU", "gpus"), counted(node.nics, "NIC", "pci"), known && count(held, "device") + " held",
    bad.length ? `${bad.length} in trouble` : "pci" in node.stale || "gpus" in node.stale ? "health not known" : "all healthy",
    node.gpuDriver && `driver ${node.gpuDriver}`, node.source].filter(Boolean).join(" · "));
  const before = new Map([...document.querySelectorAll("details")].map((details) => [ownerOf(details), details.open]));
  const more = bad.map((device) => device.name).filter((name) => !badBefore.has(name));
  badBefore = new Set(bad.map((device) => device.name));
  replace(byId("notices"), [...node.troubles, ...Object.entries(node.stale).map(([source, reason]) => `${source}: ${reason}; its last facts are shown, if it has given any`)].map((text) => el("p", { class: "banner", text })));
  replace(byId("strip"), cellStrip(devices));
  replace(byId("trouble"), troubleCards(node, devices));
  replace(byId("links"), linkTable(node));
  const told = new Set(bad.map((device) => device.name)); // with reasons and remedy, at the top
  replace(byId("gpus"), gpuCards(node, told));
  replace(byId("nics"), nicCards(node, told));
  replace(byId("affinity"), affinityCard(node));
  replace(byId("kubelet"), kubeletCard(node));
  replace(byId("health"), healthCard(node, new Set(bad.map((device) => device.health))));
  replace(byId("history"), historyCard(node.changes));
  for (const details of document.querySelectorAll("details")) details.open = before.get(ownerOf(details)) || more.includes(details.dataset.name);
  filter();
}, (state) => {
  byId("state").textContent = plain(state.text);
  byId("state").className = `state ${state.bad ? "bad" : state.live ? "live" : ""}`;
});

/** What a closed part belongs to, so that a new document leaves it open. */
function ownerOf(details) {
  return `${details.closest("section").id} ${details.closest("[data-name]")?.dataset.name ?? ""} ${details.className}`;
}

/** Leave only the tiles and rows that have the text of the search; of few tiles all is shown. */
function filter() {
  const wanted = view.values.at.trim().toLowerCase();
  const search = byId("search");
  if (document.activeElement !== search) search.value = view.values.at;
  for (const tile of document.querySelectorAll(".tile, #trouble .entry, #links tbody tr, #kubelet tbody tr, #health .entry")) {
    tile.hidden = wanted !== "" && !tile.textContent.toLowerCase().includes(wanted);
  }
  const left = [...document.querySelectorAll(".tile:not([hidden])")];
  if (wanted && left.length <= 2) for (const tile of left) tile.open = true;
  byId("nothing").hidden = !wanted || document.querySelector(".tile:not([hidden]), tbody tr:not([hidden]), .entry:not([hidden])") !== null;
}

byId("search").addEventListener("input", (event) => view.set({ at: event.target.value }, true));
// Some browsers clear a search by Escape themselves.
byId("search").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.target.value = "";
  view.set({ at: "" }, true);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target !== byId("search")) {
    byId("search").focus();
    event.preventDefault();
  }
});
