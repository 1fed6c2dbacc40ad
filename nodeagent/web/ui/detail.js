// The panel of what is selected: a link, a node, a switch or a HyperNode.

import { bits, clock, duration, el, pairs, table } from "./dom.js";
import { chooser, linkTo, reasonKey, symbol } from "./parts.js";
import { anomalySymbol, AWAY } from "./symbols.js";
import { troubleEntry } from "./troubles.js";

/**
 * The content for a selection. `reportOf(name)` resolves to the node's whole report with words for its reasons,
 * or to null.
 */
export function describe(model, found, select, reportOf) {
  if (!found) return [];
  const parts = { link: aboutLink, node: aboutNode, switch: aboutSwitch, hypernode: aboutHyperNode }[found.kind](model, found, select, reportOf);
  const close = el("button", { class: "close", type: "button", "aria-label": "Close", onclick: () => select(""), text: "✕" });
  parts[0].append(close);
  return parts;
}

/** One sentence for a screen reader and for the tip. */
export function sentence(model, found) {
  if (found?.kind === "link") {
    const link = model.link(found.node, found.link);
    const to = link.switch ? `to ${link.switch} ${link.port}` : "no neighbor";
    return `${link.node} ${link.name}: ${link.state.word}, ${to}${link.anomalies.length ? `; ${anomalySymbol(link.anomalies[0].kind).word}` : ""}${link.planned.length ? "; under maintenance" : ""}${link.lost.length ? `; loses probes: ${link.lost.slice(0, 4).join(", ")}` : ""}`;
  }
  return found ? `${found.kind} ${found.name}` : "";
}

function aboutLink(model, found, select, reportOf) {
  const link = model.link(found.node, found.link);
  const group = model.content.hypernodes[model.content.groups[found.node]];
  const more = el("div", {}, el("p", { class: "quiet", text: "Reading the report of the node…" }));
  fillReport(more, link.node, reportOf(link.node), (report) => reportedLink(report, link.name));
  return [
    el("h2", {}, el("span", {}, symbol(link.state), ` ${link.node} · ${link.name}`)),
    troublesOf(model, found, select),
    pairs(
      ["State", `${link.state === AWAY ? `${link.state.word}: as last reported` : link.state.word}${link.stale ? ", and the LLDP information has expired" : ""}`],
      ["Planned", link.planned.join("; ")],
      ["Lost probes", link.lost.join("; ")],
      ["Column", link.column.title],
      ["Switch", chooser(link.switch, `switch:${link.switch}`, select)],
      ["Port", link.port],
      ["Contested", link.contested && "another device announces itself on this link too"],
      ["Node", chooser(link.node, `node:${link.node}`, select)],
      ["Leaf group", group && chooser(group.name, `hypernode:${group.name}`, select)],
    ),
    more,
  ];
}

function aboutNode(model, found, select, reportOf) {
  const group = model.content.hypernodes[model.content.groups[found.node]];
  const shape = model.shapes[model.content.shapesOf[found.node]];
  const away = model.away.get(found.name);
  const rows = (shape?.links ?? []).map((_, i) => {
    const link = model.link(found.node, i);
    const planned = `${link.planned.length ? ", under maintenance" : ""}${link.lost.length ? `, loses probes: ${link.lost.join(", ")}` : ""}`;
    return [chooser(link.name, `link:${link.node}/${link.name}`, select), el("span", {}, symbol(link.state), ` ${link.state.word}${planned}`),
      chooser(link.switch, `switch:${link.switch}`, select), link.port];
  });
  const more = el("div");
  fillReport(more, found.name, reportOf(found.name), (report) => [
    ...(report.gpus ?? []).length ? [el("h3", { text: "GPUs in trouble" }), ...report.gpus.map((gpu) => reportedGpu(gpu, report))] : [],
    ...report.links.flatMap((link) => (link.reasons ?? []).length ? [el("h3", { text: link.name }), ...reasons(link, report)] : []),
    holders(report.holders ?? []),
  ]);
  return [
    el("h2", {}, el("span", { text: found.name })),
    pairs(
      ["Leaf group", group && chooser(group.name, `hypernode:${group.name}`, select)],
      ["Away", away && `${away.what}${away.since ? `, since ${clock(away.since)}` : ""}: ${away.detail}. Its links are as last reported.`],
      ["Not placed", model.unplaced.get(found.name)],
      ["Planned", model.plannedOn(found.name, "").join("; ")],
      ["Report", !shape && "none: is the agent running on this node?"],
    ),
    troublesOf(model, found, select),
    rows.length ? table("Links", ["Link", "State", "Switch", "Port"], rows) : "",
    more,
    nodePage(model, found.name),
  ];
}

