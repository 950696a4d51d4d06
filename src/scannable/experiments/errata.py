"""Errata to the paper's algorithms, theorem and corollaries, each with a counterexample that runs.

A counterexample replays what is printed on letters, whose brackets show every call of Agg, or on small numbers, and
returns what it found as a sentence. It raises if the printed statement holds after all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scannable.experiments.wrong_scans import blelloch
from scannable.scan import BinaryCounter, reference
from scannable.spd.counters import CountedAgg


@dataclass(frozen=True)
class Erratum:
    """What is printed where, and what is true instead."""

    place: str
    printed: str
    true: str
    counterexample: Callable[[], str]


def bracket(older: str, newer: str) -> str:
    return f"({older}{newer})"


def refuted(statement: bool, found: str) -> str:
    """What was found, if it is not as the statement says."""
    if statement:
        raise AssertionError(f"the printed statement holds: {found}")
    return found


def emitted_is_inclusive() -> str:
    static = reference.static_blelloch(bracket, "abcd", "e")
    online = list(reference.refolding_counter(bracket, "abcd", "e"))
    assert online[:-1] == static[1:]
    return refuted(
        online == static,
        f"on a, b, c, d Alg. 1 returns {', '.join(static)}; Alg. 2 emits {', '.join(online)}: the same, one step later",
    )


def scan_for_inf_is_late() -> str:
    prefixes = reference.static_blelloch(bracket, "abcd", "e")
    late, right = prefixes[2 - 1], prefixes[2]
    return refuted(
        "b" in late,
        f"for chunk c Inf gets s_1 = {late}, in which b is missing; the prefix of the chunks before is s_2 = {right}",
    )


def one_root_after_one_element() -> str:
    counter = BinaryCounter(bracket, "e")
    counter.push("a")
    held, bound = len(counter.roots), math.ceil(math.log2(1))
    return refuted(held <= bound, f"after one element there is {held} root, and ceil(log2(1)) = {bound}")


def three_elements_break_the_invariant() -> str:
    counter = BinaryCounter(bracket, "e")
    for letter in "abc":
        counter.push(letter)
    root = counter.roots[1]
    return refuted(
        root == bracket("b", "c") or 3 % 2 == 0,
        f"after a, b, c root[1] = {root}, not the most recent two, (bc); and 3 is not divisible by 2",
    )


def folding_is_not_constant() -> str:
    found: list[str] = []
    per_element: list[float] = []
    for n in (2**6, 2**12):
        agg = CountedAgg(lambda older, newer: None)
        for _ in reference.refolding_counter(agg, range(n), None):
            pass
        per_element.append(agg.calls / n)
        found.append(f"{agg.calls / n:.2f} an element at {n:,}")
    return refuted(per_element[1] - per_element[0] < 2, f"Alg. 2 calls Agg {', '.join(found)}, one of them a merge")


def trailing_ones_average_one() -> str:
    n = 1024
    average = sum((~t & (t + 1)).bit_length() - 1 for t in range(n)) / n
    return refuted(abs(average - 2) < 0.5, f"over t = 0 to {n - 1} the trailing ones of t average {average:.3f}")


def agg_is_called_twice_a_chunk() -> str:
    n = 1024
    agg = CountedAgg(lambda older, newer: None)
    counter: BinaryCounter[None] = BinaryCounter(agg, None)
    for _ in range(n):
        counter.push(None)
    return refuted(agg.calls <= n, f"{n:,} chunks took {agg.calls:,} calls, with the folds kept")


def any_number_of_elements() -> str:
    try:
        reference.static_blelloch(bracket, "abc", "e")
    except ValueError:
        found = reference.scan(bracket, "abc", "e")
        assert found == reference.scan(bracket, "abcd", "e")[:3]
        return (
            f"the prefixes of a, b, c, {', '.join(found)}, are those of a, b, c, d without the last: nothing is padded"
        )
    raise AssertionError("Alg. 1 as printed takes three elements")


def calling_the_identity_is_another_function() -> str:
    def agg(older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
        return 2 * older + 3 * newer

    xs = torch.tensor([[1, 1, 1, 1]])
    printed = blelloch(agg, xs, torch.tensor(0))[0].tolist()
    by_law = reference.scan(lambda a, b: 2 * a + 3 * b, [1, 1, 1, 1], 0)
    return refuted(
        printed == by_law,
        f"with Agg(a, b) = 2a + 3b, for which no identity exists, e = 0 and four ones: {printed} as printed, {by_law} "
        "by the law",
    )


def the_affine_order_is_the_other_one() -> str:
    def printed(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
        return x[0] * y[0], x[1] + x[0] * y[1]

    first, second = (2, 1), (3, 5)
    state = second[0] * (first[0] * 0 + first[1]) + second[1]
    aggregated = printed(first, second)[1]
    return refuted(
        state == aggregated,
        f"for (E, f) = {first} and then {second} the state is 3 (2 * 0 + 1) + 5 = {state}; Alg. 1, with the older on "
        f"the left of the lemma's operator, gives {aggregated}",
    )


def alg_4_shows_inf_its_own_chunk() -> str:
    emitted = list(reference.refolding_counter(bracket, "abcd", "e", literal=False))
    return refuted(
        "c" not in emitted[2],
        f"when chunk c is full, Inf is called on c and the state {emitted[2]}, which holds c; before that, nothing is "
        "predicted for any of its tokens",
    )


def a_scalar_gate_is_squared() -> str:
    r2, r3 = 2, 3
    right = r3 * r2
    return refuted(
        right == r2 * r2, f"with r(x_2) = {r2} and r(x_3) = {r3} the factor of the first term is {right}, not {r2 * r2}"
    )


ERRATA = (
    Erratum(
        'Thm. "Equivalence with static Blelloch"',
        "The value that Alg. 2 emits at time t equals the exclusive prefix of the static scan.",
        "It equals the static scan's exclusive prefix at t + 1, which is the inclusive one at t. Read before the push, "
        "the counter has the exclusive prefix at t.",
        emitted_is_inclusive,
    ),
    Erratum(
        "Def. PSM, Alg. 3",
        "Inf gets s_(i-1), where s is what the scan of Alg. 1 returns.",
        "Alg. 1 returns exclusive prefixes: s_i already ends before chunk i. Inf gets s_i; with s_(i-1) one chunk is "
        "seen by nobody.",
        scan_for_inf_is_late,
    ),
    Erratum(
        'Cor. "Memory bound"',
        "After t + 1 chunks at most ceil(log2(t + 1)) roots are stored.",
        "Exactly popcount(t + 1), at most floor(log2(t + 1)) + 1, as the corollary's own proof says.",
        one_root_after_one_element,
    ),
    Erratum(
        'Prop. "Block invariant"',
        "Every root[k] is the aggregate of the most recent 2^k elements, and 2^k divides t + 1.",
        "Root k is the aggregate of the aligned block of 2^k elements that the set bit k of t + 1 stands for; only the "
        "lowest root ends at the newest element. The theorem's proof needs just this.",
        three_elements_break_the_invariant,
    ),
    Erratum(
        '"Work"',
        "The amortised number of Agg calls per element is constant.",
        "The merges are; the fold from the most to the least significant root, repeated at every emission, takes "
        "popcount(t + 1) more calls, (log2 n) / 2 on average. With the fold of each occupied level kept, a push needs "
        "one new fold, and 2 calls in all at any length.",
        folding_is_not_constant,
    ),
    Erratum(
        '"Work"',
        "The expected number of trailing 1-bits of t is 2.",
        "It is 1: each element is merged once on average. (2 bits flip, the last of them from 0 to 1.)",
        trailing_ones_average_one,
    ),
    Erratum(
        "App. C, Eq. C2",
        "A stream of n/c chunks makes n/c calls of Agg.",
        "Almost 2 n/c: as many merges, and as many folds.",
        agg_is_called_twice_a_chunk,
    ),
    Erratum(
        "Alg. 1",
        "The number of chunks is a power of two.",
        "The tree exists for any r: level k has floor(r / 2^k) whole nodes, and no prefix needs another.",
        any_number_of_elements,
    ),
    Erratum(
        "Alg. 1, Alg. 2, identity e",
        "e is an identity of Agg, and Agg(e, x) is called.",
        "A learned Agg has no identity. The figures and the released code's counter take Agg(e, x) for x; the printed "
        "calls compute another function.",
        calling_the_identity_is_another_function,
    ),
    Erratum(
        'Lemma "Affine aggregator"',
        "The newer element is on the left of the operator, whose monoid Alg. 1 scans.",
        "Alg. 1 and 2 put the older one on the left. One of the two has to be turned round.",
        the_affine_order_is_the_other_one,
    ),
    Erratum(
        "Alg. 4",
        "When a chunk is full it is pushed, and Inf is called on it and the new state.",
        "The new state holds the chunk itself, so Inf sees what it is to predict. Inf gets the state before the push, "
        "token by token.",
        alg_4_shows_inf_its_own_chunk,
    ),
    Erratum(
        'App. B, "Gated Linear Attention", proof of associativity',
        "The third term has the factor r(x_2) r(x_2).",
        "r(x_3) r(x_2). The lemma stands.",
        a_scalar_gate_is_squared,
    ),
)
