"use strict";
/* What is scanned: elements with names, and three choices of Agg. */

const EMPTY_NAME = "ε";

/** a b c ... z a₁ b₁ ...; a branch writes its own elements with as many primes as its number. */
function elementName(i, branch = 0) {
  const round = Math.floor(i / 26);
  const below = round ? [...String(round)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("") : "";
  return String.fromCharCode(97 + (i % 26)) + below + ["", "′", "″", "‴", "⁗"][branch];
}

const OPERATORS = {
  brackets: {
    title: "(ab), the brackets",
    formula: "Agg(a, b) = (ab)",
    associative: false,
    element: elementName,
    empty: EMPTY_NAME,
    agg: (older, newer) => `(${older}${newer})`,
  },
  numbers: {
    title: "2a + 3b mod 97",
    formula: "Agg(a, b) = 2a + 3b mod 97",
    associative: false,
    element: (i, branch) => (i + 1 + 10 * branch) % 97,
    empty: EMPTY_NAME,
    agg: (older, newer) => (2 * older + 3 * newer) % 97,
  },
  words: {
    title: "ab, joined (associative)",
    formula: "Agg(a, b) = ab",
    associative: true,
    element: elementName,
    empty: EMPTY_NAME,
    agg: (older, newer) => older + newer,
  },
};

/*
 * A value on the page knows what the operator made of it (`shown`), and which calls it came from (`older`, `newer`),
 * whatever the operator: so brackets can always be drawn. It covers the elements `from` .. `to` - 1; its `level` is k if
 * it is a node T(k, .) of the tree, and null if it joins several.
 */

function elementValue(operator, i, branch) {
  return { shown: operator.element(i, branch), name: elementName(i, branch), from: i, to: i + 1, level: 0 };
}

function emptyValue(operator) {
  return { shown: operator.empty, name: EMPTY_NAME, from: 0, to: 0, level: null };
}

function aggOf(operator) {
  return (older, newer) => ({
    shown: operator.agg(older.shown, newer.shown),
    older,
    newer,
    from: older.from,
    to: newer.to,
    level: joinedLevel(older, newer),
  });
}

function joinedLevel(older, newer) {
  const k = older.level;
  return k !== null && newer.level === k && older.from % 2 ** (k + 1) === 0 ? k + 1 : null;
}

/** The value as pieces of text, each with the value whose name or bracket it is. */
function pieces(value, found = []) {
  if (value.older === undefined) {
    found.push({ text: value.name, value });
  } else {
    found.push({ text: "(", value });
    pieces(value.older, found);
    pieces(value.newer, found);
    found.push({ text: ")", value });
  }
  return found;
}

/** The whole text; kept, since every step compares some. */
function bracketsOf(value) {
  value.brackets ??= value.older === undefined ? value.name : `(${bracketsOf(value.older)}${bracketsOf(value.newer)})`;
  return value.brackets;
}

/** First and last element, for a value too long to be written out: a…p. */
function shortened(value) {
  let first = value, last = value;
  while (first.older) first = first.older;
  while (last.newer) last = last.newer;
  return `${first.name}…${last.name}`;
}
