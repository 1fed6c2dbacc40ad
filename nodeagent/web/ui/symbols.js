// The states of a link, the roles of links and the kinds of anomalies: word, color and shape of each.
// Each has a shape of its own, so that color alone shows nothing. Colors are names of properties in style.css.
// Shapes are SVG paths in a square of side 10; canvas and SVG draw the same ones.

export const SHAPES = {
  square: "M0 0H10V10H0Z",
  triangle: "M5 0.5L10 9.5H0Z",
  cross: "M2 0L5 3L8 0L10 2L7 5L10 8L8 10L5 7L2 10L0 8L3 5L0 2Z",
  diamond: "M5 -0.5L10.5 5L5 10.5L-0.5 5Z",
  ring: "M5 0A5 5 0 1 1 4.99 0ZM5 2.4A2.6 2.6 0 1 0 5.01 2.4Z",
  dot: "M5 3.4A1.6 1.6 0 1 1 4.99 3.4Z",
  bar: "M0 3.8H10V6.2H0Z",
  circle: "M5 0A5 5 0 1 1 4.99 0Z",
  bars: "M0 0H10V3.4H0ZM0 6.6H10V10H0Z",
  slash: "M0 8.6L8.6 0L10 1.4L1.4 10Z",
  frame: "M0 0H10V10H0ZM2.4 2.4V7.6H7.6V2.4Z",
  hatch: "M0 3.5L3.5 0H6.5L0 6.5ZM3.5 10L10 3.5V6.5L6.5 10Z",
};

export const STATES = {
  h: { word: "healthy", color: "--healthy", shape: "square" },
  d: { word: "degraded", color: "--degraded", shape: "triangle", trouble: true },
  x: { word: "down", color: "--down", shape: "cross", trouble: true },
  m: { word: "miscabled", color: "--miscabled", shape: "diamond", trouble: true },
  "-": { word: "missing", color: "--down", shape: "bar", trouble: true },
  "?": { word: "unknown", color: "--unknown", shape: "ring", trouble: true },
  o: { word: "unused", color: "--unused", shape: "dot" },
};
/** Over the symbol of a link, in the color of the paper. */
export const PLANNED = { word: "under maintenance", color: "--ink", shape: "hatch" };
/** A line between two cells; dashed: packets of the full MTU alone. */
export const LOSSY_LEG = { word: "loses packets between two links", color: "--down", shape: "slash" };
export const NO_REPORT = { word: "not reported", color: "--unused", shape: "dot" };

/** The links of a node that is away are as last reported, whatever that was. */
export const AWAY = { word: "its node is away", color: "--unused", shape: "frame" };

const ROLES = [
  { color: "--role-a", shape: "square" },
  { color: "--role-b", shape: "circle" },
  { color: "--role-c", shape: "bars" },
  { color: "--role-d", shape: "triangle" },
];

const ANOMALY_GROUPS = [
  { kinds: ["miscabled", "rail-swap", "rail-shift", "foreign-leaf", "node-to-node"], word: "cable at a wrong place", color: "--miscabled", shape: "diamond" },
  { kinds: ["missing-rail", "no-leaves"], word: "cable missing", color: "--down", shape: "cross" },
  { kinds: ["link-loss", "leaf-loss", "uplink-loss", "spine-loss", "path-mtu", "host-silent"], word: "probes are lost", color: "--down", shape: "bars" },
];
const OTHER_ANOMALY = { word: "names or sharing", color: "--degraded", shape: "triangle" };

export function anomalySymbol(kind) {
  return ANOMALY_GROUPS.find((group) => group.kinds.includes(kind)) ?? OTHER_ANOMALY;
}

/** The symbol of a fabric: the tree's fabric comes first. */
export function roleSymbol(fabrics, fabric) {
  const place = fabrics.indexOf(fabric);
  return { ...ROLES[Math.min(Math.max(place, 0), ROLES.length - 1)], word: fabric };
}

/** What the legend explains in a color mode, as symbols with a word. */
export function legendOf(mode, fabrics, { away, planned, legs }) {
  const more = [...(away.size ? [AWAY] : []), ...(planned.size ? [PLANNED] : []), ...(legs.length ? [LOSSY_LEG] : [])];
  if (mode === "anomaly") return [...ANOMALY_GROUPS, OTHER_ANOMALY, { word: "no anomaly", color: "--unused", shape: "square" }, ...more];
  if (mode === "role") return [...fabrics.map((fabric) => roleSymbol(fabrics, fabric)), ...more];
  return [...Object.values(STATES), ...more];
}

/** The colors of the page as they are now, in light or dark. */
export function readColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["--paper", "--ink", "--quiet", "--line", "--frame", "--block", "--accent", "--healthy", "--degraded",
    "--down", "--miscabled", "--unknown", "--unused", "--role-a", "--role-b", "--role-c", "--role-d"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
}
