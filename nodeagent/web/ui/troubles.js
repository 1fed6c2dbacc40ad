// The troubles of the fabric: the list of `nodeagent trouble`. See nodeagent/fabric/troubles.py.

import { el, since } from "./dom.js";
import { chooser, entry, few, linkTo, symbol } from "./parts.js";
import { anomalySymbol, AWAY, STATES } from "./symbols.js";

const AWAY_REASONS = ["unreachable", "not_ready", "no_agent"];

/** What, since when, where (unless that is `here`), why, whose pods, and what to do. */
export function troubleEntry(model, one, select, here = "") {
  const at = model.placeOf(one);
  const pods = Object.entries(model.content.pods).filter(([, places]) => places.includes(model.content.troubles.indexOf(one))).map(([pod]) => pod);
  return entry([symbol(symbolOf(one)), one.what], since(one.since),
    at !== here && el("p", {}, at ? chooser(one.where, at, select) : one.where),
    ...(one.linkCount > 1 ? [one.details.join(", ")] : one.details).map((text) => el("p", { text })),
    one.pods > 0 && el("p", {}, el("b", { text: "pods " }), few(pods, one.pods)),
    one.jobs?.length > 0 && el("p", {}, el("b", { text: "jobs " }), few(one.jobs, one.jobs.length)),
    one.gpus?.length > 0 && pageOf(model, one.gpus[0][0]),
    one.maintenance && el("p", {}, el("b", { text: "planned " }), one.maintenance),
    el("p", {}, el("b", { text: "do " }), one.remedy, runbookLink(model, one)));
}

/** The link to the page of a node, which has its GPUs; nothing where the map does not know its address. */
function pageOf(model, node) {
  const template = model.content.nodePage;
  return template ? el("p", {}, linkTo(`Page of ${node}`, template.replaceAll("{node}", encodeURIComponent(node)))) : "";
}

/** A link to what the runbook says about the first reason that it has. */
function runbookLink(model, one) {
  const links = model.content.runbook ?? {};
  const key = one.reasons.find((reason) => links[reason]);
  return key ? [" · ", linkTo("runbook", links[key])] : "";
}

function symbolOf(one) {
  if (one.linkCount > 1) return STATES.x;
  if (one.reasons.some((reason) => AWAY_REASONS.includes(reason))) return AWAY;
  if (one.gpus?.length) return one.what.endsWith("degraded") ? STATES.d : one.what.endsWith("unknown") ? STATES["?"] : STATES.x;
  return Object.values(STATES).find((state) => state.word === one.what) ?? anomalySymbol(one.reasons[0] ?? one.what);
}

/** A pod with its troubles. */
export function podEntry(model, [pod, places], select) {
  const found = places.map((place) => model.content.troubles[place]);
  return entry(pod, since(found.map((one) => one.since).filter((time) => time !== null).sort((a, b) => a - b)[0]),
    ...found.map((one) => {
      const at = model.placeOf(one);
      return el("p", {}, symbol(symbolOf(one)), " ", at ? chooser(one.where, at, select) : one.where, ` ${one.what}`);
    }));
}
