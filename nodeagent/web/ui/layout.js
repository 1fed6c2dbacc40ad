// Where everything is on the map, in units of the map: a cell is 12 × 12.
// HyperNodes above the leaf groups are frames around their members, so that the tree reads from outside to inside.

export const CELL = 12;
export const GAP = 2;
export const TITLE = 20;
export const HEADS = 13;
export const PAD = 8;
const MARGIN = 14;
const FRAME_TITLE = 26;
const FRAME_TITLE_PX = 16; // a title that is drawn larger than the map needs this
const FRAME_TITLE_MAX = 160;
const NAME_CHARS_MAX = 22;
const CHAR = 5.6;

/** Shapes of the rows that are tried; the one that shows the map largest is taken. */
const TRIED = [0.5, 0.7, 0.85, 1, 1.2, 1.45, 1.8, 2.4, 3.5];

/**
 * Lay out the groups of a model. `filters` are {only, rail, fabric, nodes: the names of those to show, or null}; `aspect` is the width of the window by its
 * height, `pixels` its height: frames leave room for titles that can be read when the map fits into it. Returns {width, height, blocks, frames}.
 */
export function layOut(model, filters, aspect, pixels = Infinity) {
  const blocks = model.groups.map((group, i) => makeBlock(model, group, i, filters)).filter(Boolean);
  const { hypernodes } = model.content;
  const uppers = hypernodes.map((entry, i) => ({ entry, i })).filter(({ entry }) => entry.tier > 1);
  uppers.sort((a, b) => a.entry.tier - b.entry.tier);
  let best = 1, most = 0;
  for (const factor of TRIED) {
    const { width, height } = arrange(model, blocks, uppers, aspect * factor, FRAME_TITLE);
    const size = Math.min(aspect / width, 1 / height);
    if (size > most) [best, most] = [factor, size];
  }
  const title = Math.min(FRAME_TITLE_MAX, Math.max(FRAME_TITLE, FRAME_TITLE_PX / (pixels * most || 1)));
  const { width, height, frames } = arrange(model, blocks, uppers, aspect * best, title, true);
  return { width, height, blocks, frames };
}

/** Place the blocks in their frames below titles of this height, and those on the map. `final`: make all places absolute. */
function arrange(model, blocks, uppers, aspect, title, final = false) {
  const boxes = new Map(); // the boxes of the members of each parent; -1 is the map itself
  const place = (parent, box) => (boxes.get(parent) ?? boxes.set(parent, []).get(parent)).push(box);
  for (const block of blocks) place(block.group.hypernode?.parent ?? -1, block);
  const frames = [];
  for (const { entry, i } of uppers) {
    const members = boxes.get(i);
    if (!members) continue;
    const packed = pack(members, aspect);
    const frame = {
      hypernode: entry, title: model.titles[i], members, width: packed.width + 2 * MARGIN, height: packed.height + title + 1.5 * MARGIN,
      offset: { x: MARGIN, y: title + MARGIN / 2 },
    };
    frames.push(frame);
    place(entry.parent, frame);
  }
  const roots = boxes.get(-1) ?? [];
  const whole = pack(roots, aspect);
  if (final) for (const root of roots) settle(root, MARGIN, MARGIN);
  return { width: whole.width + 2 * MARGIN, height: whole.height + 2 * MARGIN, frames };
}

function makeBlock(model, group, index, filters) {
  const columns = group.columns.filter((column) =>
    (!filters.rail || (column.own && column.rail === filters.rail)) && (!filters.fabric || column.fabric === filters.fabric));
  const nodes = group.nodes.filter((node) =>
    (filters.only !== "trouble" || model.hasTrouble(node)) && (!filters.nodes || filters.nodes.has(model.nodeName(node))));
  if (!nodes.length || !columns.length && filters.rail + filters.fabric) return null;
  const longest = nodes.reduce((most, node) => Math.max(most, model.nodeName(node).length), 0);
  const nameWidth = Math.min(longest, NAME_CHARS_MAX) * CHAR + 10;
  const cellsWidth = columns.reduce((x, column, i) => x + CELL + GAP + spaceBefore(columns, i), 0);
  const lefts = [];
  let x = PAD + nameWidth;
  columns.forEach((column, i) => {
    x += spaceBefore(columns, i);
    lefts.push(x);
    x += CELL + GAP;
  });
  const titleWidth = group.title.length * 6.4 + 60;
  return {
    group, index, nodes, columns, lefts, nameWidth,
    width: Math.max(2 * PAD + nameWidth + cellsWidth, Math.min(titleWidth, 220)),
    height: TITLE + HEADS + nodes.length * (CELL + GAP) + PAD,
  };
}

/** A gap between the tree's fabric and each other one. */
function spaceBefore(columns, i) {
  return i > 0 && columns[i].fabric !== columns[i - 1].fabric ? 6 : 0;
}

/** Set boxes in rows whose width makes the whole about as wide by its height as the window. */
function pack(boxes, aspect) {
  const area = boxes.reduce((sum, box) => sum + (box.width + MARGIN) * (box.height + MARGIN), 0);
  const widest = boxes.reduce((most, box) => Math.max(most, box.width), 0);
  const limit = Math.max(widest, Math.sqrt(area * aspect));
  let x = 0, y = 0, rowHeight = 0, width = 0;
  for (const box of boxes) {
    if (x > 0 && x + box.width > limit) {
      x = 0;
      y += rowHeight + MARGIN;
      rowHeight = 0;
    }
    box.x = x;
    box.y = y;
    x += box.width + MARGIN;
    width = Math.max(width, x - MARGIN);
    rowHeight = Math.max(rowHeight, box.height);
  }
  return { width, height: y + rowHeight };
}

/** Make the places of a box and its members absolute. */
function settle(box, x, y) {
  box.x += x;
  box.y += y;
  for (const member of box.members ?? []) settle(member, box.x + box.offset.x, box.y + box.offset.y);
}

/** The place of a row, in the block. */
export function rowTop(row) {
  return TITLE + HEADS + row * (CELL + GAP);
}

/** What is at a point of the map: {block, row, column} with -1 for the title, {frame}, or null. */
export function hit(layout, x, y) {
  const inside = (box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height;
  const block = layout.blocks.find(inside);
  if (block) {
    const row = Math.floor((y - block.y - TITLE - HEADS) / (CELL + GAP));
    const column = block.lefts.findIndex((left) => x - block.x >= left - GAP / 2 && x - block.x < left + CELL + GAP / 2);
    return { block, row: row >= 0 && row < block.nodes.length ? row : -1, column };
  }
  const frames = layout.frames.filter(inside).sort((a, b) => a.hypernode.tier - b.hypernode.tier);
  return frames.length ? { frame: frames[0] } : null;
}
