"""Definition PSM and Transformer-PSM: causal, every token predicted, one scan and one Inf call."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scannable as sc
from scannable.scan import reference


def tiny(c: int = 4, **options: Any) -> sc.TransformerPSM:
    torch.manual_seed(0)
    config = sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=c, heads=2, **options)
    return sc.TransformerPSM(config).double().eval()


GRID = [(c, compress) for c in (1, 2, 7, 64) for compress in ("right_half", "projection")]


@pytest.mark.slow
@pytest.mark.parametrize(("c", "compress"), GRID)
@pytest.mark.parametrize("batch", [1, 3])
def test_parallel_prefill_and_step_are_one_function(c: int, compress: str, batch: int) -> None:
    model = tiny(c, compress=compress, agg_heads=4, inf_layers=3)
    for n in (1, 7, 63, 64, 65, 300):
        report = sc.verify_duality(model, torch.randint(13, (batch, n)))
        report.raise_if_failed()
        assert report.nbytes == report.nbytes_bound
        chunks = n // c
        assert report.step_evaluations is not None and report.step_evaluations <= 2 * chunks


@pytest.mark.parametrize(
    "options", [{"literal_identity": True}, {"agg_causal": True}, {"tie_weights": True}, {"out_size": 5}]
)
def test_duality_holds_for_every_variant(options: dict[str, Any]) -> None:
    sc.verify_duality(tiny(3, **options), torch.randint(13, (2, 50))).raise_if_failed()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_duality_holds_in_low_precision(dtype: torch.dtype) -> None:
    sc.verify_duality(tiny(7), torch.randint(13, (2, 150)), dtype=dtype).raise_if_failed()


def test_forward_is_the_definition_written_out() -> None:
    """Inf(prefix of the chunks before, chunk), with the prefixes from the plain recursion."""
    model, c, n = tiny(4), 4, 26
    tokens = torch.randint(13, (2, n))
    x = model.enc(nn.functional.pad(tokens, (0, 2))).unflatten(1, (7, c))
    prefixes = reference.scan(model.agg, list(x.unbind(1)), model.identity.expand(2, -1, -1))
    hidden = torch.cat([model.inf(s, chunk) for s, chunk in zip(prefixes, x.unbind(1), strict=True)], 1)
    torch.testing.assert_close(model(tokens), model.head(hidden[:, :n]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("c", [1, 4])
@pytest.mark.parametrize("compress", ["right_half", "projection"])
def test_no_output_sees_the_future_and_every_output_sees_the_present(c: int, compress: str) -> None:
    model, n = tiny(c, compress=compress), 23
    tokens = torch.randint(13, (1, n))
    before = model(tokens)
    for t in range(n):
        changed = tokens.clone()
        changed[0, t] = (changed[0, t] + 1) % 13
        moved = (model(changed) - before).abs().amax((0, 2)) > 1e-12
        assert not moved[:t].any(), t
        assert moved[t], t


def test_the_far_past_reaches_the_output() -> None:
    model = tiny(4)
    tokens = torch.randint(13, (1, 101))
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 13
    assert (model(changed) - model(tokens))[0, -1].abs().max() > 1e-9


def test_agg_is_bidirectional_unless_told_and_keeps_the_right_half() -> None:
    for causal in (False, True):
        agg = tiny(4, agg_causal=causal).agg
        older, newer = torch.randn(2, 4, 16, dtype=torch.float64)
        other = newer.clone()
        other[-1] += torch.randn(16, dtype=torch.float64)
        moved = (agg(older, newer) - agg(older, other)).abs().amax(-1) > 1e-12
        assert bool(moved[0]) is not causal and moved[-1]


def test_training_takes_one_scan_and_one_call_of_inf() -> None:
    model = tiny(4)
    calls: list[str] = []
    model.agg.register_forward_pre_hook(lambda *_: calls.append("agg"))
    model.inf.register_forward_pre_hook(lambda *_: calls.append("inf"))
    model(torch.randint(13, (2, 64)))
    assert calls.count("inf") == 1 and calls[-1] == "inf" and calls.count("agg") <= 2 * 4 + 2


def test_every_parameter_gets_a_gradient() -> None:
    for compress in ("right_half", "projection"):
        model = tiny(4, compress=compress).train()
        tokens = torch.randint(13, (2, 40))
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        assert not without


def test_checkpointing_gives_the_same_gradients() -> None:
    gradients = []
    for checkpoint in (False, True):
        model = tiny(4, checkpoint=checkpoint, dropout=0.2).train()
        torch.manual_seed(7)
        tokens = torch.arange(40).remainder(13)[None]
        model.loss(tokens[:, :-1], tokens[:, 1:], slice_length=8).backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_logits_to_keep_are_the_last_ones() -> None:
    model = tiny(4)
    tokens = torch.randint(13, (2, 10))
    torch.testing.assert_close(model(tokens, logits_to_keep=3), model(tokens)[:, -3:], rtol=1e-12, atol=1e-12)
    assert model(tokens, logits_to_keep=99).shape == (2, 10, 13)


@pytest.mark.slow
def test_a_small_model_learns_to_copy_across_chunks() -> None:
    """Token t is token t-5, with chunks of 4: only the prefix can tell."""
    torch.manual_seed(0)
    model = sc.TransformerPSM(
        sc.TransformerPSMConfig(vocab_size=8, width=64, chunk_length=4, agg_layers=1, inf_layers=2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = torch.tensor(9.0)
    for _ in range(250):
        start = torch.randint(8, (32, 5))
        tokens = start.repeat(1, 4)
        loss = model.loss(tokens[:, :-1], tokens[:, 1:].where(torch.arange(1, 20) >= 5, -100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3, f"loss {loss:.2f}; guessing gives 2.08"


class MeanAgg(nn.Module):
    """A user's own Agg."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.older, self.newer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        return torch.tanh(self.older(older) + self.newer(newer))


