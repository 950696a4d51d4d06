"""A stream's state: forked, guarded, of exactly the size the formula says, on disk and back."""

import resource

import pytest
import torch

import scannable as sc


def tiny(c: int = 4) -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=c, heads=2)).eval()


def test_a_fork_shares_the_roots_and_copies_the_chunk_in_progress() -> None:
    model = tiny()
    tokens = torch.randint(13, (2, 30))
    _, state = model.prefill(tokens, model.initial_state(2))
    branch = state.fork()
    assert branch.scans is state.scans
    assert branch.buffers.chunk.data_ptr() != state.buffers.chunk.data_ptr()
    with_one, with_two = state, branch
    left = right = torch.empty(0)
    for _ in range(11):
        left, with_one = model.step(torch.tensor([1, 1]), with_one)
        right, with_two = model.step(torch.tensor([2, 2]), with_two)
    for outputs, follow in ((left, 1), (right, 2)):
        whole = torch.cat((tokens, torch.full((2, 11), follow)), 1)
        torch.testing.assert_close(outputs, model(whole)[:, -1], rtol=1e-4, atol=1e-4)


def test_a_state_that_was_left_behind_is_refused() -> None:
    model = tiny()
    state = model.initial_state(1)
    _, later = model.step(torch.tensor([3]), state)
    with pytest.raises(
        ValueError, match=r"at position 0, but its buffers have gone on to position 1; .* fork\(\) before you branch"
    ):
        model.step(torch.tensor([4]), state)
    with pytest.raises(ValueError, match="gone on"):
        state.fork()
    model.step(torch.tensor([4]), later)


@pytest.mark.parametrize("literal", [False, True])
def test_the_state_holds_exactly_what_the_formula_says(literal: bool) -> None:
    config = sc.TransformerPSMConfig(vocab_size=5, width=8, chunk_length=2, heads=1, literal_identity=literal)
    model = sc.TransformerPSM(config)
    state = model.initial_state(3)
    for t in range(70):
        chunks = t // 2
        elements = 2 * chunks.bit_count() - (1 if chunks and not literal else 0)
        by_hand = 3 * (elements + 1) * 2 * 8 * 4 + 2 * 2 * 3 * 4 * 8 * 4
        assert state.nbytes == model.state_nbytes(t, 3) == by_hand, t
        _, state = model.step(torch.zeros(3, dtype=torch.int64), state)


def test_a_million_tokens_hold_what_the_formula_says_and_the_process_does_not_grow() -> None:
    config = sc.TransformerPSMConfig(vocab_size=5, width=4, chunk_length=64, heads=1, agg_layers=1, inf_layers=1)
    model = sc.TransformerPSM(config).eval()
    state, n = model.initial_state(1), 2**20
    tokens = torch.randint(5, (1, 2**16))
    peaks = []
    for _ in range(n // tokens.shape[1]):
        _, state = model.prefill(tokens, state)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert state.position == n and state.nbytes == model.state_nbytes(n) == model.state_nbytes(64)
    _, state = model.prefill(tokens[:, : 2**16 - 1], state)
    roots = (n + 2**16 - 1) // 64
    assert state.nbytes == model.state_nbytes(n + 2**16 - 1) and len(state.scans[0].roots) == roots.bit_count()
    # Kilobytes; the first pieces warm up allocators.
    assert peaks[-1] - peaks[3] < 8 * 1024


def test_a_saved_stream_goes_on_bit_for_bit(tmp_path) -> None:
    model = tiny()
    for n in (0, 3, 4, 30):
        tokens = torch.randint(13, (2, n + 20))
        _, state = model.prefill(tokens[:, :n], model.initial_state(2))
        sc.save_state(state, tmp_path / "stream")
        loaded = sc.load_state(tmp_path / "stream")
        assert (loaded.position, loaded.nbytes) == (state.position, state.nbytes)
        for t in range(n, n + 20):
            a, state = model.step(tokens[:, t], state)
            b, loaded = model.step(tokens[:, t], loaded)
            assert torch.equal(a, b)


def test_a_bad_token_changes_nothing() -> None:
    model = tiny()
    tokens = torch.randint(13, (1, 30))
    _, state = model.prefill(tokens[:, :6], model.initial_state(1))
    bad = tokens[:, 6:].clone()
    bad[0, -1] = 99
    with pytest.raises(ValueError, match="token 99 is outside the vocabulary"):
        model.prefill(bad, state)
    outputs, _ = model.prefill(tokens[:, 6:], state)
    torch.testing.assert_close(outputs, model(tokens)[:, 6:], rtol=1e-4, atol=1e-4)


def test_an_interrupted_step_cannot_be_taken_for_a_whole_one() -> None:
    model = tiny()
    _, state = model.prefill(torch.randint(13, (1, 7)), model.initial_state(1))
    safe = state.fork()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.agg.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.step(torch.tensor([1]), state)
    hook.remove()
    with pytest.raises(ValueError, match="was interrupted, and left it half written; go back to a fork"):
        model.step(torch.tensor([1]), state)
    model.step(torch.tensor([1]), safe)


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_state_of_another_model_is_refused() -> None:
    model = tiny(4)
    with pytest.raises(
        ValueError,
        match=r"chunks of the shape \[\(1, 7, 16\)\], expected \[\(1, 4, 16\)\]; another model or batch made it",
    ):
        model.step(torch.tensor([1]), tiny(7).initial_state(1))
    other = sc.LM(sc.LMConfig(13, ("gla",), width=16))
    with pytest.raises(TypeError, match=r"a stream of TransformerPSM goes on from a PSMState, .* not from LMState"):
        model.prefill(torch.zeros(1, 3, dtype=torch.int64), other.initial_state(1))  # pyright: ignore


@pytest.mark.usefixtures("shapes_unchecked")
def test_a_refused_call_leaves_the_state_to_its_model() -> None:
    model = tiny(4)
    other = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=32, chunk_length=4, heads=2))
    _, state = model.prefill(torch.randint(13, (1, 6)), model.initial_state(1))
    with pytest.raises(ValueError, match="another model or batch made it: start from"):
        other.step(torch.tensor([1]), state)
    outputs, _ = model.step(torch.tensor([1], dtype=torch.uint8), state)
    assert outputs.isfinite().all()


@pytest.mark.slow
def test_a_long_stream_of_single_steps_does_not_grow() -> None:
    config = sc.TransformerPSMConfig(vocab_size=5, width=4, chunk_length=2, heads=1, agg_layers=1, inf_layers=1)
    model = sc.TransformerPSM(config).eval()
    state, token, peaks = model.initial_state(1), torch.tensor([1]), []
    for t in range(3000):
        _, state = model.step(token, state)
        if t % 1000 == 999:
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert state.nbytes == model.state_nbytes(3000) and peaks[-1] - peaks[0] < 2 * 1024
