// The canvas: pan, zoom, keyboard and the drawing of a frame.
// Each block is drawn once into a bitmap of the present zoom; a step of a pan only places bitmaps.

import { CanvasPen, drawBlock, drawFrame, legLines, TITLES_SCALE } from "./drawing.js";
import { CELL, GAP, HEADS, hit, layOut, rowTop, TITLE } from "./layout.js";

const BUDGET_MS = 8; // for drawing blocks again within one frame
const BITMAP_MAX = 4096; // pixels of a side; a larger block is drawn directly, its visible rows alone
const CACHE_PIXELS = 24e6;
const SPOT_PX = 4; // a cell that needs attention is at least so large
const ZOOM_MAX = 6;

export class FabricMap {
  /** `handlers` are {select(at), hover(hit, x, y), moved(view)}. */
  constructor(canvas, handlers) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.handlers = handlers;
    this.view = null; // {x, y, scale}: the point of the map in the middle of the window, and pixels by unit
    this.bitmaps = new Map();
    this.pointers = new Map();
    this.selected = null;
    canvas.fabricMap = this; // for a console, and for the tests
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.listen();
  }

  show(model, options) {
    const first = !this.model;
    this.model = model;
    this.options = options;
    this.bitmaps.clear();
    const { width, height } = this.size();
    this.layout = layOut(model, options, width / Math.max(1, height), height);
    this.place = new Map(this.layout.blocks.flatMap((block) => block.nodes.map((node, row) => [node, { block, row }])));
    this.findSpots();
    this.lines = legLines(model, this.layout, this.selected);
    if (first || !this.view || this.fitted) this.fit();
    this.draw();
  }

  /** The cells that need attention, so that they can be drawn large enough to be seen in the whole fabric. */
  findSpots() {
    this.spots = [];
    for (const block of this.layout.blocks) {
      block.nodes.forEach((node, row) => block.columns.forEach((column, i) => {
        const link = this.model.linkAt(block.group, node, column);
        if (link < 0) return;
        const { attention, symbol } = this.model.cell(node, link, this.options.color);
        if (attention) this.spots.push({ x: block.x + block.lefts[i] + CELL / 2, y: block.y + rowTop(row) + CELL / 2, symbol });
      }));
    }
  }

  setColors(colors) {
    this.colors = colors;
    this.bitmaps.clear();
    this.draw();
  }

  /** New colors at once: a printer does not wait for the next frame. */
  recolor(colors) {
    this.setColors(colors);
    this.drawNow();
  }

  size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { width, height } = this.size();
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    if (this.layout && this.fitted) this.fit();
    this.drawNow();
  }

  // --- view ---------------------------------------------------------------------------------------------------

  fit() {
    const { width, height } = this.size();
    const scale = Math.max(0.01, Math.min(width / this.layout.width, height / this.layout.height, 1.6));
    this.view = { x: this.layout.width / 2, y: this.layout.height / 2, scale };
    this.fitted = true;
    this.moved();
  }

  moveTo(view) {
    this.view = view;
    this.fitted = false;
    this.draw();
  }

  moved() {
    this.handlers.moved(this.fitted ? null : this.view);
    this.draw();
  }

  zoom(factor, x, y) {
    const { width, height } = this.size();
    const before = this.view;
    const fitScale = Math.min(width / this.layout.width, height / this.layout.height);
    const scale = Math.min(ZOOM_MAX, Math.max(Math.min(fitScale * 0.8, 1), before.scale * factor));
    const dx = (x ?? width / 2) - width / 2, dy = (y ?? height / 2) - height / 2;
    this.view = { x: before.x + dx / before.scale - dx / scale, y: before.y + dy / before.scale - dy / scale, scale };
    this.fitted = false;
    this.moved();
  }

  pan(dx, dy) {
    this.view = { ...this.view, x: this.view.x - dx / this.view.scale, y: this.view.y - dy / this.view.scale };
    this.fitted = false;
    this.moved();
  }

  toMap(x, y) {
    const { width, height } = this.size();
    return [this.view.x + (x - width / 2) / this.view.scale, this.view.y + (y - height / 2) / this.view.scale];
  }

  // --- selection ----------------------------------------------------------------------------------------------

  /** Mark what is selected; `reveal` moves the view if it is not to be seen well. */
  select(found, reveal) {
    this.selected = found;
    this.marked = found ? this.boxesOf(found) : [];
    this.lines = legLines(this.model, this.layout, found);
    if (reveal && this.marked.length) this.reveal(this.marked[0]);
    this.draw();
  }

  boxesOf(found) {
    const ofNode = (node) => {
      const place = this.place.get(node);
      return place && { x: place.block.x + 3, y: place.block.y + rowTop(place.row) - 1, width: place.block.width - 6, height: CELL + 2 };
    };
    const ofLink = (node, link) => {
      const place = this.place.get(node);
      const column = place?.block.columns.findIndex((entry) => this.model.linkAt(place.block.group, node, entry) === link) ?? -1;
      return column < 0 ? undefined
        : { x: place.block.x + place.block.lefts[column] - 2, y: place.block.y + rowTop(place.row) - 2, width: CELL + 4, height: CELL + 4 };
    };
    const boxes = found.kind === "node" ? [ofNode(found.node)]
      : found.kind === "link" ? [ofLink(found.node, found.link)]
      : found.kind === "switch" ? this.model.switches.get(found.name).cells.map((cell) => ofLink(cell.node, cell.link))
      : [...this.layout.blocks.filter((block) => block.group.name === found.name), ...this.layout.frames.filter((frame) => frame.hypernode.name === found.name)];
    return boxes.filter(Boolean);
  }

  reveal(box) {
    const { width, height } = this.size();
    const [left, top] = this.toMap(0, 0), [right, bottom] = this.toMap(width, height);
    const inside = box.x > left && box.y > top && box.x + box.width < right && box.y + box.height < bottom;
    const readable = this.view.scale * CELL >= 7 || box.height * this.view.scale > height / 3;
    if (inside && readable) return;
    const scale = readable ? this.view.scale : Math.min(1.2, 0.9 * width / box.width, 0.9 * height / box.height);
    this.view = { x: box.x + box.width / 2, y: box.y + box.height / 2, scale: Math.max(scale, this.view.scale) };
    this.fitted = false;
    this.moved();
  }

  // --- input --------------------------------------------------------------------------------------------------

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 16 : 1;
      this.zoom(Math.exp(-event.deltaY * lines / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, moved: 0 });
    });
    canvas.addEventListener("pointermove", (event) => this.pointerMoved(event));
    canvas.addEventListener("pointerup", (event) => this.pointerUp(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => this.handlers.hover(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  pointerMoved(event) {
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) {
      if (this.layout) this.handlers.hover(hit(this.layout, ...this.toMap(event.offsetX, event.offsetY)), event.offsetX, event.offsetY);
      return;
    }
    const dx = event.offsetX - pointer.x, dy = event.offsetY - pointer.y;
    const others = [...this.pointers.values()].filter((other) => other !== pointer);
    if (others.length) {
      const distance = (x, y) => Math.hypot(x - others[0].x, y - others[0].y);
      this.zoom(distance(event.offsetX, event.offsetY) / Math.max(1, distance(pointer.x, pointer.y)), others[0].x, others[0].y);
    } else if (pointer.moved + Math.hypot(dx, dy) > 3) {
      this.pan(dx, dy);
    }
    Object.assign(pointer, { x: event.offsetX, y: event.offsetY, moved: pointer.moved + Math.hypot(dx, dy) });
  }

  pointerUp(event) {
    const pointer = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    if (!pointer || pointer.moved > 3 || !this.layout) return;
    this.handlers.select(this.at(hit(this.layout, ...this.toMap(event.offsetX, event.offsetY))));
  }

  /** The `at` of the view state for a point that was hit. */
  at(found) {
    if (!found) return "";
    if (found.frame) return `hypernode:${found.frame.hypernode.name}`;
    const { block, row, column } = found;
    if (row < 0) return block.group.hypernode ? `hypernode:${block.group.name}` : "";
    const node = block.nodes[row];
    const link = column < 0 ? -1 : this.model.linkAt(block.group, node, block.columns[column]);
    return link < 0 ? `node:${this.model.nodeName(node)}` : `link:${this.model.link(node, link).node}/${this.model.link(node, link).name}`;
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key in steps && event.shiftKey) this.pan(-60 * steps[event.key][0], -60 * steps[event.key][1]);
    else if (event.key in steps) this.step(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") this.handlers.select("");
    else return;
    event.preventDefault();
  }

  /** Select the next cell in a direction; at the edge of a block, the next block in that direction. */
  step(dx, dy) {
    const { selected, layout } = this;
    if (!layout?.blocks.length) return;
    const place = selected && "node" in selected ? this.place.get(selected.node) : null;
    if (!place) return this.handlers.select(this.at({ block: layout.blocks[0], row: 0, column: 0 }));
    const { block, row } = place;
    const column = selected.kind === "link"
      ? block.columns.findIndex((entry) => this.model.linkAt(block.group, selected.node, entry) === selected.link) : -1;
    const next = { block, row: row + dy, column: Math.max(-1, column + dx) };
    if (next.row < 0 || next.row >= block.nodes.length || next.column >= block.columns.length || column + dx < -1) {
      const other = this.neighborOf(block, dx, dy);
      if (!other) return;
      next.block = other;
      next.row = dy > 0 ? 0 : dy < 0 ? other.nodes.length - 1 : Math.min(row, other.nodes.length - 1);
      next.column = dx > 0 ? 0 : dx < 0 ? other.columns.length - 1 : Math.min(column, other.columns.length - 1);
    }
    this.handlers.select(this.at(next));
  }

  neighborOf(block, dx, dy) {
    const away = (other) => (other.x - block.x) * dx + (other.y - block.y) * dy;
    const aside = (other) => Math.abs((other.x - block.x) * dy) + Math.abs((other.y - block.y) * dx);
    const others = this.layout.blocks.filter((other) => other !== block && away(other) > 0);
    return others.sort((a, b) => away(a) + 3 * aside(a) - away(b) - 3 * aside(b))[0];
  }

  // --- drawing ------------------------------------------------------------------------------------------------

  draw() {
    this.waiting ??= requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (this.waiting) cancelAnimationFrame(this.waiting);
    this.waiting = null;
    if (!this.layout || !this.view || !this.colors || !this.canvas.width) return;
    const ratio = devicePixelRatio || 1;
    const { context, view } = this;
    const scale = view.scale * ratio;
    const left = view.x - this.canvas.width / 2 / scale, top = view.y - this.canvas.height / 2 / scale;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.colors["--paper"];
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    const toWindow = () => context.setTransform(scale, 0, 0, scale, -left * scale, -top * scale);
    toWindow();
    const pen = new CanvasPen(context, this.colors, scale);
    for (const frame of [...this.layout.frames].reverse()) drawFrame(pen, frame);
    const right = left + this.canvas.width / scale, bottom = top + this.canvas.height / scale;
    const until = performance.now() + (this.painted ? BUDGET_MS : 2000);
    let late = false;
    for (const block of this.layout.blocks) {
      if (block.x > right || block.y > bottom || block.x + block.width < left || block.y + block.height < top) continue;
      if (Math.max(block.width, block.height) * scale > BITMAP_MAX) {
        this.drawDirectly(block, scale, left, top, bottom);
        continue;
      }
      let bitmap = this.bitmaps.get(block);
      if (bitmap?.scale !== scale) {
        if (performance.now() < until) bitmap = this.bake(block, scale);
        else late = true;
      }
      toWindow();
      if (!bitmap) {
        context.fillStyle = this.colors["--block"];
        context.fillRect(block.x, block.y, block.width, block.height);
      } else if (bitmap.scale === scale) {
        context.setTransform(1, 0, 0, 1, 0, 0);
        context.drawImage(bitmap.canvas, Math.round((block.x - left) * scale), Math.round((block.y - top) * scale));
      } else {
        context.drawImage(bitmap.canvas, block.x, block.y, block.width, block.height);
      }
    }
    toWindow();
    this.drawTitles(scale, toWindow);
    this.drawSpots(scale);
    this.drawLegs(scale);
    this.drawSelection(scale);
    this.evict();
    this.painted = true;
    if (late) this.draw();
  }

  bake(block, scale) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(block.width * scale);
    canvas.height = Math.ceil(block.height * scale);
    const context = canvas.getContext("2d", { alpha: false });
    context.scale(canvas.width / block.width, canvas.height / block.height);
    drawBlock(new CanvasPen(context, this.colors, scale), this.model, block, this.options.color);
    const bitmap = { canvas, scale };
    this.bitmaps.delete(block);
    this.bitmaps.set(block, bitmap);
    return bitmap;
  }

  drawDirectly(block, scale, left, top, bottom) {
    const first = Math.floor((top - block.y - TITLE - HEADS) / (CELL + GAP));
    const last = Math.ceil((bottom - block.y - TITLE - HEADS) / (CELL + GAP));
    this.context.setTransform(scale, 0, 0, scale, (block.x - left) * scale, (block.y - top) * scale);
    const rows = [Math.max(0, first), Math.min(block.nodes.length, Math.max(0, last))];
    drawBlock(new CanvasPen(this.context, this.colors, scale), this.model, block, this.options.color, rows);
  }

  drawSpots(scale) {
    if (CELL * scale >= SPOT_PX + 2) return;
    const side = SPOT_PX / scale;
    for (const { x, y, symbol } of this.spots) {
      this.context.fillStyle = this.colors["--ink"];
      this.context.fillRect(x - side / 2 - 1 / scale, y - side / 2 - 1 / scale, side + 2 / scale, side + 2 / scale);
      this.context.fillStyle = this.colors[symbol.color];
      this.context.fillRect(x - side / 2, y - side / 2, side, side);
    }
  }

  /** The names of frames and blocks at a size that can be read, where their own title is too small. */
  drawTitles(scale, toWindow) {
    if (scale >= TITLES_SCALE) return;
    toWindow();
    const ratio = devicePixelRatio || 1;
    const blockSize = ratio * Math.max(7, Math.min(10, (TITLE + HEADS) * scale / ratio - 1)) / scale; // above the rows
    const blockPen = new CanvasPen(this.context, this.colors, scale);
    for (const block of this.layout.blocks) {
      if (block.width * scale < 44 || (TITLE + HEADS) * scale < 6) continue;
      const width = block.width - 6 / scale;
      const { title, shortTitle } = block.group;
      const shown = blockPen.measure(title, blockSize) > width ? shortTitle : title;
      blockPen.text(block.x + 3 / scale, block.y + 0.9 * blockSize, shown, "--quiet", blockSize, { width });
    }
    const size = 11 / scale;
    const pen = new CanvasPen(this.context, this.colors, scale);
    for (const frame of this.layout.frames) {
      if (frame.width * scale < 70) continue;
      const width = Math.min(frame.width - 8 / scale, (frame.title.length * 7.5 + 8) / scale);
      pen.rect(frame.x + 4 / scale, frame.y - 2 / scale, width, size * 1.3, "--frame");
      pen.text(frame.x + 7 / scale, frame.y + size * 0.9, frame.title, "--ink", size, { bold: true, width });
    }
  }

  /** The legs that lose packets: those of the selection, or all. */
  drawLegs(scale) {
    const { context } = this;
    for (const { from, over, to, color, dashed } of this.lines ?? []) {
      context.strokeStyle = this.colors[color];
      context.lineWidth = 1.5 * (devicePixelRatio || 1) / scale;
      context.setLineDash(dashed ? [4 / scale, 3 / scale] : []);
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.quadraticCurveTo(over.x, over.y, to.x, to.y);
      context.stroke();
    }
    context.setLineDash([]);
  }

  drawSelection(scale) {
    this.context.strokeStyle = this.colors["--accent"];
    this.context.lineWidth = Math.max(1.5, 2.5 / scale);
    for (const box of this.marked ?? []) this.context.strokeRect(box.x, box.y, box.width, box.height);
  }

  evict() {
    let pixels = 0;
    for (const [block, { canvas }] of [...this.bitmaps].reverse()) {
      pixels += canvas.width * canvas.height;
      if (pixels > CACHE_PIXELS) this.bitmaps.delete(block);
    }
  }
}
