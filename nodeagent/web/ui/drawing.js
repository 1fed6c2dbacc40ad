// Draw blocks and frames of the map with a pen. The same code draws on a canvas and into an SVG file.

import { count, plain } from "./dom.js";
import { CELL, HEADS, PAD, rowTop, TITLE } from "./layout.js";
import { PLANNED, SHAPES } from "./symbols.js";

const FONT = "system-ui, sans-serif";
const SHAPE_PX = 5; // a smaller cell is a square of its color
const TEXT_PX = 6; // smaller text is left out
export const TITLES_SCALE = 9 / 14; // below, a map has titles of a fixed size above its blocks and frames instead

/** Draws on a canvas; `scale` is pixels by unit of the map. */
export class CanvasPen {
  static paths = Object.fromEntries(Object.entries(SHAPES).map(([name, path]) => [name, new Path2D(path)]));

  constructor(context, colors, scale) {
    this.context = context;
    this.colors = colors;
    this.scale = scale;
    this.color = "";
  }

  rect(x, y, width, height, color) {
    if (this.color !== color) this.context.fillStyle = this.colors[this.color = color];
    this.context.fillRect(x, y, width, height);
  }

  outline(x, y, width, height, color, line) {
    this.context.strokeStyle = this.colors[color];
    this.context.lineWidth = line;
    this.context.strokeRect(x, y, width, height);
  }

  shape(x, y, name, color) {
    if (name === "square" || CELL * this.scale < SHAPE_PX) return this.rect(x, y, CELL, CELL, color);
    this.context.save();
    this.context.translate(x + 1, y + 1);
    this.context.fillStyle = this.colors[this.color = color];
    this.context.fill(CanvasPen.paths[name]);
    this.context.restore();
    this.color = "";
  }

  text(x, y, text, color, size, { bold = false, width = Infinity, middle = false } = {}) {
    if (size * this.scale < TEXT_PX) return;
    this.context.font = `${bold ? 600 : 400} ${size}px ${FONT}`;
    this.context.textAlign = middle ? "center" : "left";
    this.context.fillStyle = this.colors[this.color = color];
    this.context.fillText(this.fit(text, width), x, y);
  }

  measure(text, size, bold = false) {
    this.context.font = `${bold ? 600 : 400} ${size}px ${FONT}`;
    return this.context.measureText(text).width;
  }

  fit(text, width) {
    if (width === Infinity || this.context.measureText(text).width <= width) return text;
    let kept = text;
    while (kept && this.context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
    return `${kept}…`;
  }
}

/** Writes SVG, with each shape as one symbol. Text is escaped here, the only place that makes markup. */
export class SvgPen {
  constructor(colors) {
    this.colors = colors;
    this.parts = [];
    this.scale = 1;
    this.origin = { x: 0, y: 0 };
  }

  rect(x, y, width, height, color) {
    this.parts.push(`<rect x="${n(x + this.origin.x)}" y="${n(y + this.origin.y)}" width="${n(width)}" height="${n(height)}" fill="${this.colors[color]}"/>`);
  }

  outline(x, y, width, height, color, line) {
    this.parts.push(`<rect x="${n(x + this.origin.x)}" y="${n(y + this.origin.y)}" width="${n(width)}" height="${n(height)}" fill="none" stroke="${this.colors[color]}" stroke-width="${line}"/>`);
  }

  shape(x, y, name, color) {
    if (name === "square") return this.rect(x, y, CELL, CELL, color);
    this.parts.push(`<use href="#${name}" x="${n(x + 1 + this.origin.x)}" y="${n(y + 1 + this.origin.y)}" fill="${this.colors[color]}"/>`);
  }

  line({ from, over, to, color, dashed }) {
    this.parts.push(`<path d="M${n(from.x)} ${n(from.y)}Q${n(over.x)} ${n(over.y)} ${n(to.x)} ${n(to.y)}" fill="none" stroke="${this.colors[color]}" stroke-width="1.5"${dashed ? ' stroke-dasharray="4 3"' : ""}/>`);
  }

  measure(text, size, bold = false) {
    return text.length * size * (bold ? 0.62 : 0.56);
  }

