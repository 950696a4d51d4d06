"""Generation: the tokens that the model means, one at a time."""

import itertools
from typing import Any

import pytest
import torch

import scannable as sc
from scannable.models.generation import choose, probabilities


def tiny() -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=4, heads=2)).double().eval()


def test_greedy_tokens_are_those_of_the_parallel_model() -> None:
    model = tiny()
    prompt = torch.randint(13, (3, 9))
    tokens = torch.stack(list(sc.generate(model, prompt, max_new_tokens=25, temperature=0)), 1)
    whole = torch.cat((prompt, tokens), 1)
    assert torch.equal(model(whole)[:, 8:-1].argmax(-1), tokens)


class Plain:
    """The protocol and nothing else, around a model."""

    def __init__(self, inner: sc.TransformerPSM) -> None:
        self.inner = inner

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens)

    def initial_state(self, batch_size: int) -> Any:
        return self.inner.initial_state(batch_size)

    def prefill(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return self.inner.prefill(tokens, state)

    def step(self, token: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        return self.inner.step(token, state)


def test_a_model_that_knows_no_more_than_the_protocol_goes_on_from_the_end_of_the_prompt() -> None:
    prompt = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
    found, expected = (
        torch.stack(list(sc.generate(model, prompt, max_new_tokens=6, temperature=0)), 1)
        for model in (Plain(tiny()), tiny())
    )
    assert torch.equal(found, expected)


def test_a_seed_repeats_and_leaves_the_global_generator_alone() -> None:
    model = tiny()
    runs = []
    for seed in (1, 1, 2):
        before = torch.random.get_rng_state()
        runs.append([int(t) for t in sc.generate(model, [1, 2, 3], max_new_tokens=30, seed=seed)])
        assert torch.equal(before, torch.random.get_rng_state())
    assert runs[0] == runs[1] != runs[2]


def test_rows_stop_at_a_stop_token_and_the_last_ends_it() -> None:
    model = tiny()
    prompt = torch.randint(13, (4, 3))
    tokens = torch.stack(list(sc.generate(model, prompt, max_new_tokens=500, seed=0, stop_tokens=[0, 5])), 1)
    assert tokens.shape[1] < 500
    for row in tokens.tolist():
        first = next(i for i, token in enumerate(row) if token in (0, 5))
        assert len(set(row[first:])) == 1
    assert any(row[-2] not in (0, 5) for row in tokens.tolist())


def test_it_is_an_iterator_without_an_end_of_its_own() -> None:
    assert len(list(itertools.islice(sc.generate(tiny(), [1], temperature=0), 7))) == 7
    assert list(sc.generate(tiny(), [1], max_new_tokens=0)) == []


def test_top_k_and_top_p_leave_out_the_tail() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]).repeat(4000, 1))
    generator = torch.Generator().manual_seed(0)
    choices: list[dict[str, Any]] = [{}, {"top_k": 2}, {"top_p": 0.8}, {"top_p": 0.81}, {"temperature": 0.5}]
    shares = [torch.bincount(choose(logits, generator=generator, **options), minlength=4) / 4000 for options in choices]
    expected = [
        [0.5, 0.3, 0.15, 0.05],
        [0.625, 0.375, 0, 0],
        [0.625, 0.375, 0, 0],
        [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0],
        [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365],
    ]
    # Four standard deviations of a share among 4,000.
    torch.testing.assert_close(torch.stack(shares), torch.tensor(expected), rtol=0, atol=0.032)
    assert torch.stack(shares)[torch.tensor(expected) == 0].sum() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, r"temperature=-1 must be 0 \(the likeliest token\) or above, and finite"),
        ({"temperature": float("nan")}, "temperature=nan must be 0"),
        ({"temperature": float("inf")}, "temperature=inf must be 0"),
        ({"temperature": "1"}, "temperature='1' must be 0"),
        ({"top_k": 0}, "top_k=0 leaves nothing"),
        ({"top_k": 1.5}, "top_k=1.5 leaves nothing to choose from; use 1 or more, or None for all"),
        ({"top_p": 0.0}, r"top_p=0.0 must lie in \(0, 1\]; None for all tokens"),
        ({"top_p": 1.01}, "top_p=1.01 must lie in"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1 must not be negative"),
        ({"max_new_tokens": 2.0}, "max_new_tokens=2.0 must not be negative, and a whole number or None"),
        ({"seed": -1}, r"seed=-1 must be a whole number from 0 to 2\*\*63 - 1, or None"),
        ({"seed": True}, "seed=True must be a whole number"),
        ({"seed": 1.0}, "seed=1.0 must be a whole number"),
        ({"seed": 2**63}, "seed=9223372036854775808 must be a whole number"),
        ({"stop_tokens": 3}, "stop_tokens=3 must be whole numbers in a list or tuple, even a single one"),
        ({"stop_tokens": "ab"}, "stop_tokens='ab' must be whole numbers"),
        ({"prompt": []}, r"the prompt has the shape \(1, 0\); expected \(batch, length\) with a length above 0"),
        ({"prompt": torch.zeros(0, 3, dtype=torch.int64)}, r"the prompt has the shape \(0, 3\)"),
        ({"prompt": 3}, r"the prompt has the shape \(\)"),
        ({"prompt": [[1, 2], [3]]}, "the prompt is no tensor of tokens: .*; rows of a batch have one length"),
        ({"prompt": "ab"}, "the prompt is no tensor of tokens"),
        ({"prompt": [1.5]}, r"dtype torch.float32; expected integers of shape \(batch, length\)"),
        ({"prompt": [True]}, r"dtype torch.bool; expected integers"),
        ({"prompt": [13]}, "token 13 is outside the vocabulary of 13"),
    ],
)
def test_bad_calls_fail_at_once_and_not_at_the_first_token(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"prompt": [1]} | options
    with pytest.raises(ValueError, match=message):
        sc.generate(tiny(), **arguments)


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(TypeError, match="needs a model with initial_state, prefill and step, not Linear"):
        sc.generate(torch.nn.Linear(1, 1), [1])  # pyright: ignore


