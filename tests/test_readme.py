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


def rows(experiment: str, folder: str | None = None, part: str = "final") -> list[dict[str, str]]:
    """Of the committed table; of runs, those of one part."""
    with (RESULTS / (folder or experiment) / f"{experiment}.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get("part", "final") == part]


def in_s5(model: str, length: int, folder: str = "s5") -> str:
    """The mean over seeds."""
    found = [float(r["error"]) for r in rows("s5", folder) if (r["model"], r["length"]) == (model, str(length))]
    return f"{100 * fmean(found):.2f}"


def in_recall(model: str) -> str:
    """The mean over seeds, at the longest length."""
    return f"{100 * fmean(float(r['error']) for r in rows('mqar') if (r['model'], r['length']) == (model, '256')):.2f}"


def bytes_in_recall(model: str) -> str:
    with (RESULTS / "mqar" / "state.csv").open() as file:
        (held,) = [int(row["nbytes"]) for row in csv.DictReader(file) if row["model"] == model]
    return f"{held:,}"


def in_text(model: str) -> str:
    return f"{fmean(exp(float(r['loss'])) for r in rows('wikitext') if r['model'] == model):.3f}"


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
        [in_text(model) for model in ("hybrid", "gpt", "mamba")],
        *map(list, zip(*latency, strict=True)),
    ]
    # "Learned next to nothing with any of three seeds; with twice as many tokens it once did."
    assert len([r for r in rows("s5") if (r["model"], r["length"]) == ("psm-plain", "18")]) == 3
    assert in_s5("psm-plain", 18, "s5_earlier") == "0.00"
    # "Five seeds of five made no error to 4,096 tokens."
    helped = [r for r in rows("s5") if r["model"] == "psm-helped"]
    assert len([r for r in helped if r["length"] == "4096"]) == 5 and all(r["error"] == "0.0" for r in helped)
    with (RESULTS / "s5" / "reading.csv").open() as file:
        read = list(csv.DictReader(file))
    assert {r["errors"] for r in read} == {"0"} and [r["length"] for r in read].count("1000000") == 5
    readme = " ".join((ROOT / "README.md").read_text().split())
    lstm = {n: in_s5("lstm", n) for n in (18, 128, 4096)}
    assert f"({lstm[18]}% errors there, one seed)" in readme
    assert f"{lstm[128]}% at 128, {lstm[4096]}% at 4,096. DeltaProduct" in readme
    # "DeltaProduct did not learn length 18 within these tokens, nor did DeltaNet, Mamba and GPT-2."
    assert all(float(in_s5(model, 18)) > 50 for model in ("psm-plain", "deltaproduct", "deltanet", "mamba", "gpt2"))
    without = {r["model"]: r for r in rows("s5", part="ablation") if r["length"] == "4096"}
    noise, unit = (100 * float(without[f"psm-without-{aid}"]["error"]) for aid in ("noise", "unit-states"))
    assert f"Without the noise {noise:.2f}% were wrong at 4,096, without unit states {unit:.2f}%" in readme
    assert f"which makes the slowest token {in_latency('Transformer-PSM, recent = 1')[1]} ms" in readme
    assert float(without["psm-without-agg-from-inf"]["error"]) > 0.9
    assert [in_recall(f"psm-projection-{c}") for c in (16, 32)] == ["0.00", "0.00"]
    small = [in_recall(f"psm-projection-{c}") for c in (8, 4)]
    assert f"than which values there are ({small[0]}% and {small[1]}% wrong)" in readme
    # "Keeping the right half alone fails at every c."
    assert all(float(in_recall(f"psm-right-{c}")) > 50 for c in (4, 8, 16, 32))
    assert f"GLA of width 64 comes near ({in_recall('gla-64')}% wrong)" in readme
    held = bytes_in_recall("gla-64"), bytes_in_recall("psm-projection-16")
    assert f"less than a third as much: {held[0]} bytes against {held[1]} of c = 16" in readme


def test_words_over_generators_are_what_was_measured() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    found = {(r["model"], r["length"]): float(r["error"]) for r in rows("s5", part="generators")}
    assert {error for (model, _), error in found.items() if model == "psm-helped-32-generators"} == {0.0}
    right = 100 - 100 * found["psm-helped-8-generators", "256"]
    assert f"over 8 of them {right:.2f}% right at 256" in readme


def test_language_modelling_at_2048_and_in_streams_is_what_was_measured() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"in windows of 2,048 ({in_text('psm-128-at-2048')}, GPT {in_text('gpt-at-2048')})" in readme
    rising = [in_text(f"paper-psm-{c}") for c in (32, 64, 128)]
    assert f"it rises: {rising[0]}, {rising[1]} and {rising[2]} at 32, 64 and 128" in readme
    # "Neither hybrid that was trained came near GPT."
    for hybrid, gpt in (("hybrid", "gpt"), ("wide-hybrid-at-2048", "gpt-at-2048")):
        assert float(in_text(hybrid)) > 1.2 * float(in_text(gpt))
    with (RESULTS / "wikitext" / "streams.csv").open() as file:
        ends = {r["model"]: exp(float(r["loss"])) for r in csv.DictReader(file) if r["end"] == "16384"}
    psm, gpt, longer = (f"{ends[name]:.3f}" for name in ("psm-128", "gpt", "gpt-at-2048"))
    assert f"ends at {psm}, GPT at {gpt}, and at {longer} if it was trained at 2,048" in readme


def test_the_numbers_side_by_side_are_those_of_the_pages() -> None:
    section = (RESULTS / "README.md").read_text().partition("\n## Experiments\n")[2].partition("\n## ")[0]
    pages = " ".join(path.read_text() for path in RESULTS.glob("*/README.md"))
    numbers = set(re.findall(r"(?<![\d.,])\d+\.\d+(?![\d.])", section))
    assert len(numbers) >= 40
    for number in numbers:
        assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d.])", pages), number


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
