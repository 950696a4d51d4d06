"""Associative recall: figure, tables and the page, from whatever runs are there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.figure import Figure

from scannable.experiments.choice import Chosen, at_the_edge
from scannable.experiments.figure import missing_runs, powers, save_page, table, tidy
from scannable.experiments.laboratory import Laboratory
from scannable.experiments.profile import Profile
from scannable.experiments.recall_runs import Kind, Setting, fewer_name
from scannable.experiments.scores import LEARNED, RunScore, Spread, error_by_length, sweep_table

MARKERS: dict[Kind, tuple[str, str]] = {
    "psm": ("o", "-"), "switch": ("x", ""), "attention": ("s", ":"), "recurrent": ("^", "--"),
}  # fmt: skip
"""And the line between the models of a family."""


NEAR = 0.001
"""A share of the queries that is no difference."""


@dataclass(frozen=True)
class Place:
    """A model on the plane of the figure: what its stream holds, and what it gets right."""

    family: str
    model: str
    kind: Kind
    nbytes: int
    accuracy: Spread


def places(rows: Sequence[RunScore], use: Setting, held: Mapping[str, int]) -> list[Place]:
    """Of all models that have runs, at the longest test length."""
    found: list[Place] = []
    for family, one in use.families.items():
        for name in one.models:
            errors = error_by_length(rows, name)
            if errors:
                last = errors[max(errors)]
                right = Spread(1 - last.mean, 1 - last.greatest, 1 - last.least, last.count)
                found.append(Place(family, name, one.kind, held[name], right))
    return found


def frontier(points: Sequence[Place]) -> list[Place]:
    """Those that none beats with as few bytes: accuracy rises along it."""
    best: list[Place] = []
    for point in sorted(points, key=lambda p: (p.nbytes, -p.accuracy.mean)):
        if not best or point.accuracy.mean > best[-1].accuracy.mean:
            best.append(point)
    return best


def below(point: Place, line: Sequence[Place], *, by: float = NEAR) -> Place | None:
    """The one of a frontier that holds no more than this point and is right more often by more than `by`, or None."""
    better = [other for other in line if other.nbytes <= point.nbytes]
    best = max(better, key=lambda p: p.accuracy.mean, default=None)
    return best if best is not None and best.accuracy.mean > point.accuracy.mean + by else None


def draw(rows: Sequence[RunScore], use: Setting, held: Mapping[str, int]) -> Figure:
    """Accuracy against bytes on the left, error of Transformer-PSM against length on the right."""
    figure = Figure(figsize=(14, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    points = places(rows, use, held)
    for i, (family, one) in enumerate(use.families.items()):
        mine = sorted((point for point in points if point.family == family), key=lambda p: p.nbytes)
        if not mine:
            continue
        marker, line = MARKERS[one.kind]
        means = [100 * point.accuracy.mean for point in mine]
        # Rounding may put the mean of equal numbers beside them.
        spread = [
            [max(0.0, 100 * (point.accuracy.mean - point.accuracy.least)) for point in mine],
            [max(0.0, 100 * (point.accuracy.greatest - point.accuracy.mean)) for point in mine],
        ]
        left.errorbar(
            [point.nbytes for point in mine], means, yerr=spread, marker=marker, linestyle=line, color=f"C{i % 10}",
            capsize=3, label=one.title, markerfacecolor="none" if i >= 10 else None,
        )  # fmt: skip
    recurrent = frontier([point for point in points if point.kind == "recurrent"])
    if recurrent:
        # Where nothing larger is better, what is largest is no worse.
        corners = [(p.nbytes, 100 * p.accuracy.mean) for p in recurrent]
        corners.append((max(point.nbytes for point in points), corners[-1][1]))
        left.step(
            *zip(*corners, strict=True), where="post", color="grey", linewidth=4, alpha=0.3, zorder=0,
            label="frontier of the recurrent rows",
        )  # fmt: skip
    longest = use.recipe.curriculum.lengths[-1]
    left.set(xlabel=f"bytes of state at {longest} tokens", ylabel="accuracy at the queries (%)", ylim=(-3, 103))
    if points:
        # The powers of two around all of them.
        least, greatest = min(p.nbytes for p in points), max(p.nbytes for p in points)
        powers(left, [2**k for k in range(least.bit_length() - 1, (greatest - 1).bit_length() + 1)])
    left.set_title(f"Recall at {longest} tokens")
    lengths = sorted({row.length for row in rows if row.part == "final"})
    for family, line in (("psm-projection", "-"), ("psm-right", "--")):
        labels = use.families[family].labels if family in use.families else {}
        for i, (name, label) in enumerate(labels.items()):
            found = error_by_length(rows, name)
            if found:
                title = f"{label}, {'projecting Agg' if line == '-' else 'right half'}"
                means = [100 * e.mean for e in found.values()]
                # Rings in rings, where several make no error.
                right.plot(
                    list(found), means, line, marker="o", markersize=10 - 2 * i, fillstyle="none", color=f"C{i}",
                    label=title,
                )  # fmt: skip
    right.set(xlabel="length (tokens)", ylabel="error at the queries (%)", ylim=(-3, 103))
    right.set_title("Transformer-PSM by chunk length")
    if lengths:
        powers(right, lengths)
    tidy(left, legend="below")
    tidy(right, legend="below")
    return figure


def write_page(lab: Laboratory, rows: Sequence[RunScore], use: Setting, held: Mapping[str, int]) -> None:
    """README.md."""
    task, longest = use.recipe.task, use.recipe.curriculum.lengths[-1]
    final = [row for row in rows if row.part == "final"]
    samples = f", {final[0].samples} test sequences at each length" if final else ""
    save_page(
        lab.results,
        "Multi-query associative recall: accuracy against bytes of state",
        'Fig. "mqar" of *Sequential-Parallel Duality in Prefix-Scannable Models*, as a frontier: '
        f"{task.pairs} pairs of a vocabulary of {task.vocab_size:,}, every key asked for once, at a uniformly random "
        "place.",
        f"`scannable reproduce mqar --profile {lab.profile}`; resolved configurations in `configurations/`, all "
        f"numbers in `mqar.csv`, bytes in `state.csv`{samples}.",
        *missing_runs(lab.missing),
        "![accuracy against bytes of state](mqar.png)",
        "Error at the queries in percent: the mean over seeds, and in brackets the least and the greatest; all lengths "
        f"are in training. Bytes are those that the stream of one sequence holds at {longest} tokens, just before the "
        "last one.",
        table(*_errors(rows, use, held)),
        *_findings(rows, use, held),
        *_order(rows, use),
        *_guesses(rows, use),
        "The paper at 512 tokens, 8 pairs: Transformer-PSM with c = 64 perfect, with c = 32 degraded, Mamba fails, "
        "full attention perfect; of its sliding windows the text says nothing.",
        *_fewer(rows, use),
        "## What differs from the paper",
        _differences(lab.profile, use),
        *_sweeps(rows, use),
    )


def _errors(rows: Sequence[RunScore], use: Setting, held: Mapping[str, int]) -> tuple[list[str], list[list[object]]]:
    lengths = sorted({row.length for row in rows if row.part == "final"})
    lines: list[list[object]] = []
    for one in use.families.values():
        for name, label in one.labels.items():
            mine = [row for row in rows if row.model == name and row.part == "final"]
            found = error_by_length(rows, name)
            if mine:
                lines.append(
                    [
                        f"{one.title}, {label}",
                        f"{mine[0].parameters:,}",
                        f"{held[name]:,}",
                        len({row.seed for row in mine}),
                        f"{mine[0].learning_rate:g}",
                        f"{max(row.tokens for row in mine) / 1e6:.1f} M",
                        *(found[length].cell(factor=100) for length in lengths),
                    ]
                )
    head = ["model", "parameters", "bytes of state", "seeds", "rate", "tokens, at most"]
    return [*head, *(f"{n:,}" for n in lengths)], lines


def _findings(rows: Sequence[RunScore], use: Setting, held: Mapping[str, int]) -> list[str]:
    points = places(rows, use, held)
    psm = [point for point in points if point.kind == "psm"]
    line = frontier([point for point in points if point.kind == "recurrent"])
    if not psm or not line:
        return []
    under = {point: other for point in psm if (other := below(point, line))}
    if not under:
        return [
            f"All {len(psm)} Transformer-PSMs that are there are on or above the frontier of the recurrent rows: none "
            f"of those holds as few bytes and is right more often by more than {NEAR:.1%} of the queries."
        ]
    beaten_by = {
        other: [_place(point, use) for point, by in under.items() if by == other]
        for other in dict.fromkeys(under.values())
    }
    named = " ".join(f"Below {_place(other, use)}: {'; '.join(mine)}." for other, mine in beaten_by.items())
    return [
        f"On or above the frontier of the recurrent rows: {len(psm) - len(under)} of the {len(psm)} Transformer-PSMs "
        f"that are there. {named}"
    ]


def guessing(rows: Sequence[RunScore], model: str, use: Setting) -> tuple[int, int]:
    """How many seeds of a model guess among the values of the sequence at every length, and how many there are."""
    lengths: dict[int, list[float]] = {}
    for row in rows:
        if row.model == model and row.part == "final":
            lengths.setdefault(row.seed, []).append(row.error)
    return sum(min(errors) > chance(use) - 0.02 for errors in lengths.values()), len(lengths)


def chance(use: Setting) -> float:
    """The error of a guess among the values of the sequence."""
    return 1 - 1 / use.recipe.task.pairs


def _order(rows: Sequence[RunScore], use: Setting) -> list[str]:
    """Whether longer chunks recall more, as in the paper, among those that learned anything."""
    said: list[str] = []
    for one in use.families.values():
        found = {name: errors for name in one.models if (errors := error_by_length(rows, name))}
        if one.kind != "psm" or len(found) < len(one.models):
            continue
        last = {name: errors[max(errors)].mean for name, errors in found.items()}
        trained = [name for name in found if guessing(rows, name, use)[0] == 0]
        means = [last[name] for name in trained]
        if len(means) < 2 or max(means) - min(means) <= NEAR:
            verdict = "cannot be judged"
        else:
            falls = all(later <= earlier + NEAR for earlier, later in pairwise(means)) and means[-1] < means[0] - NEAR
            verdict = "is seen" if falls else "is not seen"
        among = ", ".join(one.labels[name] for name in trained) or "none"
        rest = f" among those that trained with every seed ({among})" if len(trained) < len(found) else ""
        labels = [one.labels[name] for name in found]
        said.append(
            f"{one.title}, error in percent from {labels[0]} to {labels[-1]}: "
            f"{', '.join(f'{100 * error:.2f}' for error in last.values())}. The paper's order, in which longer chunks "
            f"recall more, {verdict}{rest}."
        )
        for name, errors in found.items():
            # The second chunk's prefix is the first chunk as it is.
            unmerged = [n for n in errors if n <= 2 * use.models[name].chunk_length]
            merged = [n for n in errors if n not in unmerged]
            if unmerged and merged and errors[max(unmerged)].mean <= LEARNED < errors[min(merged)].mean:
                said.append(
                    f"With {one.labels[name]} nothing is merged at {max(unmerged)} tokens, where "
                    f"{errors[max(unmerged)].mean:.2%} are wrong, and {errors[min(merged)].mean:.2%} are at "
                    f"{min(merged)}: what is lost is lost in Agg."
                )
    return [" ".join(said)] if said else []


def _guesses(rows: Sequence[RunScore], use: Setting) -> list[str]:
    """Which models of any family did not begin to learn."""
    listed: list[str] = []
    for one in use.families.values():
        # What a window cannot reach it cannot learn.
        for name, label in one.labels.items() if one.kind != "attention" else ():
            count, seeds = guessing(rows, name, use)
            if count:
                listed.append(f"{one.title}, {label}" + (f" ({count} of {seeds} seeds)" if seeds > 1 else ""))
    if not listed:
        return []
    return [
        f"A guess among the values of the sequence is wrong in {chance(use):.2%}. Within two points of that, or "
        "worse, at every length, which is training that did not begin, and does not show what such a state can hold: "
        f"{'; '.join(listed)}."
    ]


def _fewer(rows: Sequence[RunScore], use: Setting) -> list[str]:
    """Whether the shortest chunks lack places, or something else: the same models on fewer pairs."""
    longest, all_pairs = use.recipe.curriculum.lengths[-1], use.recipe.task.pairs
    labels = {name: label for one in use.families.values() for name, label in one.labels.items()}
    errors: dict[str, dict[int, Spread]] = {}
    for name in use.shortest:
        parts = {pairs: error_by_length(rows, fewer_name(name, pairs), "pairs") for pairs in use.fewer}
        parts[all_pairs] = error_by_length(rows, name)
        errors[name] = {pairs: found[longest] for pairs, found in parts.items() if longest in found}
    if not any(pairs != all_pairs for found in errors.values() for pairs in found):
        return []
    counts = sorted({*use.fewer, all_pairs})
    lines: list[list[object]] = [
        [labels[name], *(found[pairs].cell(factor=100) if pairs in found else "" for pairs in counts)]
        for name, found in errors.items()
    ]
    lines.append(["a guess among the values", *(f"{100 * (1 - 1 / pairs):.2f}" for pairs in counts)])
    return [
        "## Fewer pairs for the shortest chunks",
        f"Error in percent at {longest} tokens, with the projecting Agg and the learning rate it has on all pairs; "
        f"fewer pairs have one seed, {all_pairs} those of the first table.",
        table(["chunk", *(f"{pairs} pairs" for pairs in counts)], lines),
        _reason(
            {(use.models[name].chunk_length, pairs): e for name, found in errors.items() for pairs, e in found.items()},
            cells=len(errors) * len(counts),
        ),
    ]


def _reason(errors: Mapping[tuple[int, int], Spread], cells: int) -> str:
    """What the errors by chunk length and number of pairs say of why short chunks fail, once all cells are there."""
    why = (
        "A state has c places. A pair takes two tokens, and the place of its value can hold all of it, as the short "
        "convolution lets the value see its key. So c pairs fill two chunks, and the first merge puts their values on "
        "c different places: the projection starts as the sum of both halves, the right one a place further, and the "
        "last place becomes the first. With more than c pairs a later merge puts two or more on one place. Other "
        "tokens come to every place as well, at any c, and Agg has to learn to leave them out."
    )
    if len(errors) < cells:
        return why
    learned = sorted(key for key, error in errors.items() if error.greatest <= LEARNED)
    if learned and learned == sorted((c, pairs) for c, pairs in errors if pairs <= c):
        return (
            f"{why} Learned, with at most {LEARNED:.0%} errors, were exactly those with no more pairs than places. "
            "Fewer pairs are an easier task too; whether the others lack room, or a start to learn from, this does not "
            "tell."
        )
    named = "; ".join(f"c = {c} with {pairs} pairs" for c, pairs in learned) or "none"
    return f"{why} Places do not explain which were learned, with at most {LEARNED:.0%} errors: {named}."


def _place(point: Place, use: Setting) -> str:
    return f"{_title(point, use)} ({point.accuracy.mean:.1%} with {point.nbytes:,} bytes)"


def _title(point: Place, use: Setting) -> str:
    family = use.families[point.family]
    return f"{family.title}, {family.labels[point.model]}"


def _sweeps(rows: Sequence[RunScore], use: Setting) -> list[str]:
    titles = {name: f"{one.title}, {label}" for one in use.families.values() for name, label in one.labels.items()}
    rates = {one.swept: one.rates for one in use.families.values()}
    lines = sweep_table(rows, titles, rates)
    if not lines:
        return []
    final = (row for row in rows if row.part == "final")
    chosen = {row.model: Chosen(row.learning_rate) for row in final if row.model in rates}
    return [
        "## Learning rates",
        f"Runs of at most {use.sweep_steps:,} steps on samples of another seed; the one that reached the longest "
        "length, then the lowest validation loss, gave the rate of all models with these blocks: the right half has "
        "that of the projecting Agg, sliding windows that of full attention, every other size that of the one shown.",
        table(["model", "learning rate", "reached length", "validation loss there"], lines),
        *at_the_edge(chosen, rates, titles),
    ]


def _differences(profile: Profile, use: Setting) -> str:
    if profile == "paper":
        return "The learning rates are swept; Transformer-PSM stands here with both compressions, with one rate."
    recipe = use.recipe
    return (
        f"- Smaller models and a harder task: width {recipe.model.width} instead of 256 where nothing else is said, "
        f"vocabulary {recipe.task.vocab_size} instead of 8,192, but {recipe.task.pairs} pairs instead of 8. Queries "
        "are uniform, as the paper's, and what stands between is any token, keys included.\n"
        f"- Lengths {', '.join(map(str, recipe.curriculum.lengths))}; at most {recipe.steps:,} steps of "
        f"{recipe.batch_tokens:,} tokens; on to the next length when the validation error is below 5%, at the latest "
        f"after {recipe.curriculum.steps:,} steps; a run ends when its error at the longest length is zero.\n"
        "- Transformer-PSM has one layer in Agg and two in Inf, all others have two, with one head. Attention and "
        "Transformer-PSM have rotary positions, normed queries and keys, and short convolutions of four tokens, which "
        "Mamba, Mamba-2 and both DeltaNets have of their own. GLA and log-linear attention have the MLP of attention "
        "in front of them, with its convolutions; in short trials, GLA learned with it there and not with it "
        "behind. Embedding and output layer share their weights in every model.\n"
        "- The projection of Agg starts as the sum of both halves, the right one a place further. That was chosen in "
        "some ten trials with c = 16, judged by validation: with halves summed place on place, one of two pairs that "
        "share a place was lost. The paper gives no start: the row that is started at random has torch's for a Linear, "
        "and differs in nothing else. Other models had fewer trials: three of Mamba, two of GLA, one of log-linear "
        "attention.\n"
        "- Errors are those of the weights at the end of a run; learning rates were chosen by the best evaluation.\n"
        "- Mamba is this library's, which equals that of `transformers` number for number."
    )
