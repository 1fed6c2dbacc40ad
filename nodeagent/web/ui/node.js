// The node page: joins the document and its parts.

import { connect } from "./connection.js";
import { count, el, plain, replace } from "./dom.js";
import { affinityCard, gpuCards, healthCard, kubeletCard, nicCards } from "./node_cards.js";
import { historyCard } from "./history.js";
import { ViewState } from "./view_state.js";

const byId = (id) => document.getElementById(id);
const view = new ViewState((_, changed) => {
  if (changed.has("at")) filter();
});

connect((node) => {
  document.title = plain(`${node.node} · nodeagent`);
  byId("title").textContent = plain(`node ${node.node}`);
  const bad = node.gpus.gpus.filter((gpu) => gpu.state !== "healthy").length + node.nics.filter((nic) => !["healthy", "unused"].includes(nic.state)).length;
  const known = node.resources.every((resource) => resource.held !== null);
  const held = node.resources.reduce((sum, resource) => sum + resource.held, 0);
  const counted = (devices, what, source) => devices.length || !(source in node.stale) ? count(devices.length, what) : `${what}s not known`;
  byId("summary").textContent = plain([node.product, counted(node.gpus.gpus, "GPU", "gpus"), counted(node.nics, "NIC", "pci"), known && count(held, "device") + " held",
    bad ? `${bad} in trouble` : "pci" in node.stale || "gpus" in node.stale ? "health not known" : "all healthy",
    node.gpuDriver && `driver ${node.gpuDriver}`, node.source].filter(Boolean).join(" · "));
  const open = new Set([...document.querySelectorAll("details[open]")].map(ownerOf));
  replace(byId("notices"), [...node.troubles, ...Object.entries(node.stale).map(([source, reason]) => `${source}: ${reason}; its last facts are shown, if it has given any`)].map((text) => el("p", { class: "banner", text })));
  replace(byId("gpus"), gpuCards(node));
  replace(byId("nics"), nicCards(node));
  replace(byId("affinity"), affinityCard(node));
  replace(byId("kubelet"), kubeletCard(node));
  replace(byId("health"), healthCard(node));
  replace(byId("history"), historyCard(node.changes));
  for (const details of document.querySelectorAll("details")) details.open = open.has(ownerOf(details));
  filter();
}, (state) => {
  byId("state").textContent = plain(state.text);
  byId("state").className = `state ${state.bad ? "bad" : state.live ? "live" : ""}`;
});

/** What a closed part belongs to, so that a new document leaves it open. */
function ownerOf(details) {
  return `${details.closest("section").id} ${details.closest("[data-name]")?.dataset.name ?? ""}`;
}

/** Leave only the tiles and rows that have the text of the search. */
function filter() {
  const wanted = view.values.at.trim().toLowerCase();
  const search = byId("search");
  if (document.activeElement !== search) search.value = view.values.at;
  for (const tile of document.querySelectorAll(".tile, #kubelet tbody tr, #health .entry")) {
    tile.hidden = wanted !== "" && !tile.textContent.toLowerCase().includes(wanted);
  }
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
