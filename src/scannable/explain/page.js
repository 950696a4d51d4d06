"use strict";
/* The page: what is clicked and typed goes to the session, and the session is shown. */

const $ = (id) => document.getElementById(id);
const SPEEDS = [0.5, 1, 2, 4, 10];
const THEME = "scannable-explain-theme"; // where a choice is stored, beside those of other pages
const WHOLE = 16; // elements of a value that is written out in a caption

let session = Session.fromHash(location.hash);
let target = "both"; // what the keys move
const playing = new Set(); // of "tree" and "counter"
const treePicture = new TreePicture($("tree-svg"));
const counterPicture = new CounterPicture($("counter-svg"));

function html(tag, { text, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

function icon(name) {
  const picture = svg("svg", { "aria-hidden": "true" });
  picture.append(svg("use", { href: `#i-${name}` }));
  return picture;
}

/* Values as text. */

function bracketSpans(value) {
  return colored(pieces(value), (className, text) => html("span", className ? { class: className, text } : { text }));
}

/** What the operator made, and its brackets where these are not the same. */
function valueText(value, { brief = false, both = false } = {}) {
  const span = html("span", { class: "text" });
  const long = brief && value.to - value.from > WHOLE;
  if (long) {
    span.append(shortened(value), html("small", { text: ` ${value.to - value.from} elements` }));
  } else if (session.op === "brackets" || both || value === session.e) {
    span.append(...bracketSpans(value));
  }
  if (session.op !== "brackets" && value !== session.e && !(long && session.op === "words")) {
    if (long || both) span.append(" = ");
    span.append(html("b", { text: String(value.shown) }));
  }
  return span;
}

function callText({ older, newer, result }) {
  const operand = (value, side) => html("span", { class: `operand ${side}`, title: side }, valueText(value, { brief: true }));
  return html("span", { class: "call" }, "Agg(", operand(older, "older"), ", ", operand(newer, "newer"), ") = ",
    html("span", { class: "operand result" }, valueText(result, { brief: true })));
}

/* What just happened, in words. */

function treeSentence() {
  const { round, tree, n } = session;
  if (round === 0) return [plural(n, "element"), " in a row. Nothing is computed yet."];
  const { sweep, k, calls } = tree.rounds[round - 1];
  const size = 2 ** k, count = calls.length;
  if (sweep === "up") {
    return [`Upsweep, level ${k}: blocks of ${size} from pairs of blocks of ${size / 2}. ${plural(count, "call")}${count > 1 ? " in one batch" : ""}.`];
  }
  const last = k === 0 ? " Every prefix is there." : "";
  if (count === 0) {
    return [k === topLevel(n)
      ? `Downsweep, level ${k}: the prefix before everything is ${EMPTY_NAME}, and the one behind the first block is that block. No call.${last}`
      : `Downsweep, level ${k}: these prefixes are copies and blocks that are known. No call.${last}`];
  }
  return [`Downsweep, level ${k}: a prefix and the block of ${size} behind it give the next prefix. ${plural(count, "call")}${count > 1 ? " in one batch" : ""}.${last}`];
}

function counterSentence() {
  const { line, k, carry, t, call } = session.counter;
  if (line === "start") return "No element yet: t = 0, no roots, and the prefix is " + EMPTY_NAME + ".";
  if (line === "arrive") {
    const waiting = session.counter.root[0] !== undefined;
    return `${carry.name} arrives and is the carry. root[0] is ${waiting ? "occupied: they will merge" : "empty"}.`;
  }
  if (line === "merge") {
    const waiting = session.counter.root[k] !== undefined;
    return `The carry takes in root[${k - 1}], which is empty now, and moves up a level. root[${k}] is ${waiting ? "occupied too" : "empty"}.`;
  }
  const joined = call ? "One call joins it to the fold of the roots above: the prefix of all." : "No root is above it, so it is the prefix of all. No call.";
  return `The carry becomes root[${k}]: t = ${t}. ${joined}`;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function binary(t, digits = 1) {
  return t.toString(2).padStart(digits, "0");
}

/* Showing. */

/** Everything, after a change of length, operator, branch or width. */
function show() {
  const longNames = session.n > 26 || session.branches.length > 1;
  for (const [picture, id] of [[treePicture, "tree"], [counterPicture, "counter"]]) {
    const width = $(id).querySelector(".picture").clientWidth;
    picture.draw(session, new Geometry(session.n, width, { fit: $("fit").checked, longNames }));
    holdGutter($(id).querySelector(".picture"));
  }
  $("length").value = session.n;
  $("length-range").value = Math.min(session.n, 64);
  $("operator").value = session.op;
  showBranches();
  showTable();
  step();
}

/** What a single step changes. */
function step() {
  treePicture.update(session);
  counterPicture.update(session);
  showCaptions();
  showBits();
  showBranchPositions();
  showWays();
  showCosts();
  showTransports();
  keepInSight();
  clearTimeout(step.later);
  // Browsers allow only so many changes of the address a second.
  step.later = setTimeout(writeHash, 150);
}

function writeHash() {
  if (location.hash !== session.toHash()) history.replaceState(null, "", session.toHash());
}

function showCaptions() {
  const round = session.round > 0 ? session.tree.rounds[session.round - 1] : null;
  const shown = round ? round.calls.slice(0, 1) : [];
  const more = round ? round.calls.length - shown.length : 0;
  $("tree-caption").replaceChildren(html("p", {}, ...treeSentence()), ...shown.map(callText),
    ...(more > 0 ? [html("span", { class: "more", text: `and ${more} more` })] : []));
  $("tree-svg").setAttribute("aria-label", `Static tree over ${plural(session.n, "element")}. ${treeSentence().join("")}`);

  const { call } = session.counter;
  $("counter-caption").replaceChildren(html("p", { text: counterSentence() }), ...(call ? [callText(call)] : []));
  $("counter-svg").setAttribute("aria-label", `Binary counter at t = ${session.t}. ${counterSentence()}`);
}

function showBits() {
  const { root, carry, k: level, t } = session.counter;
  const bits = html("div", { class: "digits" });
  for (let k = topLevel(session.n); k >= 0; k--) {
    const set = root[k] !== undefined;
    const digit = html("div", { class: `bit${set ? " set" : ""}${carry && k === level ? " carried" : ""}`, style: `--k:${k}` },
      html("b", { text: set ? "1" : "0" }), html("small", { text: `${2 ** k}` }));
    bits.append(digit);
  }
  const sizes = root.map((value, k) => (value ? 2 ** k : 0)).filter(Boolean).reverse();
  const sum = carry
    ? html("span", {}, html("b", { text: `t = ${t} → ${t + 1}` }), " adding 1")
    : html("span", {}, html("b", { text: `t = ${t}` }), sizes.length > 1 ? ` = ${sizes.join(" + ")}` : "");
  const held = html("small", { text: `${plural(sizes.length, "root")} held${carry ? ", and the carry" : ""}` });
  $("bits").replaceChildren(bits, html("div", { class: "sum" }, sum, held));
}

function showTransports() {
  for (const [name, at, most] of [["tree", session.round, session.tree.rounds.length], ["counter", session.branch.frame, session.film.frames.length - 1]]) {
    const bar = document.querySelector(`.panel .transport[data-target=${name}]`);
    const range = bar.querySelector("input");
    range.max = most;
    range.value = at;
    range.setAttribute("aria-valuetext", name === "tree" ? `round ${at} of ${most}` : `step ${at} of ${most}, t = ${session.t}`);
    bar.querySelector(".where").textContent = `${at} / ${most}`;
  }
  for (const bar of document.querySelectorAll(".transport")) {
    const names = bar.dataset.target === "both" ? ["tree", "counter"] : [bar.dataset.target];
    const on = names.some((name) => playing.has(name));
    const button = bar.querySelector("[data-do=play]");
    if (button.getAttribute("aria-pressed") !== String(on)) {
      button.setAttribute("aria-pressed", on);
      button.replaceChildren(icon(on ? "pause" : "play"));
    }
    const atStart = names.every((name) => (name === "tree" ? session.round === 0 : session.branch.frame === 0));
    const atEnd = names.every(finished);
    for (const [what, off] of [["start", atStart], ["back", atStart], ["step", atEnd], ["end", atEnd]]) {
      // Not `disabled`: the focus would be lost at the end of a row of steps.
      bar.querySelector(`[data-do=${what}]`).setAttribute("aria-disabled", off);
    }
  }
  for (const panel of document.querySelectorAll(".panel, .field.both")) {
    const mine = panel.dataset.target ?? "both";
    panel.classList.toggle("active", target === mine);
  }
}

function finished(name) {
  return name === "tree" ? session.round === session.tree.rounds.length : session.branch.frame === session.film.frames.length - 1;
}

/** The element that is on its way, if the picture is wider than its place. */
function keepInSight() {
  const place = $("counter").querySelector(".picture"), { geometry } = counterPicture;
  if (geometry.width <= place.clientWidth + 1) return;
  const x = geometry.x(Math.min(session.t, session.n - 1) + 0.5);
  if (x < place.scrollLeft + GUTTER + 2 * geometry.cell || x > place.scrollLeft + place.clientWidth - 2 * geometry.cell) {
    // Both pictures, so that what the counter holds is in sight in the tree.
    for (const picture of document.querySelectorAll(".picture")) picture.scrollLeft = x - place.clientWidth * 0.7;
  }
}

/** The names of the rows stay at the left of what is scrolled. */
function holdGutter(picture) {
  const gutter = picture.querySelector(".gutter");
  gutter.setAttribute("transform", `translate(${picture.scrollLeft} 0)`);
  gutter.classList.toggle("scrolled", picture.scrollLeft > 0);
}

function branchName(b) {
  return b === 0 ? "x" : `x${"′″‴⁗"[b - 1]} from ${session.branches[b].at}`;
}

function showBranches() {
  const rows = session.branches.map(({ at, parent }, b) => {
    const select = html("button", { type: "button", class: "name", "data-branch": b, text: branchName(b) });
    const lane = html("input", { type: "range", min: 0, max: session.n, class: "lane", "data-lane": b, "aria-label": `Position of branch ${branchName(b)}`,
      style: `--fork:${parent === null ? 0 : at / session.n}` });
    return html("div", { class: "branch", "data-row": b }, select, lane, html("output", { class: "spot" }), html("div", { class: "prefix" }));
  });
  $("branches").replaceChildren(...rows);
}

function showBranchPositions() {
  session.branches.forEach((_, b) => {
    const row = document.querySelector(`[data-row="${b}"]`), frame = session.frameOf(b);
    row.classList.toggle("active", b === session.active);
    row.querySelector(".name").setAttribute("aria-pressed", b === session.active);
    const lane = row.querySelector(".lane");
    lane.value = frame.t;
    lane.style.setProperty("--at", frame.t / session.n);
    row.querySelector(".spot").textContent = `t = ${frame.t} = ${binary(frame.t)}₂`;
    row.querySelector(".prefix").replaceChildren(valueText(prefixOf(frame), { brief: session.n > 64, both: true }));
  });
  const { calls, held } = session.sharedCosts(), alone = session.branches.map((_, b) => session.costs(b));
  const sum = (read) => alone.reduce((total, cost) => total + read(cost), 0);
  $("shared").textContent = session.branches.length === 1
    ? "One branch so far."
    : `All branches together: ${plural(calls, "Agg call")} and ${plural(held, "value")} held. Without sharing it would be ${sum((cost) => cost.calls)} and ${sum((cost) => cost.held)}.`;
  if (document.activeElement !== $("rewind-to")) $("rewind-to").value = Math.max(0, session.t - (session.counter.carry ? 0 : 1));
  $("rewind-to").max = session.n;
}

function showWays() {
  const { t } = session, agg = aggOf(session.operator);
  const counter = prefixOf(session.film.frames[session.film.ends[t]]);
  const loop = leftToRight(agg, session.elements[session.active].slice(0, t), session.e);
  const ours = t > session.sharedWithTree(), known = session.treeKnows(t) && !ours;
  const why = ours ? "over the first branch's elements only" : "not there yet: step the tree on";
  const way = (name, note, value, className) => html("div", { class: `way ${className}` },
    html("div", { class: "who" }, html("b", { text: name }), html("small", { text: note })),
    value ? html("div", { class: "what" }, valueText(value, { both: true })) : html("div", { class: "what missing", text: why }));
  const tree = session.tree.prefixes[t];
  const agree = known && bracketsOf(tree) === bracketsOf(counter);
  const sameBrackets = bracketsOf(loop) === bracketsOf(counter), sameValue = loop.shown === counter.shown;
  let verdict = sameBrackets ? "Here the loop has the same brackets: they differ from t = 4 on."
    : sameValue ? (session.operator.associative ? "The loop has other brackets, but joining is associative: the value is the same." : "The loop has other brackets, and by chance the same value.")
    : "The loop has other brackets, and another value: this Agg is not associative.";
  if (known) verdict = `Tree and counter have ${agree ? "the same" : "DIFFERENT"} brackets. ${verdict}`;
  $("ways").replaceChildren(
    html("p", { class: "question" }, "The prefix of the first ", html("b", { text: plural(t, "element") }), ":"),
    way("Tree", "Alg. 1", known ? tree : null, "of-tree"),
    way("Counter", "Alg. 2", counter, "of-counter"),
    way("Loop", "left to right", loop, "of-loop"),
    html("p", { class: "verdict", text: verdict }),
  );
  for (const row of $("prefixes").rows) {
    const at = Number(row.dataset.t), mine = session.films[session.active].ends[at] <= session.branch.frame;
    row.classList.toggle("now", at === t);
    row.cells[3].textContent = session.treeKnows(at) && at <= session.sharedWithTree() ? "✓" : "·";
    row.cells[4].textContent = mine ? "✓" : "·";
  }
}

/** Only what is looked at: at 256 elements there are tens of thousands of brackets. */
function showTable() {
  $("prefixes").replaceChildren();
  if (!$("all").open) return;
  const digits = binary(session.n).length, { film } = session;
  for (let t = 0; t <= session.n; t++) {
    const value = prefixOf(film.frames[film.ends[t]]);
    const text = session.n > 64 ? html("span", { text: bracketsOf(value) }) : valueText(value, { both: true });
    const go = html("button", { type: "button", "data-go": t, title: `Move the counter to t = ${t}`, text: `${t}` });
    $("prefixes").append(html("tr", { "data-t": t }, html("th", { scope: "row" }, go), html("td", { text: binary(t, digits) }),
      html("td", { class: "brackets" }, text), html("td"), html("td")));
  }
}

function showCosts() {
  const tree = session.treeCosts(), counter = session.costs(), { printed } = counter, { t, n } = session;
  const each = (calls, elements) => (elements ? (calls / elements).toFixed(2) : "0");
  const rows = [
    ["Agg calls", tree.calls, counter.calls, printed.calls],
    ["per element", each(tree.calls, n), each(counter.calls, t), each(printed.calls, t)],
    ["one after another", tree.batches, counter.calls, printed.calls],
    ["values held", tree.held, counter.held, printed.held],
    ["most after an element", tree.held, counter.most, printed.most],
  ];
  $("costs").replaceChildren(...rows.map(([title, ...cells]) => html("tr", {}, html("th", { scope: "row", text: title }),
    ...cells.map((cell) => html("td", { text: `${cell}` })))));
  const ends = session.film.ends.map((end) => session.film.costs[end]);
  const held = ends.map((_, at) => (at === 0 ? 0 : at + ends[at].calls));
  lineChart($("calls-chart"), {
    n, t, most: Math.max(4, ends[n].printed.calls),
    series: [{ className: "of-printed", values: ends.map((cost) => cost.printed.calls) }, { className: "of-counter", values: ends.map((cost) => cost.calls) }],
  });
  lineChart($("held-chart"), {
    n, t, most: Math.max(4, 2 * ends[n].most),
    series: [{ className: "of-tree", values: held }, { className: "of-printed", values: ends.map((cost) => cost.printed.held) }, { className: "of-counter", values: ends.map((cost) => cost.held) }],
  });
}

/** For those who hear the page: what a step did, but not sixty times a minute. */
function say(text) {
  if (playing.size === 0) $("said").textContent = text;
}

/* Moving. */

const MOVES = {
  start: { tree: () => session.goTree(0), counter: () => session.goFrame(0) },
  back: { tree: () => session.moveTree(-1), counter: () => session.moveCounter(-1) },
  step: { tree: () => session.moveTree(1), counter: () => session.moveCounter(1) },
  end: { tree: () => session.goTree(Infinity), counter: () => session.goFrame(Infinity) },
  backFar: { tree: () => session.moveSweep(-1), counter: () => session.moveElements(-1) },
  stepFar: { tree: () => session.moveSweep(1), counter: () => session.moveElements(1) },
};

function namesOf(who) {
  return who === "both" ? ["tree", "counter"] : [who];
}

function move(what, who) {
  for (const name of namesOf(who)) {
    playing.delete(name);
    MOVES[what][name]();
  }
  step();
  const sentences = { tree: () => `Tree: ${treeSentence().join("")}`, counter: () => `Counter: ${counterSentence()}` };
  say(namesOf(who).map((name) => sentences[name]()).join(" "));
}

function togglePlay(who) {
  const names = namesOf(who), on = names.some((name) => playing.has(name)), again = names.every(finished);
  for (const name of names) {
    if (again) MOVES.start[name]();
    if (on) playing.delete(name);
    else if (again || !finished(name)) playing.add(name);
  }
  schedule();
  step();
}

function schedule() {
  clearTimeout(schedule.next);
  if (playing.size > 0) schedule.next = setTimeout(tick, 1000 / SPEEDS[$("speed").value]);
}

function tick() {
  for (const name of [...playing]) {
    MOVES.step[name]();
    if (finished(name)) playing.delete(name);
  }
  step();
  schedule();
}

function chooseTarget(who) {
  target = who;
  showTransports();
}

function changeLength(n) {
  const wrong = !Number.isInteger(n) || n < 1 || n > LIMITS.length;
  $("length-message").textContent = wrong ? `${Number.isNaN(n) ? "That" : n} is not a whole number from 1 to ${LIMITS.length}; beyond that the picture cannot be read.` : "";
  $("length").setAttribute("aria-invalid", wrong);
  if (wrong) return;
  playing.clear();
  session.setLength(n);
  show();
  say(plural(n, "element"));
}

function changeOperator(op) {
  session.setOperator(op);
  show();
  say(session.operator.formula);
}

function fork() {
  const refused = session.forkRefused();
  $("branch-message").textContent = refused;
  if (refused) return;
  playing.delete("counter");
  session.fork();
  show();
  say(`Forked at t = ${session.t}. ${plural(session.branches.length, "branch").replace("branchs", "branches")}.`);
}

function rewind(t) {
  const wrong = !Number.isInteger(t) || t < 0 || t > session.n;
  const ahead = !wrong && session.film.ends[t] > session.branch.frame;
  $("branch-message").textContent = wrong ? `Rewind takes a whole number from 0 to ${session.t}.`
    : ahead ? `t = ${t} is ahead of t = ${session.t}. A rewind goes back; step on instead.` : "";
  if (wrong || ahead) return;
  playing.delete("counter");
  session.goTo(t);
  step();
  say(`Rewound to t = ${t}, with no call.`);
}

function choose(branch) {
  $("branch-message").textContent = "";
  if (branch === session.active) return;
  playing.delete("counter");
  session.active = branch;
  show();
  say(`Branch ${branch + 1} of ${session.branches.length}, at t = ${session.t}.`);
}

function reset() {
  playing.clear();
  session = new Session({ n: session.n, op: session.op });
  $("branch-message").textContent = "";
  show();
}

/* Light and dark. A choice outlives the page where the browser lets it. */

function themeNow() {
  return document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function setTheme(theme, keep) {
  document.documentElement.dataset.theme = theme;
  try {
    if (keep) localStorage.setItem(THEME, theme);
  } catch { /* a private window, or a frame that may not store */ }
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

/* Wiring. */

function buildTransports() {
  const buttons = [["start", "to the start", "Home"], ["back", "one step back", "←"], ["play", "play or pause", "Space"], ["step", "one step", "→"], ["end", "to the end", "End"]];
  for (const bar of document.querySelectorAll(".transport")) {
    const who = bar.dataset.target;
    for (const [what, title, key] of buttons) {
      const button = html("button", { type: "button", "data-do": what, title: `${title} (${key})`, "aria-label": `${who}: ${title}` }, icon(what));
      button.addEventListener("click", () => {
        target = who;
        if (what === "play") togglePlay(who);
        else move(what, who);
      });
      bar.append(button);
    }
    if (who === "both") continue;
    const range = html("input", { type: "range", min: 0, "aria-label": who === "tree" ? "Round of the tree" : "Step of the counter" });
    range.addEventListener("input", () => {
      playing.delete(who);
      if (who === "tree") session.goTree(Number(range.value));
      else session.goFrame(Number(range.value));
      step();
    });
    bar.append(range, html("output", { class: "where" }));
  }
}

const KEYS = {
  ArrowRight: (event) => move(event.shiftKey ? "stepFar" : "step", target),
  ArrowLeft: (event) => move(event.shiftKey ? "backFar" : "back", target),
  Home: () => move("start", target),
  End: () => move("end", target),
  " ": () => togglePlay(target),
  t: () => chooseTarget("tree"),
  c: () => chooseTarget("counter"),
  a: () => chooseTarget("both"),
  f: () => fork(),
  r: () => rewind(Number($("rewind-to").value)),
  b: () => choose((session.active + 1) % session.branches.length),
  "+": () => changeLength(Math.min(session.n + 1, LIMITS.length)),
  "-": () => changeLength(Math.max(session.n - 1, 1)),
  o: () => changeOperator(Object.keys(OPERATORS)[(Object.keys(OPERATORS).indexOf(session.op) + 1) % Object.keys(OPERATORS).length]),
  z: () => $("fit").click(),
  d: () => setTheme(themeNow() === "dark" ? "light" : "dark", true),
  "?": () => $("shortcuts").showModal(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("shortcuts").open) return;
  const key = event.key === "−" ? "-" : event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const inField = event.target.closest("input:not([type=checkbox]), select, textarea");
  const pressable = event.target.closest("button, summary, a, input[type=checkbox]");
  if (!Object.hasOwn(KEYS, key) || inField || (pressable && key === " ")) return;
  event.preventDefault();
  KEYS[key](event);
}

function begin() {
  buildTransports();
  for (const [name, { title }] of Object.entries(OPERATORS)) $("operator").append(html("option", { value: name, text: title }));
  $("speed").value = 2;
  const saySpeed = () => {
    $("speed-said").textContent = `${SPEEDS[$("speed").value]}/s`;
    $("speed").setAttribute("aria-valuetext", `${SPEEDS[$("speed").value]} steps a second`);
  };
  saySpeed();
  $("speed").addEventListener("input", () => { saySpeed(); schedule(); });
  $("length").addEventListener("change", () => changeLength($("length").value === "" ? NaN : Number($("length").value)));
  $("length-range").addEventListener("input", () => changeLength(Number($("length-range").value)));
  $("operator").addEventListener("change", () => changeOperator($("operator").value));
  $("fit").addEventListener("change", show);
  $("reset").addEventListener("click", reset);
  $("theme").addEventListener("click", () => KEYS.d());
  $("help").addEventListener("click", () => $("shortcuts").showModal());
  $("fork").addEventListener("click", fork);
  $("rewind").addEventListener("click", () => rewind($("rewind-to").value === "" ? NaN : Number($("rewind-to").value)));
  $("rewind-to").addEventListener("keydown", (event) => { if (event.key === "Enter") $("rewind").click(); });
  $("branches").addEventListener("click", (event) => {
    const { branch } = event.target.closest("[data-branch]")?.dataset ?? {};
    if (branch === undefined) return;
    choose(Number(branch));
    document.querySelector(`[data-branch="${branch}"]`).focus();
  });
  $("branches").addEventListener("input", (event) => {
    const { lane } = event.target.dataset, t = Number(event.target.value);
    choose(Number(lane));
    session.goTo(t);
    step();
    document.querySelector(`[data-lane="${lane}"]`).focus();
  });
  $("prefixes").addEventListener("click", (event) => {
    const { go } = event.target.dataset;
    if (go === undefined) return;
    playing.delete("counter");
    session.goTo(Number(go));
    step();
  });
  $("all").addEventListener("toggle", () => { showTable(); showWays(); });
  for (const panel of document.querySelectorAll(".panel")) {
    const picture = panel.querySelector(".picture");
    panel.addEventListener("pointerdown", () => chooseTarget(panel.dataset.target));
    picture.addEventListener("scroll", () => holdGutter(picture));
  }
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", (event) => {
    // Not the address of now: between a step and this event `writeHash` may have put the old place back into it.
    const { hash } = new URL(event.newURL);
    if (hash === session.toHash()) return;
    playing.clear();
    session = Session.fromHash(hash);
    show();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    show();
  });
  $("all").open = innerWidth > 900;
  const theme = storedTheme();
  if (theme === "light" || theme === "dark") setTheme(theme, false);
  show();
}

begin();
