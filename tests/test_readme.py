"""What the README promises runs as printed."""

import csv
import re
from math import exp
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs(snippet: str) -> None:
    exec(compile(snippet, "README.md", "exec"), {})


def test_there_is_a_snippet() -> None:
    assert SNIPPETS


def test_it_can_be_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


# What the README says was measured.

README = " ".join((ROOT / "README.md").read_text().split())
MORE = " ".join((RESULTS / "README.md").read_text().split())
"""What to keep in mind, and all else that stands beside the results."""
SEEDS = {1: "one seed", 2: "two seeds", 3: "three seeds", 5: "five seeds"}


def rows(experiment: str, folder: str | None = None, part: str = "final") -> list[dict[str, str]]:
    """Of the committed table; of runs, those of one part."""
    with (RESULTS / (folder or experiment) / f"{experiment}.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get("part", "final") == part]


def seeds(experiment: str, *models: str) -> str:
    """How many these have, in words: all of them as many."""
    (count,) = {len({r["seed"] for r in rows(experiment) if r["model"] == model}) for model in models}
    return SEEDS[count]


def counts(experiment: str, *models: str) -> str:
    """How many seeds each of some models has."""
    return ", ".join(str(len({r["seed"] for r in rows(experiment) if r["model"] == model})) for model in models)


def in_s5(model: str, length: int, folder: str = "s5") -> str:
    """The mean over seeds."""
    found = [float(r["error"]) for r in rows("s5", folder) if (r["model"], r["length"]) == (model, str(length))]
    return f"{100 * fmean(found):.2f}"


def reached(model: str) -> str:
    """The longest length that a model of S5 was trained at."""
    (length,) = {r["trained_to"] for r in rows("s5") if r["model"] == model}
    return length


def in_recall(model: str) -> str:
    """The mean over seeds, at the longest length."""
    return f"{100 * fmean(float(r['error']) for r in rows('mqar') if (r['model'], r['length']) == (model, '256')):.2f}"


def bytes_in_recall(model: str) -> str:
    with (RESULTS / "mqar" / "state.csv").open() as file:
        (held,) = [int(row["nbytes"]) for row in csv.DictReader(file) if row["model"] == model]
    return f"{held:,}"


def in_text(model: str) -> str:
    return f"{fmean(exp(float(r['loss'])) for r in rows('wikitext') if r['model'] == model):.3f}"


def operations(title: str, against: str) -> str:
    """Of one language model over those of another, as the first table of their page has them."""
    page = (RESULTS / "wikitext" / "README.md").read_text().partition("\n## The paper's blocks\n")[0]
    cells = [line.split("|") for line in page.splitlines() if " M |" in line]
    of = {one[1].strip(): float(one[5].split()[0]) for one in cells}
    return f"{of[title] / of[against]:.2f}"


def in_latency(model: str) -> tuple[str, str, str]:
    (row,) = [r for r in rows("latency") if (r["model"], r["position"]) == (model, "40960")]
    mean, slowest = float(row["milliseconds"]), float(row["slowest_milliseconds"])
    return f"{mean:.2f}", f"{slowest:.2f}", f"{int(row['nbytes']) / 2**20:.3g}"


def test_the_table_of_results_is_what_was_measured() -> None:
    table = (ROOT / "README.md").read_text().partition("| experiment | number |")[2].partition("\n\n")[0]
    found = [[cell.strip() for cell in line.split("|")[3:-1]] for line in table.splitlines()[2:]]
    latency = [in_latency(model) for model in ("Transformer-PSM", "GPT-2, KV cache in place", "Mamba (ours)")]
    assert found == [
        [in_s5(model, 4096) for model in ("psm-helped", "gpt2", "mamba")],
        [in_s5(model, 4096) for model in ("psm-plain", "gpt2", "mamba")],
        [in_recall(model) for model in ("psm-projection-16", "attention-64", "mamba-64")],
        [in_text(model) for model in ("psm-256", "gpt", "mamba")],
        [in_text(model) for model in ("deep-hybrid", "gpt", "mamba")],
        [*(in_text(f"{model}-at-2048") for model in ("alternating", "gpt")), "not trained"],
        *map(list, zip(*latency, strict=True)),
    ]
    others = f"others {seeds('s5', 'gpt2', 'mamba')} |"
    assert f"mean of {seeds('s5', 'psm-helped')}, {others}" in README
    assert f"mean of {seeds('s5', 'psm-plain')}, {others}" in README
    assert f"error, %; seeds {counts('mqar', 'psm-projection-16', 'attention-64', 'mamba-64')} |" in README
    assert f"perplexity per token of a BPE; seeds {counts('wikitext', 'psm-256', 'gpt', 'mamba')} |" in README
    assert f"the same; seeds {counts('wikitext', 'deep-hybrid', 'gpt', 'mamba')} |" in README
    assert (
        f"three layers of each | the same; seeds {counts('wikitext', 'alternating-at-2048', 'gpt-at-2048')} |" in README
    )
    tails = {r["model"]: float(r["p99_milliseconds"]) for r in rows("latency") if r["position"] == "40960"}
    assert tails["Transformer-PSM, recent = 1"] > tails["Transformer-PSM"]
    assert f"which makes the slowest token {in_latency('Transformer-PSM, recent = 1')[1]} ms, and p99 longer" in README


def test_what_is_said_of_state_tracking_was_measured() -> None:
    helped = [r for r in rows("s5") if r["model"] == "psm-helped"]
    assert len([r for r in helped if r["length"] == "4096"]) == 5 and all(r["error"] == "0.0" for r in helped)
    with (RESULTS / "s5" / "reading.csv").open() as file:
        read = list(csv.DictReader(file))
    # "Nor in 4 x 1,000,000 that each read on", and the LSTM.
    assert {r["errors"] for r in read} == {"0"} and {r["model"] for r in read} == {"psm-helped", "lstm-noise"}
    long = [r["model"] for r in read if (r["rows"], r["length"]) == ("4", "1000000")]
    assert long.count("psm-helped") == 5
    noisy = [float(r["error"]) for r in rows("s5") if (r["model"], r["length"]) == ("lstm-noise", "4096")]
    held = [error for error in noisy if error == 0]
    assert long.count("lstm-noise") == len(held) == 1 and seeds("s5", "lstm-noise") == "three seeds"
    assert "one seed of three made no error either, to 4,096 and in 4 x 1,000,000 tokens" in README
    with (RESULTS / "s5" / "factors.csv").open() as file:
        common = list(csv.DictReader(file))
    # "Every wrong answer is the right one with the same two things exchanged": element 2 is 0 1 3 2 4, which is odd.
    assert len(common) == 2 and all(r["explained"] == r["errors"] and r["factor"] == "2" for r in common)
    wrong = [f"{100 * error:.2f}%" for error in noisy if error]
    assert f"The other two are wrong in {' and '.join(wrong)} at 4,096, and every wrong answer in the first" in MORE
    assert {r["rows"] for r in common} == {"64"} and "64 test sequences is the right one" in MORE
    short = [float(r["error"]) for r in rows("s5") if (r["model"], r["length"]) == ("lstm-noise", "18")]
    at_18 = " and ".join(f"{100 * error:.2f}%" for error in short if error)
    assert f"did not learn length 18 ({at_18} wrong there, {in_s5('lstm', 18)}% without noise)" in README
    assert f"within the training length: {at_18} are wrong at 18." in MORE
    # "Learned next to nothing with any of three seeds; with twice as many tokens one of two runs did."
    plain = [float(r["error"]) for r in rows("s5") if (r["model"], r["length"]) == ("psm-plain", "18")]
    assert len(plain) == 3 and min(plain) > 0.8 and in_s5("psm-plain", 18, "s5_earlier") == "0.00"
    without = {r["model"]: r for r in rows("s5", part="ablation") if r["length"] == "4096"}
    noise, unit = (f"{100 * float(without[f'psm-without-{aid}']['error']):.2f}%" for aid in ("noise", "unit-states"))
    assert f"Without the noise {noise} were wrong at 4,096, without unit states {unit}" in MORE
    assert float(without["psm-without-agg-from-inf"]["error"]) > 0.9
    lstm = {n: in_s5("lstm", n) for n in (18, 128, 4096)}
    assert f"LSTM and Transformer-PSM fail ({lstm[4096]}% and {noise} wrong at 4,096, one seed each)" in README
    assert f"({lstm[18]}% errors there, {seeds('s5', 'lstm')})" in MORE
    assert f"{lstm[128]}% at 128, {lstm[4096]}% at 4,096. Trained" in MORE
    longer = {r["length"]: 100 * float(r["error"]) for r in rows("s5", part="longer") if r["model"] == "lstm-to-128"}
    assert f"to 128 it has {longer['128']:.2f}% errors there and {longer['4096']:.2f}% at 4,096" in MORE
    assert all(float(in_s5(model, 8)) > 50 for model in ("deltaproduct", "deltanet", "rwkv7"))
    assert {reached(model) for model in ("deltaproduct", "deltanet", "rwkv7")} == {"8"}
    assert "which were 3 to 8, nor" in MORE
    (direct,) = (r for r in rows("s5", part="longer") if (r["model"], r["length"]) == ("deltaproduct-at-128", "128"))
    assert f"chosen at length 3 ({100 * float(direct['error']):.2f}% there, one seed)" in MORE
    assert (
        f"Mamba came to {reached('mamba')}, GPT-2 to {reached('gpt2')} with {in_s5('gpt2', 18)}% errors there" in MORE
    )
    assert f"Mamba's curriculum reached {reached('mamba')}." in README
    assert seeds("s5", "deltaproduct", "deltanet", "rwkv7", "mamba", "gpt2") == "one seed"


def test_what_is_said_of_words_over_generators_was_measured() -> None:
    table = (RESULTS / "README.md").read_text().partition("| generators |")[2].partition("\n\n")[0]
    said = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]

    def right(model: str, count: int) -> str:
        found = [r for r in rows("s5", part="generators") if r["model"] == f"{model}-{count}-generators"]
        errors = [float(r["error"]) for r in found if int(r["length"]) >= 40]
        return f"{100 - 100 * fmean(errors):.2f}%" if errors else "no run"

    models = ("psm-helped", "lstm", "deltaproduct")
    assert said == [[str(count), *(right(model, count) for model in models)] for count in (4, 8, 32)]


