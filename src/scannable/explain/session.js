"use strict";
/* Where the reader is: the length, the operator, the tree's round, and the counter's branches. Nothing here draws. */

const LIMITS = { length: 256, branches: 5 };

class Session {
  /** A branch has a `parent` (null for the first), begins after `at` elements of it, and stands at frame `frame`. */
  constructor({ n = 13, op = "brackets", round = 0, branches = [{ parent: null, at: 0, frame: 0 }], active = 0 } = {}) {
    Object.assign(this, { n, op, round, branches, active });
    this.build();
  }

  get operator() {
    return OPERATORS[this.op];
  }

  /** Compute everything there is to see. A branch goes on from its parent's own counter: nothing is copied. */
  build() {
    const agg = aggOf(this.operator), e = emptyValue(this.operator);
    this.e = e;
    this.elements = [];
    this.films = [];
    this.branches.forEach(({ parent, at }, b) => {
      const before = parent === null ? [] : this.elements[parent].slice(0, at);
      const own = Array.from({ length: this.n - at }, (_, i) => elementValue(this.operator, at + i, b));
      this.elements[b] = [...before, ...own];
      if (parent === null) {
        this.films[b] = onlineScan(agg, emptyCounter(e), own);
      } else {
        const shared = this.films[parent], fork = shared.ends[at];
        const later = onlineScan(agg, shared.frames[fork], own);
        this.films[b] = {
          frames: [...shared.frames.slice(0, fork + 1), ...later.frames.slice(1)],
          ends: [...shared.ends.slice(0, at), ...later.ends.map((end) => fork + end)],
        };
      }
      this.films[b].costs = costsAlong(this.films[b].frames);
    });
    this.tree = staticScan(agg, this.elements[0], e);
    this.round = clamp(this.round, 0, this.tree.rounds.length);
    for (const [b, branch] of this.branches.entries()) {
      branch.frame = clamp(branch.frame, 0, this.films[b].frames.length - 1);
    }
  }

  get branch() {
    return this.branches[this.active];
  }

  get film() {
    return this.films[this.active];
  }

  frameOf(b) {
    return this.films[b].frames[this.branches[b].frame];
  }

  get counter() {
    return this.frameOf(this.active);
  }

  /** Elements that are wholly absorbed; one more may be on its way. */
  get t() {
    return this.counter.t;
  }

  costs(b = this.active) {
    return this.films[b].costs[this.branches[b].frame];
  }

  /** The tree's calls and values so far. Training keeps every element and every result, for the backward pass. */
  treeCosts() {
    const calls = this.tree.rounds.slice(0, this.round).map((round) => round.calls.length);
    const made = calls.reduce((sum, count) => sum + count, 0);
    return { calls: made, batches: calls.filter((count) => count > 0).length, held: this.n + made };
  }

  /** Of all branches together: what they share is counted once. */
  sharedCosts() {
    const calls = new Set(), held = new Set();
    this.branches.forEach((branch, b) => {
      for (const frame of this.films[b].frames.slice(0, branch.frame + 1)) if (frame.call) calls.add(frame.call);
      for (const value of valuesHeld(this.frameOf(b))) held.add(value);
    });
    return { calls: calls.size, held: held.size };
  }

  /** Whether the tree has computed the prefix of the first t elements. */
  treeKnows(t) {
    return this.tree.rounds.slice(0, this.round).some(({ sweep, k }) => sweep === "down" && t % 2 ** k === 0);
  }

  /** How many of the branch's first elements are those of the tree. */
  sharedWithTree() {
    let shared = this.n;
    for (let branch = this.branch; branch.parent !== null; branch = this.branches[branch.parent]) shared = Math.min(shared, branch.at);
    return shared;
  }

  setLength(n) {
    this.n = n;
    this.dropBranches((branch) => branch.at >= n);
    this.build();
  }

  setOperator(op) {
    this.op = op;
    this.build();
  }

  /** By `steps` lines of the counter or rounds of the tree; whether there was anywhere to go. */
  moveTree(steps) {
    return this.goTree(this.round + steps);
  }

  moveCounter(steps) {
    return this.goFrame(this.branch.frame + steps);
  }

  goTree(round) {
    const before = this.round;
    this.round = clamp(round, 0, this.tree.rounds.length);
    return this.round !== before;
  }

  goFrame(frame) {
    const before = this.branch.frame;
    this.branch.frame = clamp(frame, 0, this.film.frames.length - 1);
    return this.branch.frame !== before;
  }

  /** To the counter after t elements. Going back there calls nothing: it was never changed. */
  goTo(t) {
    return this.goFrame(this.film.ends[clamp(t, 0, this.n)]);
  }

