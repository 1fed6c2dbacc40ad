// The document of the server as objects that the map and the lists use. See nodeagent/fabric/fabric_view.py.

import { anomalySymbol, AWAY, NO_REPORT, roleSymbol, STATES } from "./symbols.js";

const natural = new Intl.Collator("en", { numeric: true });
const STALE = 1;
const CONTESTED = 2;
const OTHER_FABRIC = "other";

export class FabricModel {
  constructor(content) {
    this.content = content;
    this.nodeIndex = new Map(content.nodes.map((name, i) => [name, i]));
    this.unplaced = new Map(Object.entries(content.unplaced));
    this.away = new Map(Object.entries(content.away ?? {}));
    this.gpus = new Map(Object.entries(content.gpus ?? {}));
    this.fabrics = [content.fabric];
    this.indexAnomalies();
    this.planned = new Map();
    for (const one of content.maintenance ?? []) push(this.planned, `${one.node}\n${one.link}`, one.text);
    this.legs = content.legs ?? [];
    this.legsOf = new Map();
    for (const leg of this.legs) {
      push(this.legsOf, `${leg.node}\n${leg.link}`, leg);
      push(this.legsOf, `${leg.toNode}\n${leg.toLink}`, leg);
    }
    this.shapes = content.shapes.map((shape) => this.readShape(shape));
    this.titles = titlesOf(content.hypernodes);
    this.groups = this.makeGroups();
    this.shortenTitles();
    this.switches = this.indexSwitches();
  }

  // --- making -------------------------------------------------------------------------------------------------

  indexAnomalies() {
    this.anomalies = this.content.anomalies;
    this.anomaliesOfLink = new Map();
    this.anomaliesOfNode = new Map();
    this.anomaliesOfSwitch = new Map();
    for (const anomaly of this.anomalies) {
      for (const node of anomaly.nodes.length ? anomaly.nodes : [anomaly.node]) {
        if (node) push(this.anomaliesOfNode, node, anomaly);
      }
      if (anomaly.node && anomaly.link) push(this.anomaliesOfLink, `${anomaly.node}\n${anomaly.link}`, anomaly);
      if (anomaly.switch) push(this.anomaliesOfSwitch, anomaly.switch, anomaly);
    }
  }

  /** Give each link of a shape the key of its column: rail or fabric, and a count where several have the same. */
  readShape(shape) {
    const seen = new Map();
    const columns = shape.links.map((link, i) => {
      const own = i < shape.own;
      const fabric = own ? this.content.fabric : shape.columns[i] || OTHER_FABRIC;
      if (!this.fabrics.includes(fabric)) this.fabrics.push(fabric);
      const base = own ? `rail ${shape.columns[i]}` : fabric;
      const count = (seen.get(base) ?? 0) + 1;
      seen.set(base, count);
      const label = own ? shape.columns[i] : `${fabric.slice(0, 1).toUpperCase()}${count}`;
      return { key: `${base}/${count}`, title: own && count === 1 ? base : `${base} ${count}`, label, fabric, own, rail: own ? shape.columns[i] : "" };
    });
    return { ...shape, columns };
  }

  makeGroups() {
    const members = new Map();
    this.content.nodes.forEach((_, i) => push(members, this.content.groups[i], i));
    const groups = [];
    for (const [place, nodes] of members) {
      const hypernode = this.content.hypernodes[place] ?? null;
      nodes.sort((a, b) => natural.compare(this.content.nodes[a], this.content.nodes[b]));
      const columns = new Map();
      for (const shape of new Set(nodes.map((node) => this.content.shapesOf[node]))) {
        for (const column of this.shapes[shape]?.columns ?? []) columns.set(column.key, column);
      }
      const group = { place, hypernode, name: hypernode?.name ?? "not in the tree", title: this.titles[place] ?? "not in the tree", nodes, columns: [...columns.values()].sort(byColumn) };
      group.linkOf = new Map();
      groups.push(group);
    }
    return groups.sort((a, b) => (a.place < 0) - (b.place < 0) || natural.compare(a.title, b.title));
  }

