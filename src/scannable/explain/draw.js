"use strict";
/* Pictures of a session, as SVG. A node of the tree is a bar over its elements, on the row of its level. */

const SVG = "http://www.w3.org/2000/svg";
const ROW = 36, BAR = 27, GUTTER = 62, MARGIN = 20, TOP = 10, BETWEEN = 44;
const LETTER = 0.605; // width of a letter of the monospaced font, in em
const LEAST_SIZE = 8.5; // of letters that can be read, in pixels

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Where things are, for n elements in a picture at least `width` wide. */
class Geometry {
  constructor(n, width, { fit, longNames }) {
    this.n = n;
    this.top = topLevel(n);
    const least = fit ? 2 : longNames ? 29 : 22;
    this.cell = clamp((width - GUTTER - MARGIN) / n, least, 92);
    this.width = Math.max(width, GUTTER + MARGIN + n * this.cell);
    this.split = TOP + (this.top + 1) * ROW + BETWEEN / 2;
    this.height = this.split + BETWEEN / 2 + (this.top + 1) * ROW + 4;
  }

  x(element) {
    return GUTTER + element * this.cell;
  }

  above(k) {
    return TOP + (this.top - k) * ROW;
  }

  below(k) {
    return this.split + BETWEEN / 2 + (this.top - k) * ROW;
  }
}

/** Text in a bar: whole if it can be read at all, else its first and last element, else nothing. */
function label(value, operator, x, y, width) {
  const short = [{ text: shortened(value) }];
  const whole = written(value, operator), size = fontSize(whole, width);
  if (size >= LEAST_SIZE) return line(whole, x + width / 2, y, size);
  return line(fontSize(short, width) > 11 ? short : [], x + width / 2, y, 11);
}

function written(value, operator) {
  return operator === OPERATORS.brackets ? pieces(value) : [{ text: String(value.shown), value }];
}

function fontSize(parts, width) {
  const letters = parts.reduce((sum, part) => sum + part.text.length, 0);
  return Math.min(13.5, (width - 7) / (letters * LETTER));
}

function line(parts, x, y, size) {
  const text = svg("text", { class: "value", x, y, "font-size": size.toFixed(2) });
  text.append(...colored(parts, (className, content) => svg("tspan", className ? { class: className } : {}, content)));
  return text;
}

/** The text of a fold, each block within its own bar: ((A, then B), then C), for ((A B) C). */
function foldLabels(value, operator, geometry, y) {
  const blocks = [], joins = [];
  for (let rest = value; ; rest = rest.older) {
    if (rest.level !== null) {
      blocks.unshift(rest);
      break;
    }
    blocks.unshift(rest.newer);
    joins.unshift(rest);
  }
  const bracket = operator === OPERATORS.brackets;
  const texts = blocks.map((block, i) => [
    ...(bracket && i === 0 ? joins.map((join) => ({ text: "(", value: join })) : []),
    ...written(block, operator),
    ...(bracket && i > 0 ? [{ text: ")", value: joins[i - 1] }] : []),
  ]);
  const widths = blocks.map((block) => (block.to - block.from) * geometry.cell);
  const size = Math.min(...texts.map((text, i) => fontSize(text, widths[i])));
  if (operator === OPERATORS.numbers || size < LEAST_SIZE) {
    return [label(value, operator, geometry.x(0), y, value.to * geometry.cell)];
  }
  return texts.map((text, i) => line(text, geometry.x(blocks[i].from) + widths[i] / 2, y, size));
}

/** Brackets take the color of their block's level; those that join several blocks stay plain. */
function colored(parts, make) {
  return parts.map(({ text, value }) => {
    if (text !== "(" && text !== ")") return make("", text);
    const k = value.level;
    const piece = make(k === null ? "bracket joined" : "bracket", text);
    if (k !== null) piece.style.setProperty("--k", k);
    return piece;
  });
}

function bar(geometry, k, from, to, y, className) {
  const rect = svg("rect", {
    class: className, x: geometry.x(from) + 1.5, y, rx: Math.min(7, geometry.cell / 3),
    width: Math.max((to - from) * geometry.cell - 3, 1), height: BAR,
  });
  rect.style.setProperty("--k", k);
  return rect;
}

/** A node (k, j) of the tree: bar and text, which gets classes later. */
function node(geometry, operator, k, value) {
  const y = geometry.above(k), x = geometry.x(value.from);
  const group = svg("g", { class: "node", "data-k": k, "data-from": value.from });
  group.append(
    svg("title", {}, bracketsOf(value)),
    bar(geometry, k, value.from, value.to, y, "bar"),
    label(value, operator, x, y + BAR / 2, (value.to - value.from) * geometry.cell),
  );
  return group;
}