def test_what_is_said_of_recall_was_measured() -> None:
    psm = [f"psm-{way}-{c}" for way in ("projection", "right") for c in (4, 8, 16, 32)]
    assert f"*Recall*, {seeds('mqar', *psm, 'gla-64', 'deltanet-64', 'psm-random')}: c = 16 and 32" in README
    projecting = [in_recall(f"psm-projection-{c}") for c in (16, 32)]
    assert f"with the projecting Agg have {projecting[0]}% and {projecting[1]}% errors" in README

    def each(model: str) -> str:
        *before, last = sorted(float(r["error"]) for r in rows("mqar") if (r["model"], r["length"]) == (model, "256"))
        return f"{', '.join(f'{100 * error:.2f}' for error in before)} and {100 * last:.2f}%"

    assert f"Started at random instead, c = 16 has {each('psm-random')}, one seed each." in MORE
    started = [float(r["error"]) for r in rows("mqar") if (r["model"], r["length"]) == ("psm-random", "256")]
    assert sum(error > 0.8 for error in started) == 1 and len(started) == 3
    assert "started at random, c = 16 had more than 80% with one seed of three" in README
    assert f"width 128, with 80,896 bytes, has {each('gla-128')} at the rate" in MORE
    assert bytes_in_recall("gla-128") == "80,896"
    fewer = {r["model"]: f"{100 * float(r['error']):.2f}%" for r in rows("mqar", part="pairs") if r["length"] == "256"}
    few, many = (fewer[f"psm-projection-4-with-{pairs}-pairs"] for pairs in (4, 8))
    assert (
        f"c = 4 has {few} errors with 4 pairs, c = 8 {fewer['psm-projection-8-with-8-pairs']} with 8; with 8 pairs c = 4 "
        f"has {many}, which is a guess." in MORE
    )
    assert abs(float(many[:-1]) - 100 * 7 / 8) < 2
    # "Did not begin to learn": a guess among 16 values.
    assert all(abs(float(in_recall(f"psm-projection-{c}")) - 100 * 15 / 16) < 2 for c in (4, 8))
    assert all(float(in_recall(f"psm-right-{c}")) > 50 for c in (4, 8, 16, 32))
    names = ("gla-64", "deltanet-64", "psm-projection-16")
    (gla, delta, _), held = ([read(name) for name in names] for read in (in_recall, bytes_in_recall))
    assert f"({gla}% and {delta}% wrong) with {held[0]} and {held[1]} bytes, where c = 16 holds {held[2]}." in README


