"""The page computes what the library computes: every bracket, every call, every count, for each length."""

import json
import re
from collections import Counter
from typing import Any

import pytest

import scannable as sc
from scannable.experiments import scan_cost
from scannable.explain import PAGE
from scannable.scan import reference
from scannable.spd import CountedAgg

from operators import Brackets

LENGTHS = range(1, 41)

EVERYTHING = """lengths => JSON.stringify(lengths.map((n) => {
  const session = new Session({ n }), { film, tree } = session;
  const pair = (call) => [bracketsOf(call.older), bracketsOf(call.newer), bracketsOf(call.result)];
  const afterEach = film.ends.map((end) => film.frames[end]);
  const agg = (older, newer) => `(${older}${newer})`;
  let printed = 0;
  const counted = (older, newer) => { printed += 1; return agg(older, newer); };
  const names = session.elements[0].map((value) => value.name);
  const emitted = refoldingCounter(counted, names, "ε");
  session.goTree(Infinity);
  session.goFrame(Infinity);
  return {
    n, names, emitted, printed,
    static: tree.prefixes.map(bracketsOf),
    online: afterEach.map((frame) => bracketsOf(prefixOf(frame))),
    roots: afterEach.map((frame) => frame.root.map((value) => value === undefined ? null : bracketsOf(value))),
    folds: afterEach.map((frame) => frame.fold.map((value) => value === undefined ? null : bracketsOf(value))),
    onlineCalls: film.frames.filter((frame) => frame.call).map((frame) => pair(frame.call)),
    staticCalls: tree.rounds.map((round) => round.calls.map(pair)),
    along: film.ends.map((end) => film.costs[end]),
    costs: session.costs(),
    treeCosts: session.treeCosts(),
    loop: leftToRight(agg, names, "ε"),
  };
}))"""


@pytest.fixture(scope="module")
def computed(browser: Any) -> list[dict[str, Any]]:
    page = browser.new_page()
    page.goto(PAGE.as_uri())
    found = json.loads(page.evaluate(EVERYTHING, list(LENGTHS)))
    page.close()
    return found


def bracket(older: str, newer: str) -> str:
    return f"({older}{newer})"


def test_the_names_of_elements_are_told_apart(computed: list[dict[str, Any]]) -> None:
    names = computed[-1]["names"]
    assert names[:3] == ["a", "b", "c"] and names[25:28] == ["z", "a₁", "b₁"] and len(set(names)) == len(names) == 40


def test_the_counter_holds_and_emits_what_binary_counter_does_after_every_element(
    computed: list[dict[str, Any]],
) -> None:
    for one in computed:
        calls: list[list[str]] = []

        def agg(older: str, newer: str, calls: list[list[str]] = calls) -> str:
            calls.append([older, newer, bracket(older, newer)])
            return bracket(older, newer)

        counter = sc.BinaryCounter(agg, "ε")
        for t in range(one["n"] + 1):
            assert one["online"][t] == counter.prefix()
            for ours, theirs in ((counter.roots, one["roots"][t]), (counter.state.folds, one["folds"][t])):
                assert dict(ours) == {k: value for k, value in enumerate(theirs) if value is not None}
            if t < one["n"]:
                counter.push(one["names"][t])
        assert one["onlineCalls"] == calls


def translated(bracketing: str, names: list[str]) -> str:
    return re.sub(r"x(\d+)", lambda found: names[int(found[1])], bracketing)


def test_the_tree_gives_the_prefixes_of_scan(computed: list[dict[str, Any]]) -> None:
    brackets = Brackets()
    for one in computed:
        n, names = one["n"], one["names"]
        after = sc.scan(brackets, brackets.letters(n), identity=brackets.identity, inclusive=True).tolist()
        assert [translated(bracketing, names) for bracketing in map(brackets.string, after)] == one["static"][1:]
        assert one["static"] == one["online"] and one["static"][0] == "ε"


def test_tree_and_counter_make_the_same_calls(computed: list[dict[str, Any]]) -> None:
    for one in computed:
        static = [tuple(call) for calls in one["staticCalls"] for call in calls]
        assert Counter(static) == Counter(map(tuple, one["onlineCalls"]))