/** Names of rows. They stay in sight when the picture is scrolled. */
function gutter(geometry, above, below, aboveTitle, belowTitle) {
  const group = svg("g", { class: "gutter" });
  group.append(svg("rect", { class: "shade", x: 0, y: 0, width: GUTTER - 17, height: geometry.height }));
  group.append(svg("line", { class: "edge", x1: GUTTER - 17, x2: GUTTER - 17, y1: 0, y2: geometry.height }));
  for (let k = 0; k <= geometry.top; k++) {
    group.append(svg("text", { x: 2, y: geometry.above(k) + BAR / 2 }, above(k)));
    group.append(svg("text", { x: 2, y: geometry.below(k) + BAR / 2 }, below(k)));
  }
  group.append(svg("text", { class: "part", x: 2, y: geometry.split - 8 }, aboveTitle));
  group.append(svg("text", { class: "part", x: 2, y: geometry.split + 9 }, belowTitle));
  return group;
}

function place(host, geometry, ...children) {
  host.setAttribute("viewBox", `0 0 ${geometry.width} ${geometry.height}`);
  host.setAttribute("width", geometry.width);
  host.setAttribute("height", geometry.height);
  host.classList.toggle("tiny", geometry.cell < 14);
  host.replaceChildren(...children);
}

function divider(geometry) {
  return svg("line", { class: "divider", x1: 0, x2: geometry.width, y1: geometry.split, y2: geometry.split });
}

/** Alg. 1: blocks above, prefixes below. All of it is drawn once; `update` says how far it is. */
class TreePicture {
  constructor(host) {
    this.host = host;
  }

  draw(session, geometry) {
    const { T, P } = session.tree;
    this.nodes = T.map((level, k) => level.map((value) => node(geometry, session.operator, k, value)));
    this.prefixes = P.map((level, k) => level.map((value, j) => this.prefix(geometry, k, j, value)));
    this.gutter = gutter(geometry, (k) => `T(${k},·)`, (k) => `P(${k},·)`, "upsweep ↑", "downsweep ↓");
    place(this.host, geometry, divider(geometry), ...this.nodes.flat(), ...this.prefixes.flat().map((p) => p.lines),
      ...this.prefixes.flat().map((p) => p.chip), this.gutter);
  }

  /** P(k, j) stands at the border before element j 2^k; a bar leads to it over the block it takes in. */
  prefix(geometry, k, j, value) {
    const t = j * 2 ** k, x = geometry.x(t), y = geometry.below(k) + BAR / 2;
    const lines = svg("g", { class: "way" });
    if (j % 2 === 1) {
      const block = svg("rect", {
        class: j === 1 ? "block free" : "block", x: geometry.x(t - 2 ** k), y: y - 4.5, width: 2 ** k * geometry.cell, height: 9,
      });
      block.style.setProperty("--k", k);
      lines.append(block);
    } else if (k < geometry.top) {
      lines.append(svg("line", { class: "copy", x1: x, x2: x, y1: y - ROW, y2: y }));
    }
    const width = clamp(geometry.cell - 4, 4, 30);
    const chip = svg("g", { class: "chip", "data-t": t, "data-k": k });
    chip.append(
      svg("title", {}, `first ${t}: ${bracketsOf(value)}`),
      svg("rect", { x: x - width / 2, y: y - 10.5, width, height: 21, rx: Math.min(width / 2, 10.5) }),
    );
    if (width >= 14) chip.append(svg("text", { x, y, "font-size": Math.min(12, width / 1.7) }, t === 0 ? EMPTY_NAME : `${t}`));
    return { lines, chip };
  }

  update(session) {
    const { round, tree } = session, now = round > 0 ? tree.rounds[round - 1] : null;
    const top = topLevel(session.n);
    const held = new Set(session.counter.root.filter(Boolean).map(bracketsOf));
    this.nodes.forEach((level, k) => level.forEach((element, j) => {
      const known = k <= round;
      set(element, {
        done: known,
        ghost: !known,
        fresh: now?.sweep === "up" && now.k === k,
        older: now?.sweep === "up" && now.k === k + 1 && j % 2 === 0 && j + 1 < level.length,
        newer: (now?.sweep === "up" && now.k === k + 1 && j % 2 === 1)
          || (now?.sweep === "down" && now.k === k && j % 2 === 0 && j > 0 && j < session.n >> k),
        held: known && held.has(bracketsOf(tree.T[k][j])),
      });
    }));
    this.prefixes.forEach((level, k) => level.forEach(({ lines, chip }, j) => {
      const known = round > top + (top - k);
      set(lines, { done: known, ghost: !known, fresh: now?.sweep === "down" && now.k === k });
      set(chip, {
        done: known,
        ghost: !known,
        fresh: now?.sweep === "down" && now.k === k && j % 2 === 1,
        older: now?.sweep === "down" && now.k === k - 1 && j > 0 && 2 * j + 1 <= session.n >> (k - 1),
        held: known && k === 0 && j === session.t && j <= session.sharedWithTree(),
      });
    }));
  }
}