/** The link to the page of the node's own agent, or how to get there. */
function nodePage(model, node) {
  const template = model.content.nodePage;
  if (template) return el("p", {}, linkTo(`Page of ${node}`, template.replaceAll("{node}", encodeURIComponent(node))), ": present values, GPUs and curves");
  return el("p", { class: "quiet" }, "Present values and GPUs: ", el("code", { text: `kubectl nodeagent health ${node}` }), ". With web.nodePage in the file of the controller this is a link to the page of the node.");
}

function aboutSwitch(model, found, select) {
  const { cells } = model.switches.get(found.name);
  const rows = cells.slice(0, 400).map(({ node, link }) => {
    const entry = model.link(node, link);
    return [entry.port, chooser(entry.node, `node:${entry.node}`, select), chooser(entry.name, `link:${entry.node}/${entry.name}`, select),
      el("span", {}, symbol(entry.state), ` ${entry.state.word}${entry.planned.length ? ", under maintenance" : ""}`)];
  });
  rows.sort((a, b) => a[0].localeCompare(b[0], "en", { numeric: true }));
  const groups = model.content.hypernodes.filter((entry) => entry.switches.includes(found.name));
  return [
    el("h2", {}, el("span", { text: found.name })),
    pairs(
      ["Links", String(cells.length)],
      ["Leaf group", groups.length > 0 && groups.map((entry) => chooser(entry.name, `hypernode:${entry.name}`, select))],
    ),
    troublesOf(model, found, select),
    table(cells.length > rows.length ? `The first ${rows.length} links` : "Links", ["Port", "Node", "Link", "State"], rows),
  ];
}

function aboutHyperNode(model, found, select) {
  const place = model.content.hypernodes.findIndex((entry) => entry.name === found.name);
  const hypernode = model.content.hypernodes[place];
  const children = model.content.hypernodes.filter((entry) => entry.parent === place);
  const group = model.groups.find((entry) => entry.place === place);
  const parent = model.content.hypernodes[hypernode.parent];
  const rows = (group?.nodes ?? []).slice(0, 200).map((node) => {
    const away = model.away.get(model.nodeName(node));
    if (away) return [chooser(model.nodeName(node), `node:${model.nodeName(node)}`, select), away.what];
    const bad = group.columns.flatMap((column) => {
      const link = model.linkAt(group, node, column);
      if (link < 0) return [];
      const entry = model.link(node, link);
      return entry.state.trouble || entry.anomalies.length ? [`${entry.name} ${entry.anomalies.length ? anomalySymbol(entry.anomalies[0].kind).word : entry.state.word}`] : [];
    });
    bad.unshift(...model.gpus.get(model.nodeName(node)) ?? []);
    return [chooser(model.nodeName(node), `node:${model.nodeName(node)}`, select), bad.join(", ") || "all links healthy"];
  });
  return [
    el("h2", {}, el("span", { text: hypernode.name })),
    pairs(
      ["Tier", `${hypernode.tier} (${hypernode.tierName})`],
      ["On the map", model.titles[place] !== hypernode.name && model.titles[place]],
      ["Members", String(hypernode.members)],
      ["In trouble", model.troubleBelow(place)],
      ["Below", parent && chooser(parent.name, `hypernode:${parent.name}`, select)],
      ["Derived from", hypernode.derivedFrom],
      ["Switches", hypernode.switches.length > 0 && hypernode.switches.map((name) => el("div", {},
        model.switches.has(name) ? chooser(name, `switch:${name}`, select) : name))],
      ["Contains", children.length > 0 && children.map((entry) => el("div", {}, chooser(entry.name, `hypernode:${entry.name}`, select)))],
    ),
    rows.length ? table(group.nodes.length > rows.length ? `The first ${rows.length} nodes` : "Nodes", ["Node", "Links"], rows) : "",
  ];
}

/** What is wrong here, as in the list; an anomaly that only touches this place too. */
function troublesOf(model, found, select) {
  const troubles = model.troublesAt(found);
  const said = troubles.flatMap((one) => one.details).join("\n");
  const { anomalies } = found.kind === "link" ? model.link(found.node, found.link)
    : { anomalies: (found.kind === "node" ? model.anomaliesOfNode : model.anomaliesOfSwitch).get(found.name) ?? [] };
  return el("div", { class: "troubles" }, troubles.map((one) => troubleEntry(model, one, select, `${found.kind}:${found.name}`)),
    anomalies.filter((anomaly) => !said.includes(anomaly.message)).map((anomaly) => el("div", { class: "reason grave" },
      el("b", {}, symbol(anomalySymbol(anomaly.kind)), ` ${anomalySymbol(anomaly.kind).word}`), el("p", { text: anomaly.message }))));
}