def test_what_is_said_of_language_modelling_was_measured() -> None:
    names = ("psm-32", "psm-64", "psm-128", "psm-256", "gpt", "mamba", "hybrid")
    assert (
        set(counts("wikitext", *names)) == set("12, ")
        and "**Language modelling.** One or two seeds. Perplexity falls" in MORE
    )
    falling = [in_text(name) for name in names[:4]]
    assert falling == sorted(falling, key=float, reverse=True)
    assert f"from {falling[0]} at 32 to {falling[-1]} at 256" in MORE
    gpt = "GPT, context 512"
    above = float(in_text("psm-256")) / float(in_text("gpt")) - 1
    one, other = sorted(exp(float(r["loss"])) for r in rows("wikitext") if r["model"] == "psm-256")
    work = operations("Transformer-PSM, c = 256", gpt)
    assert (
        f"it is {above:.2%} above that of attention, with {work} times the operations, and its two seeds differ by "
        f"{other / one - 1:.2%}." in MORE
    )
    assert f"one layer less and {operations('Transformer-PSM, c = 256', gpt)} times its operations" in README
    assert f"Mamba has {operations('Mamba', gpt)} times those of attention." in MORE
    rising = [in_text(f"paper-psm-{c}") for c in (32, 64, 128, 256)]
    assert rising == sorted(rising, key=float)
    assert f"perplexity rises: from {rising[0]} at 32 to {rising[-1]} at 256, where attention has" in MORE
    assert f"attention has {in_text('paper-gpt2')}. The hybrid with three" in MORE
    title = "hybrid: (PSM with c = 128, recent = 1, Mamba) x 3"
    page = (RESULTS / "wikitext" / "README.md").read_text()
    (longer,) = re.findall(rf"with ([\d.]+) times its operations \({re.escape(title)}, trained at 2,048\)", page)
    parameters = {r["model"]: int(r["parameters"]) for r in rows("wikitext")}
    deep, three = (parameters[name] / parameters["gpt"] for name in ("deep-hybrid", "alternating"))
    deeper = operations("hybrid: PSM x 3 with c = 128, recent = 1; Mamba x 5", gpt)
    assert f"has {deeper} times the operations of attention and {deep:.2f} times its parameters." in README
    assert (
        f"Mamba has {operations(title, gpt)} times the operations of attention ({longer} times in windows of 2,048) and "
        f"{three:.2f} times its parameters, and a perplexity of {in_text('alternating')} in windows of 512"
    ) in MORE
    others = in_text("hybrid"), in_text("wide-hybrid-at-2048"), in_text("psm-128-at-2048")
    assert (
        f"({others[0]}; {others[1]} in windows of 2,048), nor does c = 128 alone in windows of 2,048 ({others[2]})"
        in MORE
    )
    # "In windows of 2,048 both learn less than in windows of 512."
    assert all(float(in_text(f"{name}-at-2048")) > float(in_text(name)) for name in ("gpt", "alternating"))


