"""Each switch does what it says, and turned back it is the library's model again."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from scannable.experiments import corrected, corrected_runs
from scannable.experiments.as_printed import AsPrinted
from scannable.experiments.as_printed_config import AsPrintedConfig, as_printed
from scannable.experiments.corrected_runs import RIGHT, SIZES, STATE_SWITCHES, TEXT_SWITCHES, recipes
from scannable.experiments.departures import apart, as_corrected, calls, perplexity_of, values
from scannable.experiments.laboratory import Laboratory
from scannable.models.transformer_psm_config import TransformerPSMConfig
from scannable.scan import scan
from scannable.storage.model_file import load_model, save_model
from scannable.tasks.text import TextTask

C = 4
PLAIN = AsPrintedConfig(7, 16, 2, chunk_length=C, agg_layers=1, inf_layers=1)
TOKENS = torch.randint(7, (2, 8 * C), generator=torch.Generator().manual_seed(0))


def model(**switches: object) -> AsPrinted:
    return seeded(replace(PLAIN, **switches))


def seeded(config: AsPrintedConfig) -> AsPrinted:
    torch.manual_seed(0)
    return AsPrinted(config).double().eval()


def test_without_a_switch_it_is_the_corrected_model() -> None:
    plain = model()
    assert torch.equal(plain(TOKENS), as_corrected(plain).double()(TOKENS))


@pytest.mark.parametrize("switches", [*TEXT_SWITCHES.values(), {"tree": "swapped"}, {"tree": "forgetful"}])
def test_every_switch_is_another_function_of_the_same_weights(switches: dict[str, object]) -> None:
    switches = {name: value for name, value in switches.items() if name not in ("positions", "sinusoids")}
    turned, plain = model(**switches), model()
    if switches:
        assert not torch.allclose(turned(TOKENS), plain(TOKENS))
    if "init_std" not in switches:
        assert torch.equal(as_corrected(turned).double()(TOKENS), plain(TOKENS))


def first_change(turned: AsPrinted, place: int) -> int:
    """The earliest output that another token at `place` changes."""
    other = TOKENS.clone()
    other[:, place] = (other[:, place] + 1) % 7
    changed = (turned(TOKENS) != turned(other)).any(-1).any(0)
    return int(changed.nonzero()[0])


def test_the_leak_shows_inf_the_rest_of_its_chunk() -> None:
    place = 2 * C + 3
    assert first_change(model(), place) == place
    assert first_change(model(prefix_of="own"), place) == 2 * C


def test_the_late_prefix_misses_a_chunk() -> None:
    turned, other = model(prefix_of="late"), TOKENS.clone()
    other[:, C : 2 * C] = (other[:, C : 2 * C] + 1) % 7
    same = (turned(TOKENS) == turned(other)).all(-1).all(0)
    # Chunk 1 is seen by itself, not by chunk 2, and by chunk 3 again.
    assert [bool(part.all()) for part in same.split(C)] == [True, False, True, *[False] * 5]


@torch.no_grad()
def test_a_wrong_tree_gives_inf_its_prefixes() -> None:
    turned = model(tree="swapped")
    chunks = turned.enc(TOKENS).unflatten(1, (-1, C))
    right = scan(turned.agg, chunks, identity=turned.identity, dim=1)
    wrong = turned._prefixes(chunks)
    assert torch.equal(wrong[:, 0], right[:, 0]) and apart(wrong[:, 1], right[:, 1]) > 0.01


def test_absolute_positions_end_where_their_table_does() -> None:
    turned = model(absolute=16, positions="none")
    assert turned(TOKENS[:, :16]).shape == (2, 16, 7)
    with pytest.raises(ValueError, match="32 tokens, but there are positions for 16 only"):
        turned(TOKENS)
    with pytest.raises(ValueError, match="absolute=16 takes the place of local positions: set positions='none'"):
        replace(PLAIN, absolute=16)
    with pytest.raises(ValueError, match="tree='swapped' has prefixes of earlier chunks only"):
        replace(PLAIN, tree="swapped", prefix_of="late")


def test_gpt2s_start_has_one_deviation() -> None:
    torch.manual_seed(0)
    turned = AsPrinted(replace(PLAIN, width=64, heads=2, init_std=0.02, tie_weights=True))
    weights = {name: weight for name, weight in turned.named_parameters() if weight.ndim == 2}
    for name, weight in weights.items():
        expected = 0.02 / 2**0.5 if name.endswith(("attention.out.weight", "mlp_out.weight")) else 0.02
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.2), name


def test_a_projection_may_start_as_torch_starts_a_linear() -> None:
    config = TransformerPSMConfig(7, 8, 1, chunk_length=C, agg_layers=1, inf_layers=1, compress="projection")
    turned, same = (seeded(as_printed(config, random_projection=on)) for on in (True, False))
    other = [name for name, weight in turned.state_dict().items() if not torch.equal(weight, same.state_dict()[name])]
    assert other == ["layer.agg.projection.weight", "layer.agg.projection.bias"]
    started, kept = (one.state_dict()["layer.agg.projection.weight"] for one in (turned, same))
    assert kept.count_nonzero() == 2 * C and started.count_nonzero() == started.numel()
    assert started.abs().max() <= (2 * C) ** -0.5
    # Nothing else is another function, so it streams.
    logits, state = turned.prefill(TOKENS, turned.initial_state(2))
    torch.testing.assert_close(logits, turned(TOKENS))
    assert state.nbytes == same.prefill(TOKENS, same.initial_state(2))[1].nbytes
    with pytest.raises(ValueError, match="random_projection needs compress='projection', not 'right_half'"):
        replace(PLAIN, random_projection=True)


@pytest.mark.parametrize("switch", [{"tree": "swapped"}, {"prefix_of": "own"}, {"absolute": 32, "positions": "none"}])
def test_what_is_another_function_in_parallel_does_not_stream(switch: dict[str, Any]) -> None:
    turned = model(**switch)
    with pytest.raises(TypeError, match="in parallel only"):
        turned.prefill(TOKENS, turned.initial_state(2))


def test_what_is_as_printed_is_saved(tmp_path: Path) -> None:
    turned = model(tree="forgetful")
    with pytest.raises(TypeError, match="neither lengths nor starts"):
        turned(TOKENS, lengths=[3, 4])
    save_model(turned, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model")(TOKENS), turned(TOKENS))


def test_what_needs_no_training() -> None:
    found = {(row.switch, row.quantity): (row.corrected, row.printed) for row in values()}
    assert found["causal", "Agg's result at c = 1, one layer: moved by"] == (0, 0)
    assert found["causal", "Agg's result at c = 32, one layer: moved by"][1] > 0.01
    assert found["literal", "64 prefixes of an untrained Agg: moved by"][1] > 0.01
    assert found["swapped", "right ones among 64 prefix sums"] == (64, 64)
    assert found["swapped", "right ones among 64 prefixes of 2a + 3b"] == (64, 1)
    assert found["forgetful", "right ones among 64 prefix sums"][1] < 64


def test_calls_of_agg_are_the_closed_forms() -> None:
    found = {(row.switch, row.quantity): (row.corrected, row.printed) for row in calls((64,))}
    # 63 merges, 64 - 7 folds; as printed a fold for each set bit but the first of each of 1 .. 64.
    assert found["refolding", "evaluations of Agg a chunk, 64 chunks"] == (120 / 64, (63 + 193 - 64) / 64)
    assert found["literal", "evaluations of Agg a chunk, 64 chunks"] == (120 / 64, 127 / 64)
    assert found["sequential", "calls of Agg in a row, 64 chunks"] == (10, 57 + 57)


def test_the_scores_are_those_of_every_token_and_of_all_but_the_first_of_each_chunk(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the cat sat on the mat, and the dog on the log. " * 300)
    task, use = TextTask(str(tmp_path / "book.txt"), cache=tmp_path / "cache"), replace(SIZES["smoke"], context=16)

    class Sure(torch.nn.Module):
        """Knows every token but the first of each chunk of 8, for which it has no preference."""

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            # The first token comes last, where nothing is known anyway.
            sure = torch.nn.functional.one_hot(tokens.roll(-1, 1), task.vocab_size) * 100.0
            sure[:, 7::8] = 0
            return sure

    every, inside = perplexity_of(Sure(), task, use)
    assert inside == pytest.approx(1) and every == pytest.approx(task.vocab_size ** (2 / 16), rel=0.05)


def test_every_switch_has_its_runs() -> None:
    use = SIZES["laptop"]
    names = recipes(use).keys()
    assert names == {f"text-{name}-{seed}" for name in TEXT_SWITCHES for seed in use.seeds} | {
        f"states-{name}-{seed}" for name in STATE_SWITCHES for seed in use.seeds
    }
    found = recipes(use)
    # One switch at a time: everything else of a run is that of the corrected one.
    for task in ("text", "states"):
        right = found[f"{task}-{RIGHT}-0"]
        for name in TEXT_SWITCHES if task == "text" else STATE_SWITCHES:
            run = found[f"{task}-{name}-0"]
            assert replace(run, model=right.model, evaluation=right.evaluation) == right


@pytest.mark.slow
def test_a_smoke_run_leaves_numbers_a_picture_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    book = tmp_path / "book"
    book.mkdir()
    (book / "chapter.txt").write_text("the cat sat on the mat, and the dog on the log. " * 100)
    monkeypatch.setattr(corrected, "calls", lambda: calls((64,)))
    lab = Laboratory("corrected", "smoke", tmp_path / "results", tmp_path / "runs", Console(quiet=True), data=str(book))
    corrected.run(lab)
    left = tmp_path / "results"
    assert (left / "corrected.png").read_bytes().startswith(b"\x89PNG") and (left / "corrected.svg").exists()
    with (left / "corrected.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["switch"] for row in rows} == set(corrected.SWITCHES)
    page = (left / "README.md").read_text()
    assert "**These are short runs**" in page and 'Thm. "Equivalence with static Blelloch"' in page
    for lines in (block.splitlines() for block in page.split("\n\n") if block.startswith("| ")):
        assert len({line.count("|") for line in lines}) == 1
    assert len(list((left / "configurations").iterdir())) == len(recipes(corrected_runs.SIZES["smoke"]))