/** The last report that was shown: a new document does not empty the panel until its own report arrives. */
let last = { node: "", report: null };

/** Fill a place when the report arrives; a report that cannot be had says so. */
function fillReport(place, node, promise, content) {
  const show = (report) => place.replaceChildren(...(report ? content(report) : []));
  if (last.report && last.node === node) show(last.report);
  promise.then(
    (report) => {
      if (place.isConnected) last = { node, report };
      show(report);
    },
    (error) => place.replaceChildren(el("p", { class: "quiet", text: `The report of the node cannot be read: ${error.message}` })),
  );
}

function reportedLink(report, name) {
  const link = report.links.find((entry) => entry.name === name);
  if (!link) return [];
  const { neighbor } = link;
  const since = link.lastTransitionTime ? Date.parse(link.lastTransitionTime) / 1000 : null;
  return [
    pairs(
      ["Since", since && `${clock(since)}, ${duration(Date.now() / 1000 - since)} ago`],
      ["Speed", bits(link.speedMbps)],
      ["Netdev", link.netdev],
      ["PCI address", link.pciAddress],
      ["MAC", link.mac],
      ["Type", link.linkType],
      ["Neighbor", neighbor && `${neighbor.systemName ?? "without a name"}, chassis ${neighbor.chassisID.value}`],
      ["Port there", neighbor && [neighbor.portID.value, neighbor.portDescription].filter(Boolean).join(" — ")],
      ["Management", neighbor?.managementAddresses?.join(", ")],
    ),
    ...((link.reasons ?? []).length ? [el("h3", { text: "Reasons" }), ...reasons(link, report)] : []),
    holders((report.holders ?? []).map((holder) => ({ ...holder, vfs: holder.vfs.filter((vf) => vf.link === name) })).filter((holder) => holder.vfs.length)),
  ];
}

/** A GPU in trouble: its state, since when, why, and the pods that hold it. */
function reportedGpu(gpu, { runbook }) {
  const since = gpu.since ? Date.parse(gpu.since) / 1000 : null;
  return el("div", { class: "reason" },
    el("p", {}, el("b", { text: gpu.index == null ? `GPU at ${gpu.pciAddress ?? "an unknown place"}` : `GPU ${gpu.index}` }),
      ` ${gpu.state}${since ? `, since ${clock(since)}` : ""}${gpu.index != null && gpu.pciAddress ? `, ${gpu.pciAddress}` : ""}`),
    ...(gpu.reasons ?? []).map((key, i) => el("p", {}, reasonKey(key, runbook), ` ${gpu.reasonDetails?.[i] ?? ""}`)),
    (gpu.pods ?? []).length > 0 && el("p", {}, el("b", { text: "pods " }), gpu.pods.join(", ")));
}

/** The reasons of a link: the value that started each beside its threshold, and what clears it by the rule's default. */
function reasons(link, { reasons: words, runbook }) {
  const rules = new Map(Object.entries(words ?? {}));
  return link.reasons.map((key, i) => {
    const rule = rules.get(key);
    const detail = link.reasonDetails?.[i];
    return el("div", { class: "reason" }, reasonKey(key, runbook),
      detail && el("p", { class: "measured", text: detail }),
      rule && el("p", { class: detail ? "quiet" : "", text: `${rule.meaning} Threshold by default: ${rule.threshold}. Clears: ${rule.clears}.` }));
  });
}

/** The pods with VFs, each with its VFs and since when. */
function holders(list) {
  if (!list.length) return el("p", { class: "quiet", text: "The report names no pod with a VF here. Agents add pods if `cluster.reportHolders` is on." });
  const now = Date.now() / 1000;
  return table("VFs that pods hold", ["Pod", "VFs", "Since"], list.map((holder) => {
    const since = Date.parse(holder.since) / 1000;
    return [`${holder.namespace}/${holder.pod}`, el("span", {}, holder.vfs.map((vf) => el("div", { class: "mono", text: `${vf.link} ${vf.pciAddress}` }))),
      since ? `${clock(since)}, ${duration(now - since)} ago` : ""];
  }));
}
