// The lists beside the map: what is wrong and for which pods, what waits, what was written, what belongs to others.

import { clock, duration, el, since } from "./dom.js";
import { chooser, entry } from "./parts.js";
import { podEntry, troubleEntry } from "./troubles.js";

const SHOWN_MAX = 300;

/** `items` are counted; `show` makes an entry of one that is seen. */
const LISTS = [
  { key: "trouble", title: "Trouble", items: troubles, show: troubleEntry, none: "No trouble. Every link is up, and every cable that is known leads where it should." },
  { key: "pods", title: "Pods", items: (model) => Object.entries(model.content.pods), show: podEntry, none: "No pod is known on a link in trouble. Nodes report pods if `cluster.reportHolders` is on." },
  { key: "moves", title: "Moves", items: (model) => model.content.moves, show: moveEntry, none: "No move waits." },
  { key: "writes", title: "Writes", items: writes, show: writeEntry, none: "This replica has written nothing in the last hour." },
  { key: "foreign", title: "Foreign", items: (model) => model.content.foreign, show: foreignEntry, none: "No HyperNode of another owner." },
];

/** The tabs and the list that is chosen. */
export function showLists(model, chosen, select, choose) {
  const lists = LISTS.map((list) => list.items(model));
  const more = model.content.moreTroubles;
  const tabs = el("div", { class: "tabs", role: "tablist" }, LISTS.map((list, i) => el("button", {
    type: "button", role: "tab", id: `tab-${list.key}`, "aria-selected": String(list.key === chosen), "aria-controls": "list",
    class: ["trouble", "pods"].includes(list.key) && lists[i].length ? "some" : "", onclick: () => choose(list.key),
  }, list.title, el("b", { text: String(lists[i].length + (list.key === "trouble" ? more : 0)) }))));
  const place = Math.max(0, LISTS.findIndex((list) => list.key === chosen));
  const { key, show, none } = LISTS[place];
  const left = lists[place].length - SHOWN_MAX + (key === "trouble" ? more : 0);
  return [
    ...model.content.obstacles.map((text) => el("p", { class: "banner", role: "alert", text })),
    tabs,
    el("div", { id: "list", role: "tabpanel", "aria-labelledby": `tab-${key}` },
      lists[place].length ? lists[place].slice(0, SHOWN_MAX).map((item) => show(model, item, select)) : el("p", { class: "none", text: none }),
      left > 0 && el("p", { class: "none", text: `${left} more; \`nodeagent trouble\` lists all.` })),
  ];
}

function troubles(model) {
  return model.content.troubles;
}

function moveEntry(model, move, select) {
  const now = Date.now() / 1000;
  const target = (name) => (name ? chooser(name, `hypernode:${name}`, select) : "");
  return entry(
    model.nodeIndex.has(move.name) ? chooser(move.name, `node:${move.name}`, select) : move.name,
    since(move.since),
    (move.here || move.to) && el("p", {}, target(move.here) || "new", " → ", target(move.to) || "leaves"),
    el("p", { text: move.why }),
    move.due && el("p", { class: "quiet", text: move.due > now ? `at ${clock(move.due)}` : "due now" }),
  );
}

function writes(model) {
  return [...model.content.waitingWrites, ...[...model.content.writes].reverse()];
}

/** Of a write that waits, a text. */
function writeEntry(model, write) {
  if (typeof write === "string") return entry("waits to be written", "", el("p", { text: write }));
  return entry(
    `${write.verb} ${write.object}`, `${duration(Date.now() / 1000 - write.at)} ago`,
    write.reason && el("p", { text: write.reason }),
    write.result !== "ok" && el("p", { class: "banner", text: write.result }),
  );
}

function foreignEntry(model, hypernode) {
  const shared = model.content.overlaps.find((overlap) => overlap.name === hypernode.name)?.members;
  return entry(hypernode.name, `tier ${hypernode.tier}`,
    el("p", { text: `of ${hypernode.source}, ${hypernode.members} members` }),
    shared && el("p", { class: "banner", text: `holds ${shared.slice(0, 5).join(", ")}${shared.length > 5 ? ", …" : ""}, which nodeagent places too` }));
}

/** Every link as a row, for a spreadsheet. */
export function asCsv(model) {
  const rows = [["hypernode", "node", "link", "column", "fabric", "state", "switch", "port", "stale", "anomalies", "maintenance", "lost probes"]];
  for (const group of model.groups) {
    for (const node of group.nodes) {
      const shape = model.shapes[model.content.shapesOf[node]];
      if (!shape) rows.push([group.name, model.nodeName(node), "", "", "", "not reported", "", "", "", model.unplaced.get(model.nodeName(node)) ?? "", model.plannedOn(model.nodeName(node), "").join("; "), ""]);
      shape?.links.forEach((_, i) => {
        const link = model.link(node, i);
        rows.push([group.name, link.node, link.name, link.column.title, link.column.fabric, link.state.word, link.switch, link.port,
          link.stale ? "stale" : "", link.anomalies.map((anomaly) => anomaly.kind).join(" "), link.planned.join("; "), link.lost.join("; ")]);
      });
    }
  }
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

/** RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe before it. */
function field(text) {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