def test_the_counts_are_those_of_the_library(computed: list[dict[str, Any]]) -> None:
    costs = {(cost.way, cost.n): cost for cost in scan_cost.measure(LENGTHS)}
    for one in computed:
        n = one["n"]
        static, counter, printed = (costs[way, n] for way in (scan_cost.STATIC, scan_cost.COUNTER, scan_cost.REFOLDING))
        assert one["treeCosts"] == {"calls": static.evaluations, "batches": static.calls, "held": static.held}
        assert (one["costs"]["calls"], one["costs"]["most"]) == (counter.evaluations, counter.held)
        assert (one["costs"]["printed"]["calls"], one["costs"]["printed"]["most"]) == (
            printed.evaluations,
            printed.held,
        )
        for t in range(1, n + 1):
            held = 2 * t.bit_count() - 1, t.bit_count()
            assert (one["along"][t]["held"], one["along"][t]["printed"]["held"]) == held


def test_alg_2_as_printed_emits_and_calls_what_the_reference_does(computed: list[dict[str, Any]]) -> None:
    for one in computed:
        agg = CountedAgg(bracket)
        assert one["emitted"] == list(reference.refolding_counter(agg, one["names"], "ε"))
        assert one["printed"] == agg.evaluations == one["costs"]["printed"]["calls"]


def test_a_loop_has_other_brackets_from_four_elements_on(computed: list[dict[str, Any]]) -> None:
    for one in computed:
        assert (one["loop"] == one["online"][-1]) == (one["n"] < 4)


def test_numbers_and_words_are_aggregated_as_they_say(browser: Any) -> None:
    page = browser.new_page()
    page.goto(PAGE.as_uri())
    found = page.evaluate(
        """n => Object.fromEntries(["numbers", "words"].map((op) => {
          const session = new Session({ n, op });
          return [op, session.tree.prefixes.map((value) => value.shown)];
        }))""",
        100,
    )
    page.close()
    numbers = [(i + 1) % 97 for i in range(100)]
    expected = reference.scan(lambda older, newer: (2 * older + 3 * newer) % 97, numbers, 0, inclusive=True)
    assert found["numbers"] == ["ε", *expected]
    names = [chr(97 + i % 26) + ("₀₁₂₃"[i // 26] if i >= 26 else "") for i in range(100)]
    assert found["words"] == ["ε", *("".join(names[: t + 1]) for t in range(100))]


WALK = """steps => {
  let seed = 12345;
  const draw = (below) => { seed = (seed * 1103515245 + 12345) % 2147483648; return Math.floor((seed / 2147483648) * below); };
  let session = new Session({ n: 21 });
  const deeds = {
    step: () => session.moveCounter(1 + draw(4)), back: () => session.moveCounter(-1 - draw(3)),
    element: () => session.moveElements(1), rewind: () => session.goTo(draw(session.t + 1)),
    fork: () => { if (!session.forkRefused()) session.fork(); }, choose: () => { session.active = draw(session.branches.length); },
    length: () => session.setLength(1 + draw(40)), link: () => { session = Session.fromHash(session.toHash()); },
    reset: () => { if (draw(4) === 0) session = new Session({ n: session.n }); },
  };
  return Array.from({ length: steps }, () => {
    const deed = Object.keys(deeds)[draw(Object.keys(deeds).length)], before = session.toHash();
    deeds[deed]();
    return {
      deed, before, after: session.toHash(), n: session.n, branches: session.branches.map((_, b) => {
        const frame = session.frameOf(b), whole = session.films[b].frames[session.films[b].ends[frame.t]];
        return {
          elements: session.elements[b].slice(0, frame.t).map((value) => value.name), calls: session.films[b].costs[session.films[b].ends[frame.t]].calls,
          prefix: bracketsOf(prefixOf(whole)), roots: whole.root.map((value) => value === undefined ? null : bracketsOf(value)),
        };
      }),
    };
  });
}"""


def test_after_any_walk_every_branch_is_the_counter_of_its_own_elements(browser: Any) -> None:
    page = browser.new_page()
    page.goto(PAGE.as_uri())
    walk = page.evaluate(WALK, 400)
    page.close()
    assert {len(here["branches"]) for here in walk} >= {1, 2, 3, 4}
    assert all(here["before"] == here["after"] for here in walk if here["deed"] == "link")
    for here in walk:
        for branch in here["branches"]:
            agg = CountedAgg(bracket)
            counter = sc.BinaryCounter(agg, "ε")
            for element in branch["elements"]:
                counter.push(element)
            assert branch["prefix"] == counter.prefix() and branch["calls"] == agg.evaluations, here
            assert {k: root for k, root in enumerate(branch["roots"]) if root is not None} == counter.roots