  text(x, y, text, color, size, { bold = false, width = Infinity, middle = false } = {}) {
    const limit = Math.floor(width / (size * 0.55));
    const kept = text.length > limit ? `${text.slice(0, Math.max(0, limit - 1))}…` : text;
    this.parts.push(`<text x="${n(x + this.origin.x)}" y="${n(y + this.origin.y)}" font-size="${size}" fill="${this.colors[color]}"${bold ? ' font-weight="600"' : ""}${middle ? ' text-anchor="middle"' : ""}>${escaped(kept)}</text>`);
  }
}

function n(number) {
  return Number(number.toFixed(1));
}

export function escaped(text) {
  return plain(text).replace(/[&<>"']/g, (char) => `&#${char.codePointAt(0)};`);
}

/** Draw a block with its origin at 0, 0. `rows` limits what is drawn to rows from, to. */
export function drawBlock(pen, model, block, mode, rows = [0, block.nodes.length]) {
  const { group } = block;
  pen.rect(0, 0, block.width, block.height, "--block");
  if (pen.scale >= TITLES_SCALE) {
    pen.text(PAD, 14, group.title, "--ink", 11, { bold: true, width: block.width - 2 * PAD - 44 });
    pen.text(block.width - PAD - 40, 14, count(block.nodes.length, "node"), "--quiet", 9, { width: 44 });
  }
  block.columns.forEach((column, i) => {
    pen.text(block.lefts[i] + CELL / 2, TITLE + HEADS - 4, column.label, "--quiet", 8, { middle: true, width: CELL + 2 });
  });
  for (let row = rows[0]; row < rows[1]; row += 1) {
    const node = block.nodes[row];
    const top = rowTop(row);
    const unplaced = model.unplaced.has(model.nodeName(node));
    const name = model.nodeName(node);
    const color = unplaced || model.away.has(name) || model.gpus.has(name) ? "--down" : "--ink";
    pen.text(PAD, top + 9.4, name, color, 9, { width: block.nameWidth - 8 });
    block.columns.forEach((column, i) => {
      const link = model.linkAt(group, node, column);
      if (link < 0) return;
      drawCell(pen, block.lefts[i], top, model.cell(node, link, mode));
    });
  }
}

function drawCell(pen, x, y, { symbol, attention, stale, planned }) {
  pen.shape(x, y, symbol.shape, symbol.color);
  if (planned && CELL * pen.scale >= SHAPE_PX) pen.shape(x, y, PLANNED.shape, "--paper");
  if (stale) pen.rect(x, y + CELL - 3, CELL, 3, "--paper");
  if (attention) pen.outline(x - 0.5, y - 0.5, CELL + 1, CELL + 1, "--ink", 0.7);
}

/** Draw the frame of a HyperNode above leaf groups, at its place. */
export function drawFrame(pen, frame) {
  pen.rect(frame.x, frame.y, frame.width, frame.height, "--frame");
  pen.outline(frame.x + 0.5, frame.y + 0.5, frame.width - 1, frame.height - 1, "--line", 1);
  const { tierName, derivedFrom, members } = frame.hypernode;
  if (pen.scale < TITLES_SCALE) return;
  const about = [tierName, `${count(members, "member")}`, derivedFrom && `by ${derivedFrom}`].filter(Boolean).join(" · ");
  pen.text(frame.x + 14, frame.y + 19, frame.title, "--ink", 14, { bold: true, width: frame.width / 2 });
  pen.text(frame.x + 26 + Math.min(pen.measure(frame.title, 14, true), frame.width / 2), frame.y + 19, about, "--quiet", 11, { width: frame.width / 2 - 40 });
}

/** The lines of the legs that lose packets, between the cells that the map shows; `at`: those of this link, node or switch alone. */
export function legLines(model, layout, at = null) {
  if (!model.legs.length) return [];
  const cells = new Map();
  for (const block of layout.blocks) {
    block.nodes.forEach((node, row) => block.columns.forEach((column, i) => {
      const link = model.linkAt(block.group, node, column);
      if (link < 0) return;
      const key = `${model.nodeName(node)}\n${model.shapes[model.content.shapesOf[node]].links[link]}`;
      if (model.legsOf.has(key)) cells.set(key, { x: block.x + block.lefts[i] + CELL / 2, y: block.y + rowTop(row) + CELL / 2, node, link });
    }));
  }
  const isAt = (cell) => at.kind === "link" ? at.node === cell.node && at.link === cell.link
    : at.kind === "node" ? at.node === cell.node
    : at.kind === "switch" ? model.link(cell.node, cell.link).switch === at.name : true;
  return model.legs.flatMap((leg) => {
    const from = cells.get(`${leg.node}\n${leg.link}`), to = cells.get(`${leg.toNode}\n${leg.toLink}`);
    if (!from || !to || (at && !isAt(from) && !isAt(to))) return [];
    // An arc, so that legs of one column are not one line.
    const dx = to.x - from.x, dy = to.y - from.y, bend = Math.min(0.2, 40 / Math.max(1, Math.hypot(dx, dy)));
    const over = { x: from.x + dx / 2 - dy * bend, y: from.y + dy / 2 + dx * bend };
    return [{ from, to, over, color: leg.level === 100 || leg.large ? "--down" : "--degraded", dashed: Boolean(leg.large) }];
  });
}

/** The whole map as an SVG file. */
export function asSvg(model, layout, mode, colors, legend, title) {
  const pen = new SvgPen(colors);
  const height = layout.height + 40;
  pen.rect(0, 0, layout.width, height, "--paper");
  for (const frame of [...layout.frames].sort((a, b) => b.hypernode.tier - a.hypernode.tier)) drawFrame(pen, frame);
  for (const block of layout.blocks) {
    pen.origin = { x: block.x, y: block.y };
    drawBlock(pen, model, block, mode);
  }
  pen.origin = { x: 0, y: 0 };
  for (const line of legLines(model, layout)) pen.line(line);
  let x = 14;
  for (const entry of legend) {
    pen.shape(x, height - 28, entry.shape, entry.color);
    pen.text(x + 18, height - 18, entry.word, "--ink", 11);
    x += 34 + entry.word.length * 6.5;
  }
  const symbols = Object.entries(SHAPES).map(([name, path]) => `<path id="${name}" d="${path}"/>`).join("");
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${n(layout.width)} ${n(height)}" font-family="${FONT}">`
    + `<title>${escaped(title)}</title><defs>${symbols}</defs>${pen.parts.join("")}</svg>\n`;
}
