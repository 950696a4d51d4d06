"""Every row is one function, however it is run: the same outputs and gradients by chunks, by scan and by steps."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from scannable import zoo
from scannable.layers.affine.recurrence import Mode
from scannable.layers.layer import SequenceLayer
from scannable.layers.state import State, TensorState

LENGTHS = [1, 7, 63, 64, 65, 200]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def layer_of(name: str, width: int = 16, heads: int = 2) -> SequenceLayer:
    """A layer away from its start, where gates are alike and biases are 0."""
    layer = zoo.LAYERS[name](width, heads)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def leaves(state: State) -> list[Tensor]:
    return list(state.tensors())


def memory(state: State) -> list[Tensor]:
    """What the recurrence itself remembers, without the tokens of a convolution, unless there is nothing else."""
    return [state["s"]] if isinstance(state, TensorState) and "s" in state.parts else leaves(state)


def run(layer: SequenceLayer, x: Tensor, mode: Mode, pieces: list[int]) -> tuple[Tensor, State]:
    state, outputs = layer.initial_state(x.shape[0]), list[Tensor]()
    for piece in x.split(pieces, 1):
        y, state = layer.extend(piece, state, mode=mode)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    assert float((found - expected).abs().max() if found.numel() else 0) <= tolerance * scale


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", zoo.LAYERS)
def test_chunks_scan_and_steps_are_one_function(name: str, n: int) -> None:
    layer = layer_of(name)
    x = torch.randn(1 if n % 2 else 3, n, 16, requires_grad=True)
    weight = torch.randn(x.shape)
    results = []
    for mode in ("step", "scan", "chunkwise"):
        y, state = run(layer, x, mode, [n])
        grads = torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()], materialize_grads=True)
        results.append([y, *leaves(state), *grads])
    for other in results[1:]:
        for found, expected in zip(other, results[0], strict=True):
            assert_close(found, expected)


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_a_layer_goes_on_from_any_state_and_gradients_go_through_it(name: str) -> None:
    layer = layer_of(name)
    x = torch.randn(2, 150, 16, requires_grad=True)
    whole = layer(x)
    weight = torch.randn(whole.shape)
    expected = torch.autograd.grad((whole * weight).sum(), x)[0]
    for pieces in ([1, 64, 7, 78], [65, 85], [63, 1, 86]):
        y, _ = run(layer, x, "chunkwise", pieces)
        assert_close(y, whole)
        assert_close(torch.autograd.grad((y * weight).sum(), x)[0], expected)


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_right_padding_is_ignored(name: str) -> None:
    layer = layer_of(name)
    x, lengths = torch.randn(4, 90, 16), torch.tensor([90, 0, 65, 1])
    start = layer.extend(torch.randn(4, 5, 16), layer.initial_state(4))[1]
    y, state = layer.extend(x, start, lengths=lengths)
    noisy = x.where((torch.arange(90) < lengths[:, None])[..., None], 1e3 * torch.randn(x.shape))
    y_noisy, state_noisy = layer.extend(noisy, start, lengths=lengths)
    for part, part_noisy in zip(leaves(state), leaves(state_noisy), strict=True):
        assert torch.equal(part, part_noisy)
    for i, n in enumerate(lengths.tolist()):
        y_alone, alone = layer.extend(x[i : i + 1, :n], start.row(i))
        assert_close(y[i : i + 1, :n], y_alone, 1e-12)
        assert torch.equal(y[i, :n], y_noisy[i, :n])
        for found, expected in zip(leaves(state.row(i)), leaves(alone), strict=True):
            assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_the_state_of_an_affine_row_does_not_grow(name: str) -> None:
    layer = layer_of(name)
    for n in (1, 64, 127, 200):
        _, state = layer.extend(torch.randn(2, n, 16), layer.initial_state(2))
        assert state.nbytes == layer.state_nbytes(n, 2)
        if name not in ("log_linear", "attention", "psm"):
            assert state.nbytes == layer.state_nbytes(0, 2)


def test_the_state_of_log_linear_attention_grows_with_the_logarithm() -> None:
    layer = zoo.LogLinearAttention(16, 2, chunk=4)
    _, state = layer.extend(torch.randn(1, 4 * 255, 16), layer.initial_state(1))
    memory = 2 * (8 * 8 + 1) * 8
    assert state.nbytes == 8 * memory  # eight roots
    assert layer.state_nbytes(4 * 255) == 8 * memory


@pytest.mark.parametrize("chunk", [1, 2, 16, 64])
def test_the_chunk_of_log_linear_attention_changes_no_number(chunk: int) -> None:
    truth = layer_of("log_linear")
    other = zoo.LogLinearAttention(16, 2, chunk=chunk)
    other.load_state_dict(truth.state_dict())
    x = torch.randn(2, 150, 16)
    assert_close(other(x), truth(x))
    assert_close(run(other, x, "chunkwise", [5, 70, 1, 74])[0], truth(x))


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_bfloat16_layers_keep_a_float32_state(name: str) -> None:
    layer = layer_of(name).to(torch.bfloat16)
    x = torch.randn(2, 70, 16, dtype=torch.bfloat16)
    y, state = layer.extend(x, layer.initial_state(2))
    assert y.dtype == torch.bfloat16
    if name in ("lstm", "attention", "convolved_mlp", "psm"):
        return  # they carry outputs and vectors of their own, and add nothing up
    assert {leaf.dtype for leaf in memory(state)} <= {torch.float32, torch.complex64}
    truth = layer.double()(x.double()).detach()
    error = (y.detach().double() - truth).pow(2).mean().sqrt() / truth.pow(2).mean().sqrt()
    assert float(error) < 0.05  # eight bits in every projection


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_under_autocast_the_state_stays_float32(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    layer = zoo.LAYERS[name](16, 2)
    x = torch.randn(2, 70, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer.extend(x, layer.initial_state(2))
    if name != "lstm":
        assert {leaf.dtype for leaf in memory(state)} <= {torch.float32, torch.complex64}
    truth = layer(x).detach()
    error = (y.detach().float() - truth).pow(2).mean().sqrt() / truth.pow(2).mean().sqrt()
    assert float(error) < 0.05


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_a_stream_goes_on_under_autocast_and_after_it(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    layer = zoo.LAYERS[name](16, 2)
    x = torch.randn(2, 12, 16)
    state, parts = layer.initial_state(2), list[Tensor]()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            for piece in x[:, :9].split([5, 1, 3], 1):
                y, state = layer.extend(piece, state)
                parts.append(y.float())
        y, state = layer.extend(x[:, 9:], state)
        truth = layer(x)
    found = torch.cat([*parts, y], 1)
    assert state.positions == (12, 12)
    assert float((found - truth).pow(2).mean().sqrt() / truth.pow(2).mean().sqrt()) < 0.05


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_what_a_stream_carries_is_its_own(name: str) -> None:
    layer = layer_of(name)
    x = torch.randn(2, 9, 16)
    _, state = layer.extend(x, layer.initial_state(2))
    before = [leaf.detach().clone() for leaf in leaves(state)]
    x.zero_()
    assert all(torch.equal(leaf, old) for leaf, old in zip(leaves(state), before, strict=True))


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_nothing_positions_give_nothing(name: str) -> None:
    layer = layer_of(name)
    state = layer.initial_state(2)
    y, after = layer.extend(torch.empty(2, 0, 16), state)
    assert y.shape == (2, 0, 16)
    assert after is state


@pytest.mark.parametrize("name", zoo.LAYERS)
@pytest.mark.usefixtures("shapes_unchecked")
def test_wrong_input_gets_an_answer(name: str) -> None:
    layer = layer_of(name)
    state = layer.initial_state(2)
    with pytest.raises(ValueError, match=r"x has the shape \(2, 3, 15\); expected \(batch, length, 16\)"):
        layer.extend(torch.randn(2, 3, 15), state)
    with pytest.raises(ValueError, match=r"mode='fast' is none of chunkwise, scan, step"):
        layer(torch.randn(2, 3, 16), mode="fast")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"lengths \[1, 4\] must lie between 0 and 3"):
        layer.extend(torch.randn(2, 3, 16), state, lengths=torch.tensor([1, 4]))
    with pytest.raises(ValueError, match=r"expected one whole number for each of the 2 rows"):
        layer.extend(torch.randn(2, 3, 16), state, lengths=torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"width=0 must be a whole number of at least 1"):
        zoo.LAYERS[name](0)


def test_heads_must_divide_the_width_where_there_are_heads() -> None:
    for row in (zoo.GLA, zoo.DeltaNet, zoo.RetNet, zoo.MLSTM, zoo.GatedRFA, zoo.RWKV7, zoo.LogLinearAttention):
        with pytest.raises(ValueError, match="width=30 is not a multiple of heads=4"):
            row(width=30, heads=4)
    with pytest.raises(ValueError, match="rotation needs even ones"):
        zoo.RetNet(width=6, heads=2)
    with pytest.raises(ValueError, match="must be a multiple of heads=3"):
        zoo.Mamba2(width=16, heads=3)


def test_heads_of_given_sizes_need_not_divide_the_width() -> None:
    for row in (zoo.GLA, zoo.DeltaNet, zoo.GatedDeltaNet):
        layer = row(width=30, heads=4, key_size=6, value_size=10)
        assert layer(torch.randn(1, 5, 30)).shape == (1, 5, 30)
        assert layer.initial_state(1).parts["s"].shape == (1, 4, 6, 10)
        with pytest.raises(ValueError, match="width=30 is not a multiple of heads=4"):
            row(width=30, heads=4, key_size=6)
        with pytest.raises(ValueError, match="key_size=0 must be a whole number of at least 1"):
            row(width=32, heads=4, key_size=0)
        with pytest.raises(ValueError, match=r"eps=0\.0 must be above 0"):
            row(width=32, heads=4, eps=0.0)
    with pytest.raises(ValueError, match="convolution=0 must be a whole number of at least 1"):
        zoo.DeltaNet(width=32, heads=4, convolution=0)


def test_an_mlstm_with_huge_gates_neither_overflows_nor_forgets() -> None:
    torch.set_default_dtype(torch.float32)
    layer = zoo.MLSTM(16, 2)
    x = torch.randn(1, 4096, 16)
    with torch.no_grad():
        layer.gates.weight.mul_(1e3)  # gates jump between -15 and 15, the caps
    x.requires_grad_(True)
    y = layer(x)
    y.square().sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all()) and bool(y.isfinite().all())
    truth = layer.double()(x.detach().double()).detach()
    assert_close(y.detach().double(), truth, 1e-4)


def held_storage(state: State) -> int:
    """Bytes that the state keeps alive, views or not."""
    storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage().nbytes() for leaf in leaves(state)}
    return sum(storages.values())


@pytest.mark.parametrize("mode", ["chunkwise", "scan"])
@pytest.mark.parametrize("name", zoo.LAYERS)
def test_a_state_keeps_nothing_alive_but_itself(name: str, mode: Mode) -> None:
    layer = layer_of(name)
    with torch.no_grad():
        for n in (300, 320):  # not a whole number of chunks, and one
            _, state = layer.extend(torch.randn(2, n, 16), layer.initial_state(2), mode=mode)
            assert held_storage(state) <= layer.state_nbytes(n, 2)


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_padding_may_hold_what_is_not_a_number(name: str) -> None:
    layer = layer_of(name)
    x, lengths = torch.randn(2, 70, 16), [70, 33]
    spoiled = x.clone()
    spoiled[1, 33:] = torch.nan
    y, state = layer.extend(x, layer.initial_state(2), lengths=torch.tensor(lengths))
    y_spoiled, state_spoiled = layer.extend(spoiled, layer.initial_state(2), lengths=torch.tensor(lengths))
    assert torch.equal(y[1, :33], y_spoiled[1, :33]) and torch.equal(y[0], y_spoiled[0])
    for part, part_spoiled in zip(leaves(state), leaves(state_spoiled), strict=True):
        assert torch.equal(part, part_spoiled)


@pytest.mark.parametrize("name", zoo.LAYERS)
def test_no_rows_give_no_rows(name: str) -> None:
    layer = layer_of(name)
    assert layer(torch.empty(0, 5, 16)).shape == (0, 5, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in zoo.LAYERS if name not in ("log_linear", "lstm", "attention", "psm")]
)
def test_gradients_go_through_the_state_alone(name: str) -> None:
    layer = layer_of(name, 4, 2)
    x, start = torch.randn(1, 5, 4), layer.extend(torch.randn(1, 3, 4), layer.initial_state(1))[1]
    assert isinstance(start, TensorState)
    held, at = start.parts, start.positions
    names = [part for part in held if held[part].is_floating_point() or held[part].is_complex()]
    fixed = {part: value for part, value in held.items() if part not in names}

    def function(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        y, state = layer.extend(x, TensorState(at, {**fixed, **dict(zip(names, parts, strict=True))}))
        assert isinstance(state, TensorState)
        return y, *(state[part] for part in names)

    inputs = [value.detach().requires_grad_(True) for value in (x, *(held[part] for part in names))]
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear_attention", "gated_deltanet", "deltaproduct", "gla", "mamba2"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("shapes_unchecked")
def test_a_compiled_layer_trains_alike(name: str) -> None:
    torch.compiler.reset()
    layer, x = layer_of(name), torch.randn(2, 20, 16, requires_grad=True)
    y = layer(x)
    weight = torch.randn(y.shape)
    expected = torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])
    found = torch.compile(layer, backend="aot_eager")(x)
    grads = torch.autograd.grad((found * weight).sum(), [x, *layer.parameters()])
    for a, b in zip((found, *grads), (y, *expected), strict=True):
        assert_close(a, b)


def test_s4_has_all_digits_of_small_steps() -> None:
    torch.set_default_dtype(torch.float32)
    layer = zoo.S4(8)
    with torch.no_grad():
        layer.log_step_size.fill_(-12)
    x = torch.randn(1, 200, 8)
    truth = zoo.S4(8).double()
    truth.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    with torch.no_grad():
        (state,) = memory(layer.extend(x, layer.initial_state(1))[1])
        (exact,) = memory(truth.extend(x.double(), truth.initial_state(1))[1])
    assert float((state.to(exact.dtype) - exact).abs().max() / exact.abs().max()) < 1e-5