def test_what_is_said_of_windows_and_streams_was_measured() -> None:
    with (RESULTS / "wikitext" / "windows.csv").open() as file:
        found = {row["split"]: row for row in csv.DictReader(file) if row["hybrid"] == "deep-hybrid"}

    def change(split: str, errors: int = 0) -> str:
        return f"{exp(float(found[split]['mean']) + errors * float(found[split]['error'])) - 1:+.2%}"

    around = {split: f"{change(split, -2)} to {change(split, 2)}" for split in found}
    assert f"its perplexity is {change('test')} from attention's (two standard errors: {around['test']})" in README
    assert f"over those of the validation split {change('validation')} ({around['validation']})" in README
    # "But behind it on its first 64 windows."
    seed = found["validation"]["seed"]
    best = {r["model"]: float(r["validation_loss"]) for r in rows("wikitext") if r["seed"] == seed}
    assert best["gpt"] < best["deep-hybrid"] and float(found["validation"]["mean"]) < 0
    with (RESULTS / "wikitext" / "streams.csv").open() as file:
        read = list(csv.DictReader(file))
    ends = {
        model: f"{fmean(exp(float(r['loss'])) for r in read if (r['model'], r['end']) == (model, '16384')):.3f}"
        for model in {r["model"] for r in read}
    }
    assert float(ends["gpt-cache"]) == min(map(float, ends.values()))
    assert f"({ends['gpt-cache']} over the last half, one seed; hybrid {ends['deep-hybrid']})" in README
    assert (
        f"c = 128 has {ends['psm-128']}, the hybrids {ends['alternating']} (three layers of Mamba) and "
        f"{ends['deep-hybrid']} (five), attention {ends['gpt']} if it keeps everything and {ends['gpt-cache']} if it keeps"
    ) in MORE
    assert (
        f"c = 128 has {ends['psm-128-at-2048']}, the hybrid {ends['alternating-at-2048']}, attention "
        f"{ends['gpt-at-2048']} and, keeping 2,048 positions, {ends['gpt-at-2048-cache']}."
    ) in MORE


