"""Every baseline has the protocol of all models: verified, saved, forked, generated from."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import scannable as sc
from scannable.baselines import (
    GPT2Baseline,
    GPT2BaselineConfig,
    MambaBaseline,
    MambaBaselineConfig,
)
from scannable.spd.expected import TOLERANCE
from scannable.storage.configuration import from_plain, to_plain
from scannable.storage.model_file import build_model

# transformers imports much, and some of it warns.
pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (GPT2BaselineConfig, {"heads": 2, "context": 50}),
    "gpt2, no positions": (GPT2BaselineConfig, {"heads": 2, "positions": "none"}),
    "mamba": (MambaBaselineConfig, {"state_size": 4}),
}


def config_of(name: str, **changes: Any) -> Any:
    kind, own = CONFIGS[name]
    return kind(**({"vocab_size": 40, "width": 16, "layers": 2} | own | changes))


def model_of(name: str, **changes: Any) -> Any:
    """A model away from its start: there GPT-2 is so close to the identity that little would be noticed."""
    torch.manual_seed(0)
    model = build_model(config_of(name, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens_of(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CONFIGS)
def test_duality_holds_for_every_baseline(name: str) -> None:
    # transformers' Mamba rounds to float32 inside.
    tolerance = TOLERANCE[torch.float32] if name == "mamba" else None
    report = sc.verify_duality(model_of(name), tokens_of(2, 41), dtype=torch.float64, tolerance=tolerance)
    report.raise_if_failed()
    assert report.nbytes == report.nbytes_bound
    sc.verify_duality(model_of(name), tokens_of(2, 21), splits=2).raise_if_failed()


@pytest.mark.parametrize("name", CONFIGS)
def test_no_output_depends_on_a_later_token(name: str) -> None:
    model = model_of(name).double()
    embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding))
    seen: list[Any] = []

    def watch(_: nn.Module, __: Any, vectors: Any) -> None:
        vectors.retain_grad()
        seen.append(vectors)

    embedding.register_forward_hook(watch)
    model(tokens_of(1, 13))[0, 8].square().sum().backward()
    reached = seen[0].grad.abs().amax(-1)[0] > 0
    assert reached.tolist() == [True] * 9 + [False] * 4


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_formula_counts_the_bytes_of_the_state(name: str, dtype: torch.dtype) -> None:
    model = model_of(name).to(dtype)
    for batch_size in (1, 3):
        state = model.initial_state(batch_size)
        for m in (0, 1, 1, 1, 3, 20, 1):
            assert state.nbytes == model.state_nbytes(state.position, batch_size)
            _, state = model.prefill(tokens_of(batch_size, m), state)
        assert state.position == 27 and state.nbytes == model.state_nbytes(27, batch_size) > 0


@pytest.mark.parametrize("name", CONFIGS)
def test_autocast_trains_and_streams(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 12)
    expected = model(tokens)[:, -1]
    with torch.autocast("cpu", torch.bfloat16):
        model.loss(tokens, tokens).backward()
        _, state = model.prefill(tokens[:, :9], model.initial_state(2))
        _, state = model.prefill(tokens[:, 9:11], state)
        logits, state = model.step(tokens[:, 11], state)
    assert state.nbytes == model.state_nbytes(12, 2)
    assert float((logits - expected).abs().max()) < 0.1 * float(expected.std())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fork_and_its_stream_do_not_disturb_each_other(name: str) -> None:
    model, tokens, others = model_of(name), tokens_of(2, 9), tokens_of(2, 4, seed=2)
    _, state = model.prefill(tokens, model.initial_state(2))
    fork = state.fork()
    for token in others.T:
        _, fork = model.step(token, fork)
    going_on, _ = model.step(tokens[:, 0], state)
    _, alone = model.prefill(tokens, model.initial_state(2))
    assert torch.equal(going_on, model.step(tokens[:, 0], alone)[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_stream_and_a_saved_model_go_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, tokens = model_of(name).eval(), tokens_of(2, 21)
    _, state = model.prefill(tokens, model.initial_state(2))
    sc.save_state(state, tmp_path / "stream.safetensors")
    sc.save_model(model, tmp_path / "model")
    again, resumed = sc.load_model(tmp_path / "model"), sc.load_state(tmp_path / "stream.safetensors")
    assert type(resumed) is type(state) and resumed.position == 21 and resumed.nbytes == state.nbytes
    assert torch.equal(again.step(tokens[:, 0], resumed)[0], model.step(tokens[:, 0], state)[0])
    assert torch.equal(again(tokens), model(tokens)) and again.config == model.config


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_learns(name: str) -> None:
    for changes in ({}, {"tie_weights": True}, {"out_size": 3}):
        model, tokens = model_of(name, **changes).train(), tokens_of(2, 50) % (3 if "out_size" in changes else 40)
        model.loss(tokens, tokens.roll(-1, 1)).backward()
        silent = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().max() > 0)]
        assert silent == []


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_is_the_cross_entropy_of_the_logits(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 30)
    targets = tokens.roll(-1, 1).masked_fill(tokens % 3 == 0, -100)
    plain = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(model.loss(tokens, targets, slice_length=7), plain)
    torch.testing.assert_close(model(tokens, logits_to_keep=3), model(tokens)[:, -3:])
    assert model(tokens, logits_to_keep=0).shape == (2, 0, 40)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_tokens_give_no_logits_and_the_same_state(name: str) -> None:
    model = model_of(name)
    assert model(tokens_of(0, 5)).shape == (0, 5, 40) and model(tokens_of(2, 0)).shape == (2, 0, 40)
    _, state = model.prefill(tokens_of(2, 7), model.initial_state(2))
    logits, after = model.prefill(tokens_of(2, 0), state)
    assert logits.shape == (2, 0, 40) and after.position == 7 and after.nbytes == state.nbytes


@pytest.mark.parametrize("name", CONFIGS)
def test_tied_weights_are_those_of_the_embedding(name: str) -> None:
    model, untied = model_of(name, tie_weights=True), model_of(name)
    embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding))
    assert "head.weight" in untied.state_dict() and "head.weight" not in model.state_dict()
    torch.testing.assert_close(model.head(torch.eye(16)), embedding.weight.T)
    count = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in model.parameters())
    assert count == 40 * 16


@pytest.mark.parametrize("name", CONFIGS)
def test_generation_runs_from_every_baseline(name: str) -> None:
    model, prompt = model_of(name), tokens_of(2, 9)
    generated = torch.stack(list(sc.generate(model, prompt, max_new_tokens=5, temperature=0)), 1)
    expected = prompt
    for _ in range(5):
        expected = torch.cat((expected, model(expected)[:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(generated, expected[:, 9:])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_read_back(name: str) -> None:
    config = config_of(name, out_size=7)
    assert from_plain(to_plain(config)) == config


def test_more_tokens_than_positions_are_refused_before_anything_is_written() -> None:
    model, tokens = model_of("gpt2"), tokens_of(2, 51)
    with pytest.raises(
        ValueError,
        match="51 tokens are more than the 50 positions this model has learned; build it with a larger context",
    ):
        model(tokens)
    _, state = model.prefill(tokens[:, :49], model.initial_state(2))
    with pytest.raises(ValueError, match="51 tokens are more than the 50 positions"):
        model.prefill(tokens[:, 49:], state)
    last, state = model.step(tokens[:, 49], state)
    torch.testing.assert_close(last, model(tokens[:, :50])[:, -1])
    with pytest.raises(ValueError, match="51 tokens are more than the 50 positions"):
        model.step(tokens[:, 50], state)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize("name", CONFIGS)
def test_what_does_not_fit_gets_an_answer(name: str) -> None:
    model = model_of(name)
    _, state = model.prefill(tokens_of(2, 3), model.initial_state(2))
    with pytest.raises(ValueError, match="token 40 is outside the vocabulary of 40"):
        model(torch.tensor([[40]]))
    with pytest.raises(ValueError, match=r"expected integers of shape \(batch,\)"):
        model.step(torch.zeros(2, 1, dtype=torch.int64), state)
    with pytest.raises(
        TypeError, match=r"goes on from a \w+State, .*, not from NoneType; initial_state\(batch_size\) starts one"
    ):
        model.step(tokens_of(2), None)
    with pytest.raises(TypeError, match="goes on from a"):
        model.step(tokens_of(2), model_of("gpt2" if name == "mamba" else "mamba").initial_state(2))
    with pytest.raises(ValueError, match=r"but this model and batch need .*; was it made by another one"):
        model.step(tokens_of(3), state)
    with pytest.raises(ValueError, match=r"and dtype torch\.float32, but this model .* and torch\.float64"):
        model_of(name).double().step(tokens_of(2), state)
    with pytest.raises(ValueError, match=r"the state has 2 layers, this model 3|this model and batch need \(3, 2"):
        model_of(name, layers=3).step(tokens_of(2), state)
    with pytest.raises(ValueError, match="batch_size=0 must be a whole number of at least 1"):
        model.initial_state(0)
    with pytest.raises(ValueError, match="logits_to_keep=-1 must be a whole number of at least 0; None keeps all"):
        model(tokens_of(1, 2), logits_to_keep=-1)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        *((name, {"vocab_size": 0}, "vocab_size=0 must be a whole number of at least 1") for name in CONFIGS),
        *((name, {"layers": 1.5}, r"layers=1\.5 must be a whole number") for name in CONFIGS),
        *((name, {"out_size": 0}, "out_size=0 must be a whole number") for name in CONFIGS),
        *(
            (name, {"tie_weights": True, "out_size": 3}, "tie_weights needs one output for each token")
            for name in CONFIGS
        ),
        *((name, {"tie_weights": 1}, "tie_weights=1 must be True or False") for name in CONFIGS),
        *((name, {"sinusoids": 1}, "sinusoids=1 must be True or False") for name in CONFIGS if name != "mamba"),
        *((name, {"heads": 3}, "width=16 is not a multiple of heads=3") for name in ("gpt2",)),
        *((name, {"context": 0}, "context=0 must be a whole number") for name in ("gpt2",)),
        *((name, {"dropout": 1}, r"dropout=1 must lie in \[0, 1\)") for name in ("gpt2",)),
        ("gpt2", {"positions": "rotary"}, "positions='rotary' is neither 'absolute' nor 'none'"),
        ("gpt2, no positions", {"sinusoids": True}, "sinusoids=True needs positions to start so"),
        ("gpt2", {"init_std": 0.0}, r"init_std=0\.0 must be above 0, or None for GPT-2's 0\.02"),
        ("gpt2", {"init_std": float("nan")}, "init_std=nan must be above 0"),
        ("mamba", {"state_size": 0}, "state_size=0 must be a whole number"),
        ("mamba", {"convolution": 0}, "convolution=0 must be a whole number"),
    ],
)
def test_a_wrong_configuration_gets_an_answer(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(name, **changes)


def test_only_the_models_of_transformers_need_it() -> None:
    code = """
