// Small parts that lists and panels share.

import { el, svg } from "./dom.js";
import { SHAPES } from "./symbols.js";

/** A symbol of the map beside text. */
export function symbol(entry) {
  const color = `fill:var(${entry.color})`;
  const picture = svg("svg", { class: "symbol", viewBox: "-1 -1 12 12", "aria-hidden": "true" }, svg("path", { d: SHAPES[entry.shape] }));
  picture.firstChild.style.cssText = color;
  return picture;
}

/** A button that selects something. */
export function chooser(name, at, select) {
  return name ? el("button", { class: "link", type: "button", onclick: () => select(at), text: name }) : "";
}

/** A link to another page, which opens beside this one. */
export function linkTo(text, address) {
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer", text });
}

/** The key of a reason, as a link to its section where the runbook is known. */
export function reasonKey(key, runbook) {
  return el("b", {}, runbook?.[key] ? linkTo(key, runbook[key]) : key);
}

/** A block of a list: its title, when (a text or an element), and paragraphs. */
export function entry(title, when, ...body) {
  return el("article", { class: "entry" }, el("h4", {}, title, typeof when === "string" ? when && el("time", { text: when }) : when), body.filter(Boolean));
}

/** The first names, and how many more there are of `all`. */
export function few(names, all = names.length) {
  const shown = names.slice(0, 4);
  return shown.join(", ") + (all > shown.length ? ` and ${all - shown.length} more` : "");
}
