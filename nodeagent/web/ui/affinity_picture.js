// The PCIe tree as a picture: NUMA nodes as frames, root complexes and bridges as branches, GPUs and NICs as leaves.

import { el, svg } from "./dom.js";
import { SHAPES, STATES } from "./symbols.js";

const ROW = 24;
const STEP = 26;
const LETTERS = Object.fromEntries(Object.entries(STATES).map(([letter, state]) => [state.word, letter]));

/** `devices` are {name, path, numa, state, gpu}. */
export function affinityPicture(devices) {
  const numas = new Map();
  for (const device of devices) {
    const key = device.numa === null || device.numa === undefined ? "NUMA node unknown" : `NUMA node ${device.numa}`;
    (numas.get(key) ?? numas.set(key, []).get(key)).push(device);
  }
  return [...numas].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([name, members]) => {
    const tree = makeTree(members);
    const rows = [];
    listRows(tree, 0, rows);
    const height = rows.length * ROW + 8;
    return el("figure", { class: "numa" }, el("figcaption", { text: name }),
      svg("svg", { viewBox: `0 0 340 ${height}`, role: "img", "aria-label": `${name}: ${members.map((device) => device.name).join(", ")}` }, rows.map((entry, row) => drawRow(entry, row)).flat()));
  });
}

/** A tree of path components; a bridge with one child alone is left out. */
function makeTree(devices) {
  const root = { children: new Map(), devices: [] };
  for (const device of devices) {
    let branch = root;
    for (const part of device.path.slice(0, -1)) {
      branch = branch.children.get(part) ?? branch.children.set(part, { name: part, children: new Map(), devices: [] }).get(part);
    }
    branch.devices.push(device);
  }
  return shorten(root);
}

function shorten(branch) {
  const children = [...branch.children.values()].map(shorten);
  if (branch.name && !branch.devices.length && children.length === 1) return { ...children[0], name: branch.name };
  return { ...branch, children };
}

function listRows(branch, depth, rows, parentRow = -1) {
  let row = parentRow;
  if (branch.name) {
    row = rows.length;
    rows.push({ depth, bridge: branch.name, parentRow });
  }
  const inner = branch.name ? depth + 1 : depth;
  for (const device of [...branch.devices].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }))) rows.push({ depth: inner, device, parentRow: row });
  for (const child of branch.children) listRows(child, inner, rows, row);
}

function drawRow(entry, row) {
  const x = 10 + entry.depth * STEP, y = row * ROW + 16;
  const parts = [];
  if (entry.parentRow >= 0) {
    const px = x - STEP + 5;
    parts.push(svg("path", { class: "branch", d: `M${px} ${entry.parentRow * ROW + 22}V${y}H${x - 3}` }));
  }
  if (entry.bridge) {
    parts.push(svg("rect", { class: "bridge", x, y: y - 6, width: 11, height: 11, rx: 2 }),
      svg("text", { class: "quiet", x: x + 17, y: y + 4, text: entry.bridge }));
    return parts;
  }
  const { device } = entry;
  const state = STATES[LETTERS[device.state]] ?? (device.state === "unhealthy" ? STATES.x : STATES["?"]);
  const shape = svg("path", { d: SHAPES[state.shape], transform: `translate(${x} ${y - 6})` });
  shape.style.fill = `var(${state.color})`;
  parts.push(shape, svg("text", { x: x + 17, y: y + 4, class: device.gpu ? "gpu" : "", text: device.label }));
  return parts;
}