def benchmark(name: str) -> list[list[str]]:
    with (RESULTS / "benchmarks" / f"{name}.csv").open() as file:
        return list(csv.reader(file))


def test_the_speed_ratios_are_those_of_the_benchmarks() -> None:
    """Rounded, or divided, as the table says."""
    section = (RESULTS / "README.md").read_text().partition("\n## Speed\n")[2].partition("\n## ")[0]
    ratios = [float(line.split("|")[-2]) for line in section.splitlines() if re.search(r"\| [\d.]+ \|$", line)]
    measured = [float(row[-1]) for name in ("scan", "zoo") for row in benchmark(name)[1:] if row[-1]]
    for _, ours, limit, gpt2 in benchmark("train")[1:]:
        measured += [float(ours) / float(limit), float(ours) / float(gpt2)]
    means = {row[0]: float(row[3]) for row in benchmark("decode")[1:]}
    own = means["Transformer-PSM, in turn"]
    measured += [means[peer] / own for peer in ("GPT-2, static cache", "GPT-2, growing cache", "Mamba")]
    assert len(ratios) == 37
    for ratio in ratios:
        step = 10 ** -(len(str(ratio).partition(".")[2]) if ratio % 1 else 0)
        assert any(abs(ratio - value) <= 0.51 * step for value in measured), ratio


@pytest.mark.parametrize("page", ["README.md", "PAPER.md", "CONTRIBUTING.md"])
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (ROOT / link).exists(), link
    for path in re.findall(
        r"`((?:scan|distributed|nn|layers|models|storage|spd|hf|tasks|training|recipes|baselines|experiments|explain|cli)/[\w/]+\.(?:py|js))`",
        text,
    ):
        assert (ROOT / "src/scannable" / path).exists() or (ROOT / "tests" / path).exists(), path


def test_the_tests_that_the_paper_map_names_exist() -> None:
    """Each in the file that stands before it in its cell."""
    found = 0
    for cell in (ROOT / "PAPER.md").read_text().split("|"):
        code = ""
        for file, name in re.findall(r"`([\w/]*test_\w+\.py)`|`(test_\w+)`", cell):
            if file:
                code = (ROOT / "tests" / file).read_text()
            else:
                found += 1
                assert f"def {name}(" in code, name
    assert found > 20
