// The lists beside the map: what is wrong, what waits, what was written, what belongs to others.

import { chooser, symbol } from "./detail.js";
import { clock, duration, el } from "./dom.js";
import { anomalySymbol } from "./symbols.js";

const SHOWN_MAX = 300;

const LISTS = [
  { key: "trouble", title: "Trouble", entries: troubles, none: "No anomaly. Every cable that is known leads where it should." },
  { key: "moves", title: "Moves", entries: moves, none: "No move waits." },
  { key: "writes", title: "Writes", entries: writes, none: "This replica has written nothing in the last hour." },
  { key: "foreign", title: "Foreign", entries: foreign, none: "No HyperNode of another owner." },
];

/** The tabs and the list that is chosen. */
export function showLists(model, chosen, select, choose) {
  const counts = LISTS.map((list) => list.entries(model, select));
  const tabs = el("div", { class: "tabs", role: "tablist" }, LISTS.map((list, i) => el("button", {
    type: "button", role: "tab", id: `tab-${list.key}`, "aria-selected": String(list.key === chosen), "aria-controls": "list",
    class: list.key === "trouble" && counts[i].length ? "some" : "", onclick: () => choose(list.key),
  }, list.title, el("b", { text: String(counts[i].length) }))));
  const place = Math.max(0, LISTS.findIndex((list) => list.key === chosen));
  const entries = counts[place];
  return [
    ...model.content.obstacles.map((text) => el("p", { class: "banner", role: "alert", text })),
    tabs,
    el("div", { id: "list", role: "tabpanel", "aria-labelledby": `tab-${LISTS[place].key}` },
      entries.length ? entries.slice(0, SHOWN_MAX) : el("p", { class: "none", text: LISTS[place].none }),
      entries.length > SHOWN_MAX && el("p", { class: "none", text: `${entries.length - SHOWN_MAX} more; the CSV export has all.` })),
  ];
}

function entry(title, when, ...body) {
  return el("article", { class: "entry" }, el("h4", {}, title, when && el("time", { text: when })), body.filter(Boolean));
}

function troubles(model, select) {
  const list = model.anomalies.map((anomaly) => {
    const at = anomaly.link ? `link:${anomaly.node}/${anomaly.link}` : anomaly.node ? `node:${anomaly.node}` : `switch:${anomaly.switch}`;
    const name = anomaly.node ? [anomaly.node, anomaly.link].filter(Boolean).join(" ") : anomaly.switch;
    return entry([symbol(anomalySymbol(anomaly.kind)), anomaly.kind], "", el("p", {}, chooser(name, at, select)), el("p", { text: anomaly.message }));
  });
  for (const { state, switchName, links } of model.badLinks()) {
    const [first] = links;
    const title = [symbol(state), links.length === 1 ? state.word : `${links.length} links ${state.word}`];
    list.push(entry(title, "",
      el("p", {}, links.length === 1 || !switchName ? chooser(`${first.node} ${first.name}`, `link:${first.node}/${first.name}`, select) : chooser(switchName, `switch:${switchName}`, select)),
      el("p", { class: "quiet", text: links.length === 1 ? (switchName ? `to ${switchName} ${first.port}` : "without a neighbor") : few(links.map((link) => link.node)) })));
  }
  for (const [node, reason] of model.unplaced) {
    list.push(entry("not placed", "", el("p", {}, chooser(node, `node:${node}`, select)), el("p", { text: reason })));
  }
  return list;
}

function few(names) {
  return names.slice(0, 4).join(", ") + (names.length > 4 ? ` and ${names.length - 4} more` : "");
}

function moves(model, select) {
  const now = Date.now() / 1000;
  const target = (name) => (name ? chooser(name, `hypernode:${name}`, select) : "");
  return model.content.moves.map((move) => entry(
    model.nodeIndex.has(move.name) ? chooser(move.name, `node:${move.name}`, select) : move.name,
    `for ${duration(now - move.since)}`,
    (move.here || move.to) && el("p", {}, target(move.here) || "new", " → ", target(move.to) || "leaves"),
    el("p", { text: move.why }),
    move.due && el("p", { class: "quiet", text: move.due > now ? `at ${clock(move.due)}` : "due now" }),
  ));
}

function writes(model) {
  const waiting = model.content.waitingWrites.map((text) => entry("waits to be written", "", el("p", { text })));
  const done = [...model.content.writes].reverse().map((write) => entry(
    `${write.verb} ${write.object}`, `${duration(Date.now() / 1000 - write.at)} ago`,
    write.reason && el("p", { text: write.reason }),
    write.result !== "ok" && el("p", { class: "banner", text: write.result }),
  ));
  return [...waiting, ...done];
}

function foreign(model) {
  const overlaps = new Map(model.content.overlaps.map((overlap) => [overlap.name, overlap.members]));
  return model.content.foreign.map((hypernode) => {
    const shared = overlaps.get(hypernode.name);
    return entry(hypernode.name, `tier ${hypernode.tier}`,
      el("p", { text: `of ${hypernode.source}, ${hypernode.members} members` }),
      shared && el("p", { class: "banner", text: `holds ${shared.slice(0, 5).join(", ")}${shared.length > 5 ? ", …" : ""}, which nodeagent places too` }));
  });
}

/** Every link as a row, for a spreadsheet. */
export function asCsv(model) {
  const rows = [["hypernode", "node", "link", "column", "fabric", "state", "switch", "port", "stale", "anomalies"]];
  for (const group of model.groups) {
    for (const node of group.nodes) {
      const shape = model.shapes[model.content.shapesOf[node]];
      if (!shape) rows.push([group.name, model.nodeName(node), "", "", "", "not reported", "", "", "", model.unplaced.get(model.nodeName(node)) ?? ""]);
      shape?.links.forEach((_, i) => {
        const link = model.link(node, i);
        rows.push([group.name, link.node, link.name, link.column.title, link.column.fabric, link.state.word, link.switch, link.port,
          link.stale ? "stale" : "", link.anomalies.map((anomaly) => anomaly.kind).join(" ")]);
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