import sys
sys.modules["transformers"] = None
from scannable.baselines import *
for model, config in ((GPT2Baseline, GPT2BaselineConfig), (MambaBaseline, MambaBaselineConfig)):
    try:
        model(config(5, width=8))
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    missing = "this baseline is a model of transformers, which is missing; pip install 'scannable[hf]'"
    assert done.stdout.splitlines() == [missing, missing]


def test_importing_the_baselines_does_not_import_transformers() -> None:
    code = "import sys, scannable.baselines; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gpt2", GPT2Baseline), ("mamba", MambaBaseline)],
)
def test_a_configuration_builds_its_model(name: str, kind: type) -> None:
    assert type(model_of(name)) is kind


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing_and_documents_are_alone(name: str) -> None:
    model, tokens = model_of(name).double(), tokens_of(2, 20)
    # transformers' Mamba rounds to float32 inside.
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-4 if name == "mamba" else 1e-10}
    y = model(tokens, lengths=[20, 7])
    torch.testing.assert_close(y[1, :7], model(tokens[1:, :7])[0], **close)
    y = model(tokens, starts=[[0, 5], [13]])
    for row, begin, end in ((0, 0, 5), (0, 5, 20), (1, 0, 13), (1, 13, 20)):
        torch.testing.assert_close(y[row, begin:end], model(tokens[row : row + 1, begin:end])[0], **close)
    with pytest.raises(ValueError, match=r"lengths \[20, 7\]: in a stream of .*, all rows go on by as many tokens"):
        model.prefill(tokens, model.initial_state(2), lengths=[20, 7])


@pytest.mark.parametrize("name", CONFIGS)
def test_streams_at_one_position_are_joined_and_taken_out(name: str) -> None:
    model, tokens = model_of(name), tokens_of(2, 9)
    _, both = model.prefill(tokens, model.initial_state(2))
    expected, _ = model.step(tokens[:, 0], both.fork())
    together = sc.join([both.row(1), both.row(0)])
    torch.testing.assert_close(model.step(tokens[[1, 0], 0], together)[0], expected[[1, 0]])


def test_the_sizes_where_nothing_is_said() -> None:
    assert asdict(GPT2BaselineConfig(9)) == {
        "vocab_size": 9, "width": 256, "layers": 4, "heads": 4, "context": 1024, "positions": "absolute",
        "out_size": None, "tie_weights": False, "dropout": 0.0, "init_std": None, "sinusoids": False,
    }  # fmt: skip
    assert asdict(MambaBaselineConfig(9)) == {
        "vocab_size": 9, "width": 256, "layers": 4, "state_size": 16, "expand": 2, "convolution": 4, "out_size": None,
        "tie_weights": False,
    }  # fmt: skip