  /** Of the groups of one frame: what tells the title from the others, where there is little room for it. */
  shortenTitles() {
    const siblings = new Map();
    for (const group of this.groups) push(siblings, group.hypernode?.parent ?? -1, group);
    for (const groups of siblings.values()) {
      const [first, ...others] = groups.map((group) => group.title);
      let length = others.length ? first.length : 0;
      for (const title of others) while (!title.startsWith(first.slice(0, length))) length -= 1;
      const shared = /^.*[-_.: ]/.exec(first.slice(0, length))?.[0].length ?? 0;
      for (const group of groups) group.shortTitle = group.title.slice(shared) || group.title;
    }
  }

  indexSwitches() {
    const switches = new Map(this.content.switches.map((name) => [name, { name, cells: [] }]));
    this.groups.forEach((group, g) => {
      for (const node of group.nodes) {
        const shape = this.shapes[this.content.shapesOf[node]];
        shape?.switches.forEach((place, link) => {
          if (place >= 0) switches.get(this.content.switches[place]).cells.push({ group: g, node, link });
        });
      }
    });
    return switches;
  }

  // --- asking -------------------------------------------------------------------------------------------------

  nodeName(node) {
    return this.content.nodes[node];
  }

  /** The place of a group's column among the links of a node, or -1. */
  linkAt(group, node, column) {
    const shape = this.content.shapesOf[node];
    if (shape < 0) return -1;
    let places = group.linkOf.get(shape);
    if (!places) {
      const keys = new Map(this.shapes[shape].columns.map((entry, i) => [entry.key, i]));
      places = new Map(group.columns.map((entry) => [entry.key, keys.get(entry.key) ?? -1]));
      group.linkOf.set(shape, places);
    }
    return places.get(column.key);
  }

  /** Everything about one link that the document has. */
  link(node, link) {
    const shape = this.shapes[this.content.shapesOf[node]];
    const mark = Number(this.content.marks[node][link] ?? 0);
    const port = this.content.ports[node][link] ?? -1;
    const place = shape.switches[link];
    return {
      node: this.nodeName(node), name: shape.links[link], column: shape.columns[link],
      state: this.stateOf(node, link),
      switch: place < 0 ? "" : this.content.switches[place], port: port < 0 ? "" : this.content.portNames[port],
      stale: Boolean(mark & STALE), contested: Boolean(mark & CONTESTED),
      planned: this.plannedOn(this.nodeName(node), shape.links[link]),
      lost: this.legsAt(this.nodeName(node), shape.links[link]),
      anomalies: this.anomaliesOfLink.get(`${this.nodeName(node)}\n${shape.links[link]}`) ?? [],
    };
  }

  /** The symbol of a link's state: of a node that is away nothing is known now. */
  stateOf(node, link) {
    if (this.away.size && this.away.has(this.nodeName(node))) return AWAY;
    return STATES[this.content.states[node][link]] ?? NO_REPORT;
  }

  /** Words for each leg of a link that loses packets. */
  legsAt(node, link) {
    return (this.legsOf.get(`${node}\n${link}`) ?? []).map((leg) => {
      const much = leg.large ? "those of the full MTU" : leg.level === 100 ? "all" : `about ${leg.level} %`;
      const far = leg.node === node && leg.link === link ? `${leg.toNode} ${leg.toLink}` : `${leg.node} ${leg.link}`;
      return `${much} to and from ${far}`;
    });
  }

  /** The sentences about planned work on a link, or on its whole node. */
  plannedOn(node, link) {
    if (!this.planned.size) return [];
    return [...(this.planned.get(`${node}\n`) ?? []), ...(link && this.planned.get(`${node}\n${link}`) || [])];
  }

  /** The symbol of a cell in a color mode, whether it needs attention, and whether work on it is planned. */
  cell(node, link, mode) {
    const shape = this.shapes[this.content.shapesOf[node]];
    const state = this.stateOf(node, link);
    const anomalies = this.anomaliesOfLink.size
      ? this.anomaliesOfLink.get(`${this.content.nodes[node]}\n${shape.links[link]}`) : undefined;
    const stale = this.content.marks[node] !== "" && Boolean(Number(this.content.marks[node][link] ?? 0) & STALE);
    const attention = Boolean(state.trouble || anomalies);
    const planned = this.plannedOn(this.nodeName(node), shape.links[link]).length > 0;
    if (mode === "role") return { symbol: roleSymbol(this.fabrics, shape.columns[link].fabric), attention: false, stale, planned };
    if (mode === "anomaly") {
      const symbol = anomalies ? anomalySymbol(anomalies[0].kind) : { color: "--unused", shape: "square" };
      return { symbol, attention: Boolean(anomalies), stale: false, planned };
    }
    return { symbol: anomalies && !state.trouble && state !== AWAY ? { ...anomalySymbol(anomalies[0].kind) } : state, attention, stale, planned };
  }

