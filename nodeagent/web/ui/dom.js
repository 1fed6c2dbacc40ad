// Make elements and texts. Text becomes text nodes only: nothing here or elsewhere parses markup.

const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** Text with characters that do not print escaped, such as those that reverse the direction of what follows. */
export function plain(text) {
  return String(text).replace(UNPRINTABLE, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * Make an HTML element. `properties` are attributes; `class`, `text` and handlers such as `onclick` are known.
 * Children are elements or strings; null, undefined and false are left out.
 */
export function el(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** Make an SVG element, in the same way. */
export function svg(name, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);
}

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") element.textContent = plain(value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : plain(value));
  }
  const kept = children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== "");
  element.append(...kept.map((child) => (child instanceof Node ? child : plain(child))));
  return element;
}

/** Replace the content. The keyboard stays where it was: on the element with the same text, or at the same place. */
export function replace(parent, ...children) {
  const before = focusable(parent);
  const place = before.indexOf(document.activeElement);
  const text = before[place]?.textContent;
  parent.replaceChildren(...children.flat().filter(Boolean));
  if (place < 0) return;
  const after = focusable(parent);
  const same = after[place]?.textContent === text ? after[place] : after.find((element) => element.textContent === text);
  (same ?? after[Math.min(place, after.length - 1)])?.focus({ preventScroll: true });
}

function focusable(parent) {
  return [...parent.querySelectorAll("button, select, summary, input")];
}

/** A description list of pairs; pairs without a value are left out. */
export function pairs(...entries) {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return el("dl", {}, rows.map(([term, value]) => [el("dt", { text: term }), el("dd", {}, value)]).flat());
}

export function table(caption, heads, rows) {
  return el("table", {}, caption && el("caption", { text: caption }),
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col", text: head })))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));
}

/** A duration in its two largest units: "5 min 17 s". */
export function duration(seconds) {
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const number = Math.floor(left / size);
    left %= size;
    if (number || parts.length || size === 1) parts.push(number && `${number} ${unit}`);
  }
  return parts.slice(0, 2).filter(Boolean).join(" ") || "0 s";
}

/** "for 5 min 17 s", which goes on while it is shown. Nothing without a time. */
export function since(unix) {
  if (unix === null || unix === undefined) return null;
  return el("time", { "data-since": unix, title: `since ${clock(unix)}`, text: lasting(unix) });
}

function lasting(unix) {
  return `for ${duration(Date.now() / 1000 - unix)}`;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[data-since]")) time.textContent = lasting(Number(time.dataset.since));
}, 5000);

/** "1 node", "2 nodes". */
export function count(number, noun) {
  return `${number} ${number === 1 ? noun : `${noun === "anomaly" ? "anomalie" : noun}s`}`;
}

export function clock(unix) {
  return new Date(unix * 1000).toISOString().replace("T", " ").slice(0, 19) + "Z";
}

export function bits(mbps) {
  if (!mbps) return "";
  return mbps >= 1000 ? `${mbps / 1000} Gbit/s` : `${mbps} Mbit/s`;
}

export function gib(bytes) {
  return `${(bytes / 2 ** 30).toFixed(bytes < 10 * 2 ** 30 ? 1 : 0)} GiB`;
}

/** Give the user a file. */
export function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
