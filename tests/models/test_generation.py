"""Generation: the tokens that the model means, one at a time."""

import itertools
from typing import Any

import pytest
import torch

import scannable as sc
from scannable.models.generation import choose


def tiny() -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=4, heads=2)).double().eval()


def test_greedy_tokens_are_those_of_the_parallel_model() -> None:
    model = tiny()
    prompt = torch.randint(13, (3, 9))
    tokens = torch.stack(list(sc.generate(model, prompt, max_new_tokens=25, temperature=0)), 1)
    whole = torch.cat((prompt, tokens), 1)
    assert torch.equal(model(whole)[:, 8:-1].argmax(-1), tokens)


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
        ({"temperature": -1}, "temperature=-1 must be 0"),
        ({"temperature": float("nan")}, "temperature=nan must be 0"),
        ({"top_k": 0}, "top_k=0 leaves nothing"),
        ({"top_p": 0.0}, r"top_p=0.0 must lie in \(0, 1\]"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1 must not be negative"),
        ({"prompt": []}, "a length above 0"),
    ],
)
def test_bad_calls_fail_at_once(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"prompt": [1]} | options
    with pytest.raises(ValueError, match=message):
        sc.generate(tiny(), **arguments)


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


def test_a_long_prompt_never_holds_all_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    monkeypatch.setattr("scannable.models.generation.PROMPT_PIECE", 7)
    sizes: list[int] = []
    model.head.register_forward_hook(lambda _, __, output: sizes.append(output.shape[1]))
    prompt = torch.randint(13, (1, 30))
    (token,) = sc.generate(model, prompt, max_new_tokens=1, temperature=0)
    assert max(sizes) == 7 and int(token) == int(model(prompt)[0, -1].argmax())