  hasTrouble(node) {
    if (this.anomaliesOfNode.has(this.nodeName(node)) || this.unplaced.has(this.nodeName(node)) || this.away.has(this.nodeName(node)) || this.gpus.has(this.nodeName(node))) return true;
    for (const letter of this.content.states[node]) if (STATES[letter]?.trouble) return true;
    return this.content.shapesOf[node] < 0;
  }

  /** How many nodes below a HyperNode are in trouble, and why; empty if none is. */
  troubleBelow(place) {
    const isBelow = (at) => at === place || (at >= 0 && isBelow(this.content.hypernodes[at].parent));
    const nodes = this.groups.filter((group) => isBelow(group.place)).flatMap((group) => group.nodes);
    const bad = nodes.filter((node) => this.hasTrouble(node));
    const counts = new Map();
    for (const node of bad) {
      const why = new Set((this.anomaliesOfNode.get(this.nodeName(node)) ?? []).map((anomaly) => anomaly.kind));
      const away = this.away.get(this.nodeName(node));
      if (away) why.add(away.what);
      else for (const letter of this.content.states[node]) if (STATES[letter]?.trouble) why.add(STATES[letter].word);
      for (const gpu of this.gpus.get(this.nodeName(node)) ?? []) why.add(`GPU ${gpu.split(" ").at(-1)}`);
      if (this.content.shapesOf[node] < 0) why.add(NO_REPORT.word);
      for (const word of why) counts.set(word, (counts.get(word) ?? 0) + 1);
    }
    const words = [...counts].sort((a, b) => b[1] - a[1]).map(([word, count]) => `${count} ${word}`);
    return bad.length ? `${bad.length} of ${nodes.length} nodes: ${words.join(", ")}` : "";
  }

  /** The `at` of the place of a trouble; empty if the map does not have it. */
  placeOf(trouble) {
    const [node, link] = trouble.links[0] ?? [];
    let at = this.nodeIndex.has(trouble.where) ? `node:${trouble.where}` : `switch:${trouble.where}`;
    if (trouble.gpus?.length) at = `node:${trouble.gpus[0][0]}`;
    else if (trouble.linkCount === 1) at = `link:${node}/${link}`;
    else if (node && node !== trouble.where) {
      const first = this.find(`link:${node}/${link}`);
      at = first ? `switch:${this.link(first.node, first.link).switch}` : "";
    }
    if (!this.find(at) && this.content.hypernodes.some(({ name }) => name === trouble.where)) at = `hypernode:${trouble.where}`;
    return this.find(at) ? at : "";
  }

  /** The troubles of the list that concern this. */
  troublesAt(found) {
    if (found.kind === "link") {
      const { node, name } = this.link(found.node, found.link);
      return this.content.troubles.filter((trouble) => trouble.links.some(([on, link]) => on === node && link === name));
    }
    return this.content.troubles.filter((trouble) => trouble.where === found.name
      || (found.kind === "node" && (trouble.nodes ?? []).includes(found.name))
      || (found.kind === "node" && trouble.links.some(([node]) => node === found.name))
      || (found.kind === "switch" && this.placeOf(trouble) === `switch:${found.name}`));
  }

  countStates() {
    const counts = {};
    this.content.states.forEach((states, node) => {
      if (!this.away.has(this.nodeName(node))) for (const letter of states) counts[letter] = (counts[letter] ?? 0) + 1;
    });
    return counts;
  }

  get rails() {
    const rails = new Set(this.groups.flatMap((group) => group.columns.filter((column) => column.own).map((column) => column.rail)));
    return [...rails].sort(natural.compare);
  }