/** Alg. 2: roots above, the folds that are kept below. */
class CounterPicture {
  constructor(host) {
    this.host = host;
  }

  draw(session, geometry) {
    this.geometry = geometry;
    // The nodes that the counter will meet are those of the tree over its own elements.
    this.T = staticScan(aggOf(session.operator), session.elements[session.active], session.e).T;
    this.nodes = this.T.map((level, k) => level.map((value) => node(geometry, session.operator, k, value)));
    this.folds = svg("g", { class: "folds" });
    this.marks = svg("g", { class: "marks" });
    this.gutter = gutter(geometry, (k) => `root[${k}]`, (k) => `fold[${k}]`, "blocks held", "prefixes held");
    place(this.host, geometry, divider(geometry), ...this.nodes.flat(), this.folds, this.marks, this.gutter);
  }

  update(session) {
    const { root, fold, carry, k: level, line, call, t } = session.counter;
    const where = (value) => `${value.level}:${value.from}`;
    const roots = new Set(root.filter(Boolean).map(where));
    const carried = carry ? where(carry) : "";
    const merging = line === "merge" ? [where(call.older), where(call.newer)] : ["", ""];
    this.nodes.forEach((nodes, k) => nodes.forEach((element, j) => {
      const here = `${k}:${j * 2 ** k}`, end = (j + 1) * 2 ** k;
      set(element, {
        done: roots.has(here) || here === carried,
        ghost: !roots.has(here) && here !== carried,
        past: end <= t,
        carry: here === carried,
        fresh: here === carried || (line === "place" && root[level] && here === where(root[level])),
        older: here === merging[0],
        newer: here === merging[1] || (line === "place" && call !== null && here === where(call.newer)),
      });
    }));
    this.drawFolds(session, fold, root, line, call, level);
    this.drawMarks(session);
  }

  /** A fold covers everything up to the end of its root: the blocks of this and of all higher bits. */
  drawFolds(session, fold, root, line, call, level) {
    const { geometry } = this, rows = [];
    fold.forEach((value, k) => {
      if (value === undefined) return;
      const y = geometry.below(k), group = svg("g", { class: "fold done" });
      group.append(svg("title", {}, bracketsOf(value)));
      for (let j = k; j < root.length; j++) {
        if (root[j]) group.append(bar(geometry, j, root[j].from, root[j].to, y, "bar"));
      }
      group.append(svg("rect", {
        class: "frame", x: geometry.x(0) - 1, y: y - 2.5, rx: 8, width: value.to * geometry.cell + 2, height: BAR + 5,
      }));
      group.append(...foldLabels(value, session.operator, geometry, y + BAR / 2));
      set(group, { fresh: line === "place" && k === level, older: line === "place" && call !== null && value === call.older });
      rows.push(group);
    });
    if (rows.length === 0) {
      rows.push(svg("text", { class: "note", x: geometry.x(0), y: geometry.below(geometry.top) + BAR / 2 }, `empty: the prefix is ${EMPTY_NAME}`));
    }
    this.folds.replaceChildren(...rows);
  }

  /** Which side of the call each operand is, and what is on its way. */
  drawMarks(session) {
    const { carry, k } = session.counter, { geometry } = this;
    this.marks.replaceChildren();
    if (!carry) return;
    const x = geometry.x((carry.from + carry.to) / 2), y = geometry.above(k);
    const mark = svg("g", { class: "carry" });
    mark.append(svg("path", { d: `M ${x - 5} ${y - 2} l 5 -5.5 l 5 5.5` }));
    this.marks.append(mark);
  }
}

function set(element, classes) {
  for (const [name, on] of Object.entries(classes)) element.classList.toggle(name, Boolean(on));
}

/** Lines over t = 0 .. n: `series` is a list of { className, values }, where values[t] may leave the frame at the top. */
function lineChart(host, { n, t, series, most }) {
  const width = 360, height = 185, left = 30, bottom = 24, right = 10, top = 10;
  const x = (at) => left + (at / n) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  host.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  for (const value of [0, most / 2, most].map(Math.round)) {
    parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { class: "tick", x: left - 6, y: y(value), "text-anchor": "end" }, `${value}`));
  }
  for (const at of new Set([0, n])) {
    parts.push(svg("text", { class: "tick", x: x(at), y: height - 8, "text-anchor": at ? "end" : "start" }, `t = ${at}`));
  }
  const clip = svg("svg", { x: 0, y: top - 6, width, height: height - top + 6, viewBox: `0 ${top - 6} ${width} ${height - top + 6}` });
  clip.append(svg("line", { class: "now", x1: x(t), x2: x(t), y1: top, y2: height - bottom }));
  for (const { className, values } of series) {
    clip.append(svg("polyline", { class: className, points: values.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    if (values[t] <= most) clip.append(svg("circle", { class: className, cx: x(t), cy: y(values[t]), r: 4 }));
  }
  host.replaceChildren(...parts, clip);
}
