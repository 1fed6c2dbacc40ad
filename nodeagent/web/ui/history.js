// The time line: what changed last, the newest first. One card for the node page and for the map.
// What changed at once by one cause, as all links of a switch, is one line with the list below it.

import { clock, count, el } from "./dom.js";

const HISTORY_SHOWN = 12;
const TOGETHER_S = 90; // clocks of nodes differ, and reports wait for each other
const TOGETHER_MIN = 3;

/** The card of the changes of a document; nothing without any. */
export function historyCard(changes) {
  const list = historyList(changes);
  return list.length ? [el("h2", { text: "What changed" }), ...list] : [];
}

/** The lists of these changes; nothing without any. `isSwitch(name)` tells a switch from the other names of a link. */
export function historyList(changes, isSwitch = () => false) {
  const found = byCause(changes ?? [], isSwitch).reverse();
  if (!found.length) return [];
  const older = found.slice(HISTORY_SHOWN);
  return [
    el("ol", { class: "history" }, found.slice(0, HISTORY_SHOWN).map(causeEntry)),
    older.length > 0 && el("details", { "data-name": "history" }, el("summary", { text: `${older.length} older` }), el("ol", { class: "history" }, older.map(causeEntry))),
  ].filter(Boolean);
}

/** Lists of changes, in the order of their first: those of one switch or one node that became the same at about one time. */
export function byCause(changes, isSwitch) {
  const left = new Set(changes);
  const causes = [];
  const together = (namesOf, cause) => {
    const open = new Map();
    for (const change of changes) {
      if (!left.has(change)) continue;
      for (const name of namesOf(change)) {
        const key = JSON.stringify([name, change.what, change.after]);
        let same = open.get(key);
        if (!same || change.at - same.changes[0].at > TOGETHER_S) {
          open.set(key, same = { name, cause, changes: [] });
          causes.push(same);
        }
        same.changes.push(change);
      }
    }
  };
  const settle = () => {
    for (const one of [...causes].filter((entry) => !entry.done).sort((a, b) => b.changes.length - a.changes.length)) {
      one.changes = one.changes.filter((change) => left.has(change));
      one.done = one.changes.length >= TOGETHER_MIN;
      if (one.done) one.changes.forEach((change) => left.delete(change));
    }
  };
  together((change) => (change.names ?? []).filter(isSwitch), "switch");
  settle();
  together((change) => (change.node ? [change.node] : []), "node");
  settle();
  const found = [...causes.filter((one) => one.done), ...[...left].map((change) => ({ changes: [change] }))];
  return found.sort((a, b) => a.changes[0].at - b.changes[0].at);
}

function causeEntry(one) {
  const [first] = one.changes;
  if (one.changes.length === 1) return historyEntry(first);
  const last = one.changes.at(-1);
  const where = new Set(one.changes.map((change) => change.node)).size;
  const what = one.cause === "switch" ? `${one.name}: ${count(one.changes.length, "link")} of ${count(where, "node")}` : `${one.name}: ${count(one.changes.length, "change")}`;
  const until = clock(last.at) === clock(first.at) ? "" : ` to ${clock(last.at)}`;
  return el("li", {}, el("time", { text: clock(first.at) + until }), " ", el("b", { text: what }), ` → ${first.after}`,
    el("details", { "data-name": `history ${one.name} ${first.at}` }, el("summary", { text: "each of them" }), el("ol", { class: "history" }, one.changes.map(historyEntry))));
}

function historyEntry(change) {
  const kind = ["nic", "gpu", "agent", "controller"].includes(change.what) ? "" : `, ${change.what}`;
  const where = [change.node, change.where].filter(Boolean).join(" ") + kind;
  const text = change.before ? `${change.before} → ${change.after}` : change.after;
  return el("li", {}, el("time", { text: clock(change.at) }), " ", el("b", { text: where }), ` ${text}`,
    (change.details ?? []).map((detail) => el("div", { class: "quiet", text: detail })));
}