  /** At most `limit` things whose name has the text: HyperNodes, nodes, switches, ports. */
  search(text, limit = 12) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const found = [];
    const add = (kind, name, at, more = "") => found.length < 4 * limit && found.push({ kind, name, at, more });
    const has = (name) => name.toLowerCase().includes(wanted);
    this.content.hypernodes.forEach(({ name }, i) => {
      if (has(name) || has(this.titles[i])) add("HyperNode", this.titles[i], `hypernode:${name}`, `HyperNode ${name}`);
    });
    for (const name of this.content.nodes) if (has(name)) add("node", name, `node:${name}`);
    for (const name of this.switches.keys()) if (has(name)) add("switch", name, `switch:${name}`);
    const parts = wanted.split(/\s+/);
    const ports = new Set(this.content.portNames.flatMap((name, i) => (name.toLowerCase() === parts.at(-1) ? [i] : [])));
    const [node, link] = parts;
    if (parts.length === 2 && this.nodeIndex.has(node)) add("link", `${node} ${link}`, `link:${node}/${link}`, "link by any of its names");
    if (ports.size) this.searchPorts(ports, parts.slice(0, -1).join(" "), add);
    const rank = (entry) => (entry.name.toLowerCase() === wanted ? 0 : entry.name.toLowerCase().startsWith(wanted) ? 1 : 2);
    return found.sort((a, b) => rank(a) - rank(b) || natural.compare(a.name, b.name)).slice(0, limit);
  }

  searchPorts(ports, switchPart, add) {
    this.content.ports.forEach((row, node) => row.forEach((port, link) => {
      if (!ports.has(port)) return;
      const entry = this.link(node, link);
      if (entry.switch.toLowerCase().includes(switchPart)) {
        add("port", `${entry.switch} ${entry.port}`, `link:${entry.node}/${entry.name}`, `${entry.node} ${entry.name}`);
      }
    }));
  }

  /** What `at` of the view state names: {kind, ...}, or null. */
  find(at) {
    const [kind, name] = splitOnce(at, ":");
    if (kind === "node" && this.nodeIndex.has(name)) return { kind, node: this.nodeIndex.get(name), name };
    if (kind === "switch" && this.switches.has(name)) return { kind, name };
    if (kind === "hypernode" && this.content.hypernodes.some((entry) => entry.name === name)) return { kind, name };
    if (kind === "link") {
      const [nodeName, linkName] = splitOnce(name, "/");
      const node = this.nodeIndex.get(nodeName);
      const link = node === undefined ? -1 : this.shapes[this.content.shapesOf[node]]?.links.indexOf(linkName) ?? -1;
      if (link >= 0) return { kind, node, link, name };
    }
    return null;
  }
}

/** The title of each HyperNode on the map: what the names of its switches share, or of those below it. */
function titlesOf(hypernodes) {
  const below = hypernodes.map(() => []);
  const byTier = hypernodes.map((entry, i) => ({ entry, i })).sort((a, b) => a.entry.tier - b.entry.tier);
  for (const { entry, i } of byTier) {
    if (!below[i].length) below[i].push(...entry.switches);
    if (entry.parent >= 0) below[entry.parent].push(...below[i]);
  }
  const titles = below.map((names, i) => sharedBy(names) || hypernodes[i].name);
  const isShared = (i) => titles.some((title, k) => k !== i && title === titles[i] && hypernodes[k].tier === hypernodes[i].tier);
  return titles.map((title, i) => {
    if (!isShared(i)) return title;
    const [first, ...others] = [...new Set(below[i])].sort(natural.compare);
    return first ? `${first}${others.length ? ` +${others.length}` : ""}` : hypernodes[i].name;
  });
}

/** How all names begin, without half of a number and without what joins it to the rest. */
function sharedBy(names) {
  const [first = "", ...others] = names;
  if (!others.length) return first;
  let length = first.length;
  for (const name of others) while (!name.startsWith(first.slice(0, length))) length -= 1;
  const cut = names.some((name) => /[0-9]/.test(name[length] ?? ""));
  const shared = first.slice(0, length);
  return (cut ? shared.replace(/[0-9]+$/, "") : shared).replace(/([-_.: ]+(leaf|tor|switch|sw|rail|r)?)+$/i, "");
}

function byColumn(a, b) {
  return b.own - a.own || natural.compare(a.key, b.key);
}

function push(map, key, value) {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

function splitOnce(text, mark) {
  const place = text.indexOf(mark);
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}
