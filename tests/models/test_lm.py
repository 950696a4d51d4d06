"""A stack of any layers has the protocol of all models: verified, saved, forked, generated from."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import scannable as sc
from scannable.models.layer_options import (
    OPTIONS,
    DeltaNetOptions,
    GLAOptions,
    LayerOptions,
    LogLinearAttentionOptions,
    MambaOptions,
)
from scannable.models.lm_state import LMState


def model_of(*layers: str | LayerOptions, depth: int = 2, **changes: Any) -> sc.LM:
    """One layer `depth` times, or those that are named."""
    torch.manual_seed(0)
    stack = layers * depth if len(layers) == 1 else layers
    return sc.LM(sc.LMConfig(**({"layers": stack, "width": 16, "heads": 2, "vocab_size": 40} | changes)))


def tokens_of(*shape: int) -> torch.Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("row", sc.zoo.LAYERS)
def test_duality_holds_for_every_row(row: str) -> None:
    model = model_of(row)
    sc.verify_duality(model, tokens_of(2, 70), dtype=torch.float64).raise_if_failed()
    sc.verify_duality(model, tokens_of(2, 70), splits=2).raise_if_failed()


@pytest.mark.parametrize("row", sc.zoo.LAYERS)
def test_a_saved_stream_and_a_saved_model_go_on_bit_for_bit(row: str, tmp_path: Path) -> None:
    model, tokens = model_of(row).eval(), tokens_of(2, 70)
    _, state = model.prefill(tokens, model.initial_state(2))
    sc.save_state(state, tmp_path / "stream.safetensors")
    sc.save_model(model, tmp_path / "model")
    again, resumed = sc.load_model(tmp_path / "model"), sc.load_state(tmp_path / "stream.safetensors")
    assert isinstance(resumed, LMState) and resumed.position == 70
    assert torch.equal(again.step(tokens[:, 0], resumed)[0], model.step(tokens[:, 0], state)[0])
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize("row", sc.zoo.LAYERS)
def test_every_parameter_learns(row: str) -> None:
    # A prefix-scannable layer aggregates two chunks of 64 before it reads what came of them.
    model, tokens = model_of(row), tokens_of(2, 140)
    model.loss(tokens, tokens.roll(-1, 1)).backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().max() > 0)]
    assert silent == []


@pytest.mark.parametrize("row", sc.zoo.LAYERS)
def test_a_ragged_prefill_leaves_each_row_at_its_own_end(row: str) -> None:
    model, tokens, lengths = model_of(row).double(), tokens_of(3, 70), torch.tensor([70, 65, 1])
    _, state = model.prefill(tokens, model.initial_state(3), lengths=lengths)
    assert state.position == 70 and state.positions == (70, 65, 1)
    after, _ = model.step(tokens[:, 0], state)
    for i, n in enumerate(lengths.tolist()):
        _, alone = model.prefill(tokens[i : i + 1, :n], model.initial_state(1))
        expected, _ = model.step(tokens[i : i + 1, 0], alone)
        torch.testing.assert_close(after[i : i + 1], expected, rtol=0, atol=1e-10)


def test_the_loss_is_the_cross_entropy_of_the_logits() -> None:
    model, tokens = model_of("gla"), tokens_of(2, 30)
    targets = tokens.roll(-1, 1).masked_fill(tokens % 3 == 0, -100)
    plain = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(model.loss(tokens, targets, slice_length=7), plain)
    torch.testing.assert_close(model(tokens, logits_to_keep=3), model(tokens)[:, -3:])


def test_a_fork_goes_its_own_way() -> None:
    model, tokens = model_of("deltanet").double(), tokens_of(2, 20)
    _, state = model.prefill(tokens, model.initial_state(2))
    fork = state.fork()
    other, _ = model.prefill(tokens_of(2, 5), fork)
    same, _ = model.prefill(tokens_of(2, 5), state)
    torch.testing.assert_close(other, same, rtol=0, atol=0)


def test_generation_runs_from_any_row() -> None:
    for row in ("mamba", "log_linear", "lstm"):
        model, prompt = model_of(row), tokens_of(2, 9)
        generated = torch.stack(list(sc.generate(model, prompt, max_new_tokens=5, temperature=0)), 1)
        expected = prompt
        for _ in range(5):
            expected = torch.cat((expected, model(expected)[:, -1].argmax(-1, keepdim=True)), 1)
        assert torch.equal(generated, expected[:, 9:])


def test_mamba_has_no_mlp_unless_told() -> None:
    assert model_of("mamba").blocks[0].mlp is None
    assert model_of("mamba", mlp=True).blocks[0].mlp is not None
    assert model_of("gla").blocks[0].mlp is not None
    assert model_of("gla", mlp=False).blocks[0].mlp is None


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    model = model_of("gla", tie_weights=True)
    assert "head.weight" not in model.state_dict()
    assert torch.equal(model.head(torch.eye(16)), model.embedding.weight.T)
    sc.save_model(model, tmp_path)
    assert torch.equal(sc.load_model(tmp_path)(tokens_of(1, 9)), model.eval()(tokens_of(1, 9)))


def test_every_width_starts_with_outputs_of_unit_scale() -> None:
    for width in (64, 512):
        for row in ("gla", "mamba", "deltanet", "rwkv7", "s4"):
            logits = model_of(row, width=width, heads=4)(tokens_of(2, 50)).detach()
            assert 0.5 < float(logits.std()) < 2, (row, width)


@pytest.mark.usefixtures("shapes_unchecked")
def test_what_does_not_fit_gets_an_answer() -> None:
    model = model_of("gla")
    state = model.initial_state(2)
    with pytest.raises(ValueError, match=r"token 40 is outside the vocabulary of 40"):
        model(torch.tensor([[40]]))
    with pytest.raises(ValueError, match=r"expected integers of shape \(batch,\)"):
        model.step(torch.zeros(2, 1, dtype=torch.int64), state)
    with pytest.raises(TypeError, match="goes on from a LMState"):
        model.step(torch.zeros(2, dtype=torch.int64), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"has the shape \(2, 2, 4, 8\).*expected \(3, 2, 4, 8\)"):
        model.step(torch.zeros(3, dtype=torch.int64), state)
    with pytest.raises(ValueError, match="the state has 2 layers, this model 3"):
        model_of("gla", depth=3).step(torch.zeros(2, dtype=torch.int64), state)
    with pytest.raises(ValueError, match="another layer made it"):
        model_of("mamba").step(torch.zeros(2, dtype=torch.int64), state)
    with pytest.raises(ValueError, match="another layer made it"):
        model_of("log_linear").step(torch.zeros(2, dtype=torch.int64), state)
    counted = model_of("log_linear")
    with pytest.raises(ValueError, match=r"the state holds 2 rows, expected 3; another model or batch made it"):
        counted.step(torch.zeros(3, dtype=torch.int64), counted.initial_state(2))
    with pytest.raises(ValueError, match="batch_size=0 must be a whole number"):
        model.initial_state(0)
    with pytest.raises(ValueError, match="logits_to_keep=-1 must be a whole number of at least 0; None keeps all"):
        model(tokens_of(1, 2), logits_to_keep=-1)


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ("gla", "glaa")}, r"layers\[1\]='glaa' is none of linear_attention, deltanet"),
        ({"layers": ()}, r"layers=\(\) must be a tuple of at least one layer, such as \('mamba', 'gla'\)"),
        ({"layers": 0}, "layers=0 must be a tuple of at least one layer"),
        ({"layers": "gla"}, "layers='gla' must be a tuple of at least one layer"),
        ({"layers": (GLAOptions,)}, "is none of linear_attention"),
        ({"layers": (["gla"],)}, r"\['gla'\] is none of linear_attention"),
        ({"activation": "tanh"}, "activation='tanh'"),
        ({"norm": None}, "norm=None"),
        ({"mlp_width": 0}, "mlp_width=0 must be a whole number of at least 1"),
        ({"mlp_bias": None}, "mlp_bias=None must be True or False"),
        ({"positions": -1}, "positions=-1 must be a whole number of at least 0"),
        ({"out_size": 0}, "out_size=0 must be a whole number"),
        ({"dropout": 1}, r"dropout=1 must lie in \[0, 1\)"),
        ({"tie_weights": True, "out_size": 3}, "tie_weights needs one output for each token"),
    ],
)
def test_a_wrong_configuration_gets_an_answer(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_of("gla", **changes)


def test_a_counter_over_other_chunks_is_refused() -> None:
    one, other = model_of(LogLinearAttentionOptions(chunk=16)), model_of("log_linear")
    _, state = one.prefill(tokens_of(2, 69), one.initial_state(2))
    with pytest.raises(ValueError, match="a layer with another chunk than 64 made it"):
        other.step(tokens_of(2), state)
    with pytest.raises(ValueError, match=r"torch\.float32, expected \(2, 0, 2, 8\) and torch\.float64"):
        other.double().step(tokens_of(2), model_of("log_linear").initial_state(2))


def test_no_rows_of_tokens_give_no_rows_of_logits() -> None:
    for row in ("gla", "mamba", "log_linear"):
        assert model_of(row)(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 5, 40)


@pytest.mark.parametrize("row", ["gla", "mamba", "log_linear", "lstm"])
def test_activations_may_be_computed_twice_instead_of_kept(row: str) -> None:
    tokens, found = tokens_of(2, 70), []
    for again in (False, True):
        model, calls = model_of(row, checkpoint=again, dropout=0.1), []
        model.blocks[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(2)
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        assert len(calls) == (2 if again else 1)
        found.append([parameter.grad for parameter in model.parameters()])
        model.eval()(tokens)
        assert len(calls) == (3 if again else 2)
    for once, twice in zip(*found, strict=True):
        assert torch.equal(once, twice)


def test_layers_of_any_kind_and_their_options_stack() -> None:
    model = model_of("mamba", MambaOptions(state_size=3, with_mlp=True), DeltaNetOptions(heads=4), "log_linear", "lstm")
    blocks: Any = model.blocks
    assert [type(block.mixer).__name__ for block in blocks] == [
        *("Mamba", "Mamba", "DeltaNet", "LogLinearAttention", "LSTM")
    ]
    assert [block.mixer.space.log_rate.shape[1] for block in blocks[:2]] == [16, 3]
    assert [block.mlp is None for block in blocks] == [True, False, False, False, False]
    assert [block.mixer.heads for block in blocks] == [2, 2, 4, 2, 2]
    sc.verify_duality(model, tokens_of(2, 70), dtype=torch.float64).raise_if_failed()


def test_every_layer_has_options_of_the_names_and_defaults_of_its_class() -> None:
    assert set(OPTIONS) == set(sc.zoo.LAYERS)
    for name, layer in sc.zoo.LAYERS.items():
        if name == "psm":
            continue  # it takes its choices as they are
        taken = {
            parameter.name: parameter.default
            for parameter in inspect.signature(layer).parameters.values()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        }
        assert OPTIONS[name]().within(sc.LMConfig(9)).arguments() == taken, name


@pytest.mark.parametrize(("activation", "norm"), [("gelu", "layer"), ("swiglu", "rms"), ("relu2", "rms")])
def test_blocks_have_the_mlp_and_the_norms_that_are_asked_for(activation: Any, norm: Any) -> None:
    model, plain = model_of("gla", activation=activation, norm=norm, width=48), model_of("gla", width=48)
    blocks: Any = model.blocks
    kinds = {type(part) for block in blocks for part in (block.norm, block.mlp_norm)} | {type(model.norm)}
    assert kinds == {nn.RMSNorm if norm == "rms" else nn.LayerNorm}
    first: list[Any] = [one.blocks[0] for one in (model, plain)]
    sizes = [sum(p.numel() for p in block.mlp.parameters()) for block in first]
    assert 0.98 < sizes[0] / sizes[1] < 1.02
    sc.verify_duality(model, tokens_of(2, 30), dtype=torch.float64).raise_if_failed()


@pytest.mark.parametrize("activation", ["gelu", "swiglu", "relu2"])
def test_the_width_and_the_biases_of_an_mlp_can_be_chosen(activation: Any, tmp_path: Path) -> None:
    model = model_of("gla", activation=activation, mlp_width=21, mlp_bias=False)
    mlp: Any = model.blocks[0].mlp
    assert {name: tuple(weight.shape) for name, weight in mlp.named_parameters()} == {
        "into.weight": (42 if activation == "swiglu" else 21, 16),
        "out.weight": (16, 21),
    }
    sc.verify_duality(model, tokens_of(2, 30), dtype=torch.float64).raise_if_failed()
    sc.save_model(model, tmp_path / "model")
    again = sc.load_model(tmp_path / "model")
    assert torch.equal(again(tokens_of(2, 30)), model.eval()(tokens_of(2, 30)))


def test_learned_positions_are_those_of_each_stream_and_of_each_document() -> None:
    model, tokens = model_of("gla", positions=20).double(), tokens_of(2, 20)
    sc.verify_duality(model, tokens, dtype=torch.float64).raise_if_failed()
    whole = model(tokens)
    swapped, _ = model.prefill(tokens.roll(1, 1), model.initial_state(2))
    assert not torch.allclose(swapped[:, 1:], whole[:, :-1])
    _, state = model.prefill(tokens[:, :9], model.initial_state(2), lengths=[9, 4])
    found, state = model.prefill(torch.stack((tokens[0, 9:19], tokens[1, 4:14])), state)
    torch.testing.assert_close(found, torch.stack((whole[0, 9:19], whole[1, 4:14])), rtol=0, atol=1e-10)
    packed = model(torch.cat((tokens[:1, :7], tokens[1:, :9], tokens[:1, :4]), 1), starts=[0, 7, 16])
    torch.testing.assert_close(packed, torch.cat((whole[:1, :7], whole[1:, :9], whole[:1, :4]), 1), rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="21 tokens are more than the 20 positions"):
        model.prefill(tokens[:, :2], state, lengths=[2, 0])
    _, full = model.prefill(tokens[:, :1], state)
    assert full.positions == (20, 15)


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_sequence_longer_than_its_learned_positions_is_refused() -> None:
    model = model_of("gla", positions=20)
    with pytest.raises(ValueError, match="21 tokens are more than the 20 positions"):
        model(tokens_of(1, 21))
    assert model(tokens_of(1, 41), starts=[0, 20, 40]).shape == (1, 41, 40)
    with pytest.raises(ValueError, match="21 tokens are more than the 20 positions"):
        model(tokens_of(1, 41), starts=[0, 21])


def test_states_of_stacks_join_and_come_apart() -> None:
    model = model_of("mamba", "log_linear", "lstm").double().eval()
    texts = [tokens_of(1, n) for n in (70, 3, 65)]
    states = [model.prefill(text, model.initial_state(1))[1] for text in texts]
    together = sc.join(states)
    assert together.positions == (70, 3, 65) and together.position == 70
    assert together.nbytes == sum(state.nbytes for state in states)
    logits, after = model.step(torch.tensor([1, 2, 3]), together)
    for i, state in enumerate(states):
        alone, expected = model.step(torch.tensor([i + 1]), state)
        torch.testing.assert_close(logits[i : i + 1], alone, rtol=0, atol=1e-12)
        assert after.row(i).positions == expected.positions
        for found, other in zip(after.row(i).tensors(), expected.tensors(), strict=True):
            torch.testing.assert_close(found, other, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"states of \[3, 2\] layers; states of one model join"):
        sc.join([after, model_of("gla").initial_state(1)])
    with pytest.raises(
        TypeError, match=r"states\[1\] is a TensorState, states\[0\] a LMState; states of one model join"
    ):
        sc.join([after, after.layers[0]])


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_layer_at_another_position_than_its_stack_is_refused() -> None:
    model = model_of("gla")
    _, state = model.prefill(tokens_of(2, 5), model.initial_state(2))
    mixed = LMState(state.positions, (state.layers[0], model.initial_state(2).layers[1]))
    with pytest.raises(
        ValueError, match=r"the state is at \(5, 5\), but one of its layers at \(0, 0\); another stream"
    ):
        model.step(tokens_of(2), mixed)