class CumulativeInf(nn.Module):
    """A user's own Inf, causal, without a way to go on from a cache."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.out = nn.Linear(2 * width, out)

    def forward(self, prefix: Tensor, x: Tensor) -> Tensor:
        return self.out(torch.cat((prefix.mean(-2, keepdim=True).expand_as(x), x.cumsum(-2)), -1))


@pytest.mark.parametrize("c", [1, 3, 8])
def test_any_three_modules_make_a_model(c: int) -> None:
    model = sc.PrefixScannableModel(
        nn.Embedding(9, 6), MeanAgg(6), CumulativeInf(6, 4), nn.Parameter(torch.randn(c, 6)), chunk_length=c
    ).double()
    for n in (1, 7, 30):
        sc.verify_duality(model, torch.randint(9, (2, n))).raise_if_failed()
    states = [model.prefill(torch.randint(9, (1, n)), model.initial_state(1))[1] for n in (0, 2, 11)]
    alone = [state.fork() for state in states]
    batch = sc.join(states)
    for _ in range(9):
        token = torch.randint(9, (3,))
        together, batch = model.step(token, batch)
        for row, state in enumerate(alone):
            one, alone[row] = model.step(token[row : row + 1], state)
            torch.testing.assert_close(together[row], one[0], rtol=1e-10, atol=1e-10)


def test_elements_may_be_pairs_as_in_the_affine_theorem() -> None:
    """Thm. "affine layers are PSMs": chunk length 1, Enc gives (E, f), Agg composes, Inf reads the state."""

    class Gates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value = nn.Embedding(9, 5), nn.Embedding(9, 5)

        def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
            return self.gate(tokens).sigmoid(), self.value(tokens)

    class Compose(nn.Module):
        def forward(self, older: tuple[Tensor, Tensor], newer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return older[0] * newer[0], newer[0] * older[1] + newer[1]

    class Read(nn.Module):
        def forward(self, prefix: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> Tensor:
            return Compose()(prefix, x)[1]

    model = sc.PrefixScannableModel(Gates(), Compose(), Read(), (torch.ones(()), torch.zeros(())), 1).double()
    tokens = torch.randint(9, (2, 33))
    sc.verify_duality(model, tokens).raise_if_failed()
    gates, values = model.enc(tokens)
    state, states = torch.zeros(2, 5, dtype=torch.float64), []
    for t in range(33):
        state = gates[:, t] * state + values[:, t]
        states.append(state)
    torch.testing.assert_close(model(tokens), torch.stack(states, 1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.full((1, 5), 13)), "token 13 is outside the vocabulary of 13; is this the tokenizer"),
        (lambda m: m(torch.full((1, 5), -2)), "token -2 is outside the vocabulary of 13"),
        (
            lambda m: m(torch.zeros(5, dtype=torch.int64)),
            r"tokens have the shape \(5,\) .* expected integers of shape \(batch, length\)",
        ),
        (lambda m: m(torch.zeros(1, 5)), r"dtype torch.float32; expected integers"),
        (
            lambda m: m.step(torch.zeros(1, 1, dtype=torch.int64), m.initial_state(1)),
            r"expected integers of shape \(batch,\)",
        ),
        (
            lambda m: m.step(torch.zeros(2, dtype=torch.int64), m.initial_state(1)),
            "2 rows for a state of 1 streams",
        ),
        (lambda m: m.initial_state(0), "batch_size=0 must be a whole number of at least 1"),
    ],
)
@pytest.mark.usefixtures("shapes_unchecked")
def test_bad_tokens_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(tiny(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 10, "heads": 4}, "width=10 is not a multiple of heads=4"),
        ({"agg_heads": 3}, "width=256 is not a multiple of agg_heads=3"),
        ({"chunk_length": 0}, "chunk_length=0 must be a whole number of at least 1"),
        ({"inf_layers": 1.5}, "inf_layers=1.5 must be a whole number"),
        ({"dropout": 1.0}, r"dropout=1.0 must lie in \[0, 1\)"),
        ({"compress": "left"}, "compress='left' is neither"),
        ({"tie_weights": True, "out_size": 3}, "tie_weights needs one output for each token"),
    ],
)
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_bad_configuration_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sc.TransformerPSMConfig(vocab_size=10, **options)


def test_autocast_and_bfloat16_train() -> None:
    tokens = torch.randint(13, (2, 30))
    for dtype, autocast in ((torch.float32, True), (torch.bfloat16, False)):
        model = tiny(4).to(dtype).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        assert loss.isfinite() and all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_compiled_model_gives_the_same_outputs_and_gradients() -> None:
    model = tiny(4)
    tokens = torch.randint(13, (2, 21))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    plain, fast = model(tokens), compiled(tokens)
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)
    inputs = list(model.parameters())
    for a, b in zip(torch.autograd.grad(fast.sum(), inputs), torch.autograd.grad(plain.sum(), inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_checkpoint_switch_evaluates_agg_again_in_backward() -> None:
    calls = []
    for checkpoint in (False, True):
        model = tiny(4, checkpoint=checkpoint).train()
        count = [0]
        model.agg.register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        model(torch.randint(13, (1, 40))).sum().backward()
        calls.append(count[0])
    assert calls[1] == 2 * calls[0]


def test_a_tied_head_starts_with_logits_of_unit_scale() -> None:
    torch.manual_seed(0)
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=500, width=256, chunk_length=4, tie_weights=True))
    assert 0.7 < model(torch.randint(500, (2, 40))).std() < 1.4
    assert not any(name.startswith("head") for name in model.state_dict())
