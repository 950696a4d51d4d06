"use strict";
/*
 * The two scans of the paper, for any agg(older, newer), associative or not. Nothing in this file draws.
 *
 * Alg. 1 sees all elements at once; Alg. 2 sees one after another. Both record their calls of Agg, so that a
 * picture can show them one by one. Values are whatever agg takes and returns.
 */

/** floor(log2(n)): the level of the largest complete block among n elements. */
function topLevel(n) {
  return 31 - Math.clz32(n);
}

/** How many bits of t are set: how many roots the counter holds after t elements. */
function popcount(t) {
  let bits = 0;
  for (; t > 0; t >>= 1) bits += t & 1;
  return bits;
}

/**
 * Alg. 1, StaticBlellochScan, for any number of elements; Agg(e, x) = x by law, so that call is not made.
 *
 *   upsweep     T(0, j) = x_j        T(k, j) = Agg(T(k-1, 2j), T(k-1, 2j+1))
 *   downsweep   P(k, 0) = e          P(k, j) = P(k+1, j/2)                        for even j
 *                                    P(k, j) = Agg(P(k+1, (j-1)/2), T(k, j-1))    for odd j
 *
 * P(0, t) is the prefix of the first t elements, for t = 0 .. n. The calls of one round do not need each other:
 * a model makes them as one batched call.
 */
function staticScan(agg, xs, e) {
  const n = xs.length, top = topLevel(n);
  const T = [xs], P = [], rounds = [];

  for (let k = 1; k <= top; k++) {
    const calls = [];
    T[k] = [];
    for (let j = 0; j < n >> k; j++) {
      const older = T[k - 1][2 * j], newer = T[k - 1][2 * j + 1];
      T[k][j] = agg(older, newer);
      calls.push({ j, older, newer, result: T[k][j] });
    }
    rounds.push({ sweep: "up", k, calls });
  }

  for (let k = top; k >= 0; k--) {
    const calls = [];
    P[k] = [];
    for (let j = 0; j <= n >> k; j++) {
      if (j === 0) P[k][j] = e;
      else if (j % 2 === 0) P[k][j] = P[k + 1][j / 2];
      else if (j === 1) P[k][j] = T[k][0];
      else {
        const older = P[k + 1][(j - 1) / 2], newer = T[k][j - 1];
        P[k][j] = agg(older, newer);
        calls.push({ j, older, newer, result: P[k][j] });
      }
    }
    rounds.push({ sweep: "down", k, calls });
  }
  return { T, P, rounds, prefixes: P[0] };
}

/** The state of Alg. 2 before the first element. root[k] is undefined where the paper says "empty". */
function emptyCounter(e) {
  return { t: 0, root: [], fold: [], e };
}

/** The prefix of all whole blocks of 2^k elements and more: a fold that is kept, so nothing is called. */
function prefixOf(counter, k = 0) {
  return counter.fold.slice(k).find((fold) => fold !== undefined) ?? counter.e;
}

/**
 * Alg. 2, BinaryCounterUpdate, for one element: 1 is added to t in binary, and every carry is a call of Agg.
 *
 * The counter that is given is never changed, so it can be kept: to go on from it twice is a fork, to go back to it
 * is a rewind. One frame for each line that runs; the last one holds the counter after the element.
 *
 * The paper folds all roots anew after every element. Here the fold of each root is kept, so one fold is new.
 */
function binaryCounterUpdate(agg, counter, x) {
  const root = [...counter.root], fold = [...counter.fold], frames = [];
  const frame = (line, call) => frames.push({ ...counter, root: [...root], fold: [...fold], line, carry, k, call });

  let carry = x, k = 0;
  frame("arrive", null);

  while (root[k] !== undefined) {
    const older = root[k], newer = carry;
    carry = agg(older, newer);
    root[k] = fold[k] = undefined;
    k += 1;
    frame("merge", { older, newer, result: carry });
  }

  const above = prefixOf({ fold, e: counter.e }, k + 1);
  root[k] = carry;
  fold[k] = above === counter.e ? carry : agg(above, carry);
  frame("place", above === counter.e ? null : { older: above, newer: carry, result: fold[k] });
  frames.at(-1).t = counter.t + 1;
  frames.at(-1).carry = undefined;
  return frames;
}

/** Alg. 2 for a whole stream from some counter on: every frame, and where each element's last one is. */
function onlineScan(agg, counter, xs) {
  const frames = [{ ...counter, line: "start", carry: undefined, k: 0, call: null }], ends = [0];
  for (const x of xs) {
    frames.push(...binaryCounterUpdate(agg, frames.at(-1), x));
    ends.push(frames.length - 1);
  }
  return { frames, ends };
}

/** Alg. 2 as printed: after each element all roots are folded anew, beginning with Agg(e, .). */
function refoldingCounter(agg, xs, e) {
  const root = [], emitted = [];
  xs.forEach((x, t) => {
    let carry = x, k = 0;
    while (root[k] !== undefined) {
      carry = agg(root[k], carry);
      root[k] = undefined;
      k += 1;
    }
    root[k] = carry;

    let p = e;
    for (let k = topLevel(t + 1); k >= 0; k--) if (root[k] !== undefined) p = agg(p, root[k]);
    emitted.push(p);
  });
  return emitted;
}

/** What a recurrent network would do: left to right, no tree. For comparison only. */
function leftToRight(agg, xs, e) {
  return xs.length === 0 ? e : xs.reduce((older, newer) => agg(older, newer));
}
