// Make elements and texts. Text becomes text nodes only: nothing here or elsewhere parses markup.

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
    if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat().filter(Boolean));
}

/** A description list of pairs; pairs without a value are left out. */
export function pairs(...entries) {
  const rows = entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return el("dl", {}, rows.map(([term, value]) => [el("dt", { text: term }), el("dd", {}, value)]).flat());
}

export function table(caption, heads, rows) {
  return el("table", {}, el("caption", { text: caption }),
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col", text: head })))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));
}

/** A duration in the largest unit with a count of at least 2. */
export function duration(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

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
