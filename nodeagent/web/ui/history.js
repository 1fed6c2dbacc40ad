// The time line: what changed last, the newest first. One card for the node page and for the map.

import { clock, el } from "./dom.js";

const HISTORY_SHOWN = 12;

/** The card of the changes of a document; nothing without any. `about`: only those of a node, device or switch. */
export function historyCard(changes, about = "") {
  const wanted = about.toLowerCase();
  const found = (changes ?? []).filter((change) => !wanted || namesOfChange(change).includes(wanted)).reverse();
  if (!found.length) return [];
  const older = found.slice(HISTORY_SHOWN);
  return [
    el("h2", { text: "What changed" }),
    el("ol", { class: "history" }, found.slice(0, HISTORY_SHOWN).map(historyEntry)),
    older.length > 0 && el("details", { "data-name": "history" }, el("summary", { text: `${older.length} older` }), el("ol", { class: "history" }, older.map(historyEntry))),
  ].filter(Boolean);
}

function historyEntry(change) {
  const kind = ["nic", "gpu", "agent", "controller"].includes(change.what) ? "" : `, ${change.what}`;
  const where = [change.node, change.where].filter(Boolean).join(" ") + kind;
  const text = change.before ? `${change.before} → ${change.after}` : change.after;
  return el("li", {}, el("time", { text: clock(change.at) }), " ", el("b", { text: where }), ` ${text}`,
    (change.details ?? []).map((detail) => el("div", { class: "quiet", text: detail })));
}

function namesOfChange(change) {
  return [change.node, change.where, ...(change.names ?? [])].filter(Boolean).map((name) => name.toLowerCase());
}