INTEGERS = [getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_prompt_may_be_of_any_integer_dtype_or_lists(dtype: torch.dtype) -> None:
    prompt = [[1, 2, 12], [4, 5, 6]]
    expected = torch.stack(list(sc.generate(tiny(), torch.tensor(prompt), max_new_tokens=4, temperature=0)))
    for same in (torch.tensor(prompt).to(dtype), prompt, tuple(map(tuple, prompt))):
        found = torch.stack(list(sc.generate(tiny(), same, max_new_tokens=4, temperature=0)))
        assert torch.equal(found, expected) and found.dtype == torch.int64


def test_the_prompt_goes_to_where_the_model_is() -> None:
    class Elsewhere(torch.nn.Module):
        """A model of one's own, on a device that every machine has."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1, device="meta"))

        def initial_state(self, batch_size: int) -> None: ...

        def prefill(self, tokens: torch.Tensor, state: None) -> Any:
            raise LookupError(tokens.device)

        def step(self, token: torch.Tensor, state: None) -> Any: ...

    with pytest.raises(LookupError, match="meta"):
        next(sc.generate(Elsewhere(), [1, 2]))


@pytest.mark.parametrize("temperature", [1e-45, 5e-324, 1e-30])
def test_the_smallest_temperatures_take_the_likeliest_token(temperature: float) -> None:
    logits = torch.tensor([[1.0, 2.0, float("-inf"), 1.5]])
    assert probabilities(logits, temperature=temperature).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("temperature", [1e38, 1e300])
def test_the_largest_temperatures_choose_evenly_among_what_is_possible(temperature: float) -> None:
    logits = torch.tensor([[1.0, 2.0, float("-inf"), -1e4]])
    third = torch.tensor([[1 / 3, 1 / 3, 0, 1 / 3]])
    torch.testing.assert_close(probabilities(logits, temperature=temperature), third)


def test_an_impossible_token_never_comes() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 0.0]]).expand(2000, -1)
    assert set(choose(logits).tolist()) == {0, 2}
    assert probabilities(logits[:1], top_k=3, top_p=0.99).tolist() == [[0.5, 0, 0.5]]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1e-9, [1, 0, 0, 0]),
        (0.49, [1, 0, 0, 0]),
        (0.5, [1, 0, 0, 0]),  # the first alone reaches it
        (0.51, [2 / 3, 1 / 3, 0, 0]),
        (0.75, [2 / 3, 1 / 3, 0, 0]),
        (0.76, [8 / 15, 4 / 15, 3 / 15, 0]),
        (0.9375, [8 / 15, 4 / 15, 3 / 15, 0]),
        (0.94, [0.5, 0.25, 0.1875, 0.0625]),
        (1.0, [0.5, 0.25, 0.1875, 0.0625]),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, expected: list[float]) -> None:
    place = torch.tensor([2, 0, 3, 1])  # the likeliest need not come first
    logits = torch.tensor([[0.5, 0.25, 0.1875, 0.0625]]).log()[:, place.argsort()]
    found = probabilities(logits, top_p=top_p)[:, place]
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float32), rtol=1e-6, atol=0)


def test_a_model_in_training_mode_generates_as_in_evaluation_and_stays_in_training() -> None:
    torch.manual_seed(0)
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=4, heads=2, dropout=0.5))
    runs = [[int(t) for t in sc.generate(model, [1, 2], max_new_tokens=9, temperature=0)] for _ in range(2)]
    assert model.training and runs[0] == runs[1]


def test_ties_do_not_enlarge_top_k_and_small_temperatures_do_not_overflow() -> None:
    equal = torch.zeros(200, 50)
    assert len(choose(equal, top_k=1).unique()) == 1
    assert choose(torch.tensor([[1.0, 2.0, 1.5]]), temperature=1e-40).tolist() == [1]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_named(value: float, temperature: float) -> None:
    with pytest.raises(ValueError, match="there is nothing to choose from"):
        choose(torch.full((1, 3), value), temperature=temperature)


def test_a_long_prompt_makes_no_logits_but_the_last_of_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    monkeypatch.setattr("scannable.models.generation.PROMPT_PIECE", 7)
    sizes: list[int] = []
    model.head.register_forward_hook(lambda _, __, output: sizes.append(output.shape[1]))
    prompt = torch.randint(13, (1, 30))
    (token,) = sc.generate(model, prompt, max_new_tokens=1, temperature=0)
    assert sizes == [1] * 5 and int(token) == int(model(prompt)[0, -1].argmax())
