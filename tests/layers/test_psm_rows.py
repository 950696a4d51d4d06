"""Streams in one batch: each row as if it were alone, whoever joins or leaves."""

import pytest
import torch
from torch import Tensor

import scannable as sc


def tiny(c: int) -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=13, width=16, chunk_length=c, heads=2)).double().eval()


class Alone:
    """One stream run by itself, and all its tokens."""

    def __init__(self, model: sc.TransformerPSM, n: int) -> None:
        self.model = model
        self.tokens = torch.randint(13, (1, n))

    def state(self) -> sc.PSMState:
        return self.model.prefill(self.tokens, self.model.initial_state(1))[1]

    def next(self, token: Tensor) -> Tensor:
        self.tokens = torch.cat((self.tokens, token.view(1, 1)), 1)
        return self.model(self.tokens)[0, -1]


@pytest.mark.parametrize("c", [1, 2, 7])
def test_rows_join_leave_and_change_places_and_each_equals_its_row_alone(c: int) -> None:
    model = tiny(c)
    streams = [Alone(model, n) for n in (0, 1, 6, 7, 20)]
    batch = sc.join([stream.state() for stream in streams])
    generator = torch.Generator().manual_seed(c)

    def advance(steps: int) -> None:
        nonlocal batch
        for _ in range(steps):
            tokens = torch.randint(13, (len(streams),), generator=generator)
            outputs, batch = model.step(tokens, batch)
            for row, stream in enumerate(streams):
                torch.testing.assert_close(outputs[row], stream.next(tokens[row]), rtol=1e-10, atol=1e-10)
            assert batch.positions == tuple(stream.tokens.shape[1] for stream in streams)

    advance(9)
    order = [3, 0, 4]
    batch, streams = batch.select(order), [streams[row] for row in order]
    advance(5)
    new = Alone(model, 3)
    batch, streams = sc.join([batch, new.state()]), [*streams, new]
    advance(8)
    alone = batch.row(1)
    assert isinstance(alone, sc.PSMState) and alone.position == streams[1].tokens.shape[1]
    outputs, _ = model.step(torch.tensor([5]), alone)
    torch.testing.assert_close(outputs[0], streams[1].next(torch.tensor(5)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lengths", [(3, 1), (0, 2), (6, 4)])
def test_rows_that_are_all_shorter_than_the_batch_leave_its_shape(lengths: tuple[int, int]) -> None:
    model = tiny(4)
    tokens = torch.randint(13, (2, 9))
    outputs, state = model.prefill(tokens, model.initial_state(2), lengths=lengths)
    assert outputs.shape == model(tokens).shape and state.positions == lengths
    for row, length in enumerate(lengths):
        torch.testing.assert_close(outputs[row, :length], model(tokens[row, None])[0, :length], rtol=1e-10, atol=1e-10)


def test_bytes_are_those_of_the_rows_and_a_batch_can_be_saved(tmp_path) -> None:
    model = tiny(4)
    states = [Alone(model, n).state() for n in (3, 30, 9)]
    batch = sc.join(states)
    assert batch.nbytes == sum(state.nbytes for state in states)
    twice = batch.select([1, 1])
    assert twice.nbytes < 2 * batch.select([1]).nbytes  # the roots are shared
    sc.save_state(batch, tmp_path / "batch")
    loaded = sc.load_state(tmp_path / "batch")
    token = torch.tensor([1, 2, 3])
    branch = batch.fork()
    first, _ = model.step(token, batch)
    assert torch.equal(first, model.step(token, loaded)[0]) and torch.equal(first, model.step(token, branch)[0])


def test_joining_leaves_the_states_usable() -> None:
    model = tiny(4)
    stream = Alone(model, 6)
    state = stream.state()
    batch = sc.join([state, state])
    model.step(torch.tensor([1, 2]), batch)
    outputs, _ = model.step(torch.tensor([3]), state)
    torch.testing.assert_close(outputs[0], stream.next(torch.tensor(3)), rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("shapes_unchecked")
def test_bad_calls_are_named() -> None:
    model = tiny(4)
    batch = sc.join([model.initial_state(2)])
    with pytest.raises(ValueError, match="3 rows for a state of 2 streams"):
        model.step(torch.zeros(3, dtype=torch.int64), batch)
    with pytest.raises(IndexError, match="row 2 of a batch of 2 streams"):
        batch.select([0, 2])
    with pytest.raises(ValueError, match="join needs at least one state"):
        sc.join([])
    model.step(torch.zeros(2, dtype=torch.int64), batch)
    with pytest.raises(ValueError, match="gone on to"):
        batch.fork()


@pytest.mark.parametrize("c", [1, 2])
def test_a_batch_wider_than_a_chunk_can_be_taken_apart(c: int) -> None:
    model = tiny(c)
    tokens = torch.randint(13, (5, 9))
    for n in (0, 8):
        state = model.prefill(tokens[:, :n], model.initial_state(5))[1] if n else model.initial_state(5)
        batch = sc.join([state])
        outputs, batch = model.step(tokens[:, n], batch)
        torch.testing.assert_close(outputs, model(tokens[:, : n + 1])[:, -1], rtol=1e-10, atol=1e-10)
        row, _ = model.step(tokens[3:4, 0], batch.row(3))
        whole = torch.cat((tokens[3:4, : n + 1], tokens[3:4, :1]), 1)
        torch.testing.assert_close(row, model(whole)[:, -1], rtol=1e-10, atol=1e-10)


def test_rows_advance_under_autocast() -> None:
    model = tiny(4).float()
    batch = sc.join([model.initial_state(2), Alone(model, 5).state()])
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(6):
            outputs, batch = model.step(torch.tensor([1, 2, 3]), batch)
            assert outputs.isfinite().all()


def test_an_interrupted_step_of_rows_is_refused_and_so_is_another_models_batch() -> None:
    model = tiny(4)
    with pytest.raises(ValueError, match="another model or batch made it"):
        model.step(torch.tensor([1]), sc.join([tiny(7).initial_state(1)]))
    batch = sc.join([Alone(model, 3).state()])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.inf.transformer.register_forward_pre_hook(interrupt)  # pyright: ignore
    with pytest.raises(KeyboardInterrupt):
        model.step(torch.tensor([1]), batch)
    hook.remove()
    with pytest.raises(ValueError, match="half written"):
        model.step(torch.tensor([1]), batch)


def test_no_streams_advance_to_none() -> None:
    model = tiny(4)
    outputs, state = model.step(torch.zeros(0, dtype=torch.int64), model.initial_state(1).select([]))
    assert outputs.shape == (0, 13) and state.batch_size == 0
