"""What the README promises runs as printed."""

import csv
import re
from math import exp
from pathlib import Path
from statistics import fmean, median

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


def in_s5(model: str, length: int, folder: str = "s5_earlier") -> str:
    """The mean over seeds."""
    found = [float(r["error"]) for r in rows("s5", folder) if (r["model"], r["length"]) == (model, str(length))]
    return f"{100 * fmean(found):.2f}"


def in_recall(model: str) -> tuple[str, str]:
    """Median and worst of the seeds."""
    errors = [100 * float(r["error"]) for r in rows("mqar") if (r["model"], r["length"]) == (model, "128")]
    assert len(errors) == 3
    return f"{median(errors):.2f}", f"{max(errors):.2f}"


def in_text(model: str) -> str:
    return f"{fmean(exp(float(r['loss'])) for r in rows('wikitext') if r['model'] == model):.3f}"


def in_latency(model: str) -> tuple[str, str, str]:
    (row,) = [r for r in rows("latency") if (r["model"], r["position"]) == (model, "40960")]
    mean, slowest = float(row["milliseconds"]), float(row["slowest_milliseconds"])
    return f"{mean:.2f}", f"{slowest:.2f}", f"{int(row['nbytes']) / 2**20:.3g}"


def test_the_table_of_results_is_what_was_measured() -> None:
    table = (ROOT / "README.md").read_text().partition("| experiment | number |")[2].partition("\n\n")[0]
    found = [[cell.strip() for cell in line.split("|")[3:-1]] for line in table.splitlines()[2:]]
    recall = [in_recall(model) for model in ("psm-large", "full", "mamba")]
    latency = [in_latency(model) for model in ("Transformer-PSM", "GPT-2, KV cache in place", "Mamba (ours)")]
    assert found == [
        [in_s5("psm-helped", 4096, "s5"), in_s5("gpt2", 4096), in_s5("mamba", 4096, "s5")],
        [in_s5(model, 4096) for model in ("psm-plain", "gpt2", "mamba")],
        [worst for _, worst in recall],
        [in_text(model) for model in ("psm-256", "gpt", "mamba")],
        [in_text(model) for model in ("hybrid", "gpt", "mamba")],
        *map(list, zip(*latency, strict=True)),
    ]
    # "The baselines did not learn even length 18": no better than a few in ten.
    assert all(float(in_s5(model, 18)) > 50 for model in ("gpt2", "mamba"))
    # "Five seeds of five made no error to 4,096 tokens."
    helped = [r for r in rows("s5", "s5") if r["model"] == "psm-helped"]
    assert len([r for r in helped if r["length"] == "4096"]) == 5 and all(r["error"] == "0.0" for r in helped)
    with (RESULTS / "s5" / "reading.csv").open() as file:
        read = list(csv.DictReader(file))
    assert {r["errors"] for r in read} == {"0"} and [r["length"] for r in read].count("1000000") == 5
    readme = " ".join((ROOT / "README.md").read_text().split())
    lstm = {n: in_s5("lstm", n, "s5") for n in (18, 128, 4096)}
    assert f"({lstm[18]}% errors there, one seed)" in readme
    assert f"{lstm[128]}% at 128, {lstm[4096]}% at 4,096. DeltaProduct" in readme
    # "DeltaProduct did not learn length 18 within these tokens, nor did Mamba."
    assert all(float(in_s5(model, 18, "s5")) > 50 for model in ("deltaproduct", "mamba"))
    without = {r["model"]: r for r in rows("s5", "s5", "ablation") if r["length"] == "4096"}
    noise, unit = (100 * float(without[f"psm-without-{aid}"]["error"]) for aid in ("noise", "unit-states"))
    assert f"Without the noise {noise:.2f}% were wrong at 4,096, without unit states {unit:.2f}%" in readme
    assert f"which makes the slowest token {in_latency('Transformer-PSM, recent = 1')[1]} ms" in readme
    assert float(without["psm-without-agg-from-inf"]["error"]) > 0.9
    assert f"one seed of three ended at an error of {in_recall('psm-small')[1]}%" in (ROOT / "README.md").read_text()


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