  /** To the end of the next whole element, or of the one before. */
  moveElements(direction) {
    const { ends } = this.film, at = this.branch.frame;
    const target = direction > 0 ? ends.find((end) => end > at) : ends.findLast((end) => end < at);
    return target !== undefined && this.goFrame(target);
  }

  /** To the end of the upsweep or of the downsweep, or back. */
  moveSweep(direction) {
    const stops = [0, topLevel(this.n), this.tree.rounds.length];
    const target = direction > 0 ? stops.find((stop) => stop > this.round) : stops.findLast((stop) => stop < this.round);
    return target !== undefined && this.goTree(target);
  }

  /** Why there can be no fork here, or "" if there can. */
  forkRefused() {
    if (this.t >= this.n) return "The stream ends here. Rewind first, or choose a longer one.";
    if (this.branches.length >= LIMITS.branches) return `There are ${LIMITS.branches} branches, which is the limit. Reset to begin again.`;
    return "";
  }

  /** A second counter that goes on from here with elements of its own. A fork waits for whole elements. */
  fork() {
    const at = this.t;
    this.branches.push({ parent: this.active, at, frame: this.film.ends[at] });
    this.active = this.branches.length - 1;
    this.build();
  }

  dropBranches(gone) {
    const kept = [], place = new Map();
    this.branches.forEach((branch, b) => {
      if (branch.parent !== null && (gone(branch) || !place.has(branch.parent))) return;
      place.set(b, kept.length);
      kept.push({ ...branch, parent: branch.parent === null ? null : place.get(branch.parent) });
    });
    this.active = place.get(this.active) ?? 0;
    this.branches = kept;
  }

  /* The position as a link: n=13&agg=brackets&tree=3&at=5.1&forks=0@5:7.0&on=1, with t.line for each branch. */

  toHash() {
    const spot = (b) => {
      const t = this.frameOf(b).t;
      return `${t}.${this.branches[b].frame - this.films[b].ends[t]}`;
    };
    const parts = [`n=${this.n}`, `agg=${this.op}`, `tree=${this.round}`, `at=${spot(0)}`];
    const forks = this.branches.slice(1).map(({ parent, at }, b) => `${parent}@${at}:${spot(b + 1)}`);
    if (forks.length) parts.push(`forks=${forks.join(",")}`, `on=${this.active}`);
    return `#${parts.join("&")}`;
  }

  /** Whatever a link says, something that can be shown: what cannot be read or reached is left out. */
  static fromHash(hash) {
    const said = Object.fromEntries(hash.replace(/^#/, "").split("&").map((part) => part.split("=", 2)));
    const n = /^\d+$/.test(said.n ?? "") ? clamp(Number(said.n), 1, LIMITS.length) : undefined;
    const op = Object.hasOwn(OPERATORS, said.agg ?? "") ? said.agg : undefined;
    const session = new Session({ n, op, round: /^\d+$/.test(said.tree ?? "") ? Number(said.tree) : 0 });
    const stand = (spot) => {
      const [t, line] = /^\d+\.\d+$/.test(spot ?? "") ? spot.split(".").map(Number) : [0, 0];
      if (t <= session.n) session.goFrame(session.film.ends[t] + line);
    };
    stand(said.at);
    for (const fork of (said.forks ?? "").split(",")) {
      const match = /^(\d+)@(\d+):(\d+\.\d+)$/.exec(fork);
      if (!match || Number(match[1]) >= session.branches.length || Number(match[2]) >= session.n) continue;
      if (session.branches.length >= LIMITS.branches) break;
      session.active = Number(match[1]);
      const parent = session.branch, frame = parent.frame;
      session.goTo(Number(match[2]));
      session.fork();
      parent.frame = frame;
      stand(match[3]);
    }
    const on = /^\d+$/.test(said.on ?? "") ? Number(said.on) : 0;
    session.active = on < session.branches.length ? on : 0;
    return session;
  }
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

/** What must be kept to go on: roots, folds, and a carry on its way; the topmost fold is its root. */
function valuesHeld(frame) {
  return new Set([...frame.root, ...frame.fold, frame.carry].filter((value) => value !== undefined));
}

/** For each frame: calls and values of the counter, and of Alg. 2 as printed, which holds no folds but makes them all. */
function costsAlong(frames) {
  let calls = 0, merges = 0, refolds = 0, most = 0, printedMost = 0;
  return frames.map((frame) => {
    if (frame.call) calls += 1;
    if (frame.line === "merge") merges += 1;
    if (frame.line === "place") refolds += popcount(frame.t);
    const held = valuesHeld(frame).size;
    const printedHeld = new Set([...frame.root, frame.carry].filter((value) => value !== undefined)).size;
    if (frame.line === "place") {
      most = Math.max(most, held);
      printedMost = Math.max(printedMost, printedHeld);
    }
    return { calls, held, most, printed: { calls: merges + refolds, held: printedHeld, most: printedMost } };
  });
}
