"""What products of Householder matrices can do that one projector cannot: reflect, rotate, permute."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from recurrences import DOUBLE, assert_near
from scannable import zoo
from scannable.layers.affine.chunkwise import DeltaRule
from scannable.layers.affine.delta_product import DeltaProductRule
from scannable.layers.affine.recurrence import MODES, Mode
from scannable.layers.state import TensorState

Permutation = tuple[int, ...]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def transpositions(permutation: Permutation) -> list[tuple[int, int]]:
    """Exchanges of places that, one after another, take the thing at place permutation[i] to place i."""
    found, things = list[tuple[int, int]](), list(range(len(permutation)))
    for place, thing in enumerate(permutation):
        other = things.index(thing)
        if other != place:
            things[place], things[other] = things[other], things[place]
            found.append((place, other))
    return found


def exchange(size: int, pair: tuple[int, int]) -> Tensor:
    """e_i - e_j: I minus its outer product with itself exchanges i and j. That is a strength of 2 for a key of length 1,
    and without a root it is exact.
    """
    key = torch.zeros(size)
    key[list(pair)] = torch.tensor([1.0, -1.0])
    return key


def tracked(word: Sequence[Permutation], steps: int, mode: Mode) -> list[Permutation]:
    """What the recurrence makes of the identity, after each permutation of a word."""
    size, n = len(word[0]), len(word)
    key, strength = torch.zeros(1, n, steps, 1, size), torch.zeros(1, n, steps, 1)
    for t, permutation in enumerate(word):
        for j, pair in enumerate(transpositions(permutation)):
            key[0, t, j, 0], strength[0, t, j, 0] = exchange(size, pair), 1.0
    value = torch.zeros(1, n, steps, 1, size)
    # Row i of the memory is the thing at place i; asked for all rows at once by the place's number in base `size`.
    query = (size ** torch.arange(size)).double().expand(1, n, 1, size)
    outputs, last = DeltaProductRule(query, key, value, strength).run(torch.eye(size)[None, None], mode)
    places = [[int(x) for x in output] for output in outputs[0, :, 0].round()]
    assert bool((outputs == outputs.round()).all()), "not exact"
    found = [tuple(places_of.index(size**i) for i in range(size)) for places_of in places]
    assert torch.equal(last[0, 0], torch.eye(size)[list(found[-1])])
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "steps"), [(3, 2), (4, 3), (5, 4)])
def test_s_steps_multiply_permutations_of_s_plus_one_things_exactly(size: int, steps: int, mode: Mode) -> None:
    group = list(itertools.permutations(range(size)))
    assert max(len(transpositions(permutation)) for permutation in group) == steps
    word = [group[i] for i in torch.randint(0, len(group), (300,))]
    truth, things = list[Permutation](), tuple(range(size))
    for permutation in word:
        things = tuple(things[i] for i in permutation)
        truth.append(things)
    assert tracked(word, steps, mode) == truth


@pytest.mark.parametrize("mode", MODES)
def test_two_reflections_are_a_rotation(mode: Mode) -> None:
    angles = torch.randn(200)
    # Reflections along two directions turn by twice the angle between them.
    key = torch.stack((torch.ones_like(angles), torch.zeros_like(angles)), -1)[:, None]
    key = torch.cat((key, torch.stack(((angles / 2).cos(), (angles / 2).sin()), -1)[:, None]), 1)[None, :, :, None]
    query = torch.tensor([1.0, 0.0]).expand(1, 200, 1, 2)
    rule = DeltaProductRule(query, key, torch.zeros_like(key), torch.full((1, 200, 2, 1), 2.0))
    outputs, last = rule.run(torch.eye(2)[None, None], mode)
    total = angles.cumsum(0)
    assert_near(outputs[0, :, 0], torch.stack((total.cos(), -total.sin()), -1), DOUBLE, "outputs")
    cos, sin = float(total[-1].cos()), float(total[-1].sin())
    assert_near(last[0, 0], torch.tensor([[cos, -sin], [sin, cos]]), DOUBLE, "last")


def silu_inverse(y: float) -> float:
    """The larger x with x σ(x) = y, for y above the least value of SiLU."""
    low, high = -1.2784645, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle / (1 + math.exp(-middle)) < y else (low, middle)
    return low


def test_a_layer_with_weights_set_by_hand_tracks_the_symmetric_group_of_three() -> None:
    group = list(itertools.permutations(range(3)))
    width, begin = 8, len(group)
    layer = zoo.DeltaProduct(width, 1, steps_per_token=2)
    up, down = silu_inverse(0.25), silu_inverse(-0.25)
    with torch.no_grad():
        for parameter in (layer.query_key_value.weight, layer.convolution.weight, layer.strength.weight):
            parameter.zero_()
        layer.convolution.weight[:, 0, -1] = 1  # sees only its own position
        q, keys, values = layer.query_key_value.weight.split((width, 2 * width, 2 * width))
        q[:3, :] = torch.tensor([1.0, 2.0, 3.0])[:, None]
        keys, values = keys.unflatten(0, (2, width)), values.unflatten(0, (2, width))
        for token, permutation in enumerate(group):
            pairs = transpositions(permutation)
            for j in range(2):
                layer.strength.weight[j, token] = 50.0 if j < len(pairs) else -50.0
            for j, (a, b) in enumerate(pairs):
                keys[j, a, token], keys[j, b, token] = up, down
        for j in range(2):
            # The first token writes two different rows; the third stays empty.
            keys[j, j, begin], values[j, j, begin] = 5.0, 5.0
        layer.out.weight.copy_(torch.eye(width))
    tokens = torch.cat((torch.tensor([begin]), torch.randint(0, 6, (400,))))
    y = layer(torch.eye(width)[tokens][None])[0, :, :2]
    # Where the two rows are says which permutation it is; one token behind the first gives each answer.
    alone = torch.stack([layer(torch.eye(width)[[begin, token]][None])[0, 1, :2] for token in range(6)])
    things, truth = (0, 1, 2), list[int]()
    for token in tokens[1:].tolist():
        things = tuple(things[i] for i in group[token])
        truth.append(group.index(things))
    distance = torch.cdist(y[1:], alone)
    assert distance.argmin(1).tolist() == truth
    assert float(distance.min(1).values.detach().max()) < 0.1 * float(torch.pdist(alone).detach().min())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("negative", [False, True])
def test_one_step_a_token_is_deltanet(gated: bool, negative: bool) -> None:
    row: Any = zoo.GatedDeltaNet if gated else zoo.DeltaNet
    layer = row(16, 2, negative_eigenvalues=negative)
    product = zoo.DeltaProduct(16, 2, steps_per_token=1, negative_eigenvalues=negative, gated=gated)
    product.load_state_dict(layer.state_dict())
    x, weight = torch.randn(2, 65, 16, requires_grad=True), torch.randn(2, 65, 16)
    y, other = layer(x), product(x)
    assert_near(other, y, 1e-12, "outputs")
    found, expected = (torch.autograd.grad((out * weight).sum(), x)[0] for out in (other, y))
    assert_near(found, expected, 1e-12, "gradient")


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_option_is_one_function_in_all_modes(steps: int, gated: bool) -> None:
    layer = zoo.DeltaProduct(16, 2, steps_per_token=steps, gated=gated)
    for n in (1, 7, 63, 65):
        x, lengths = torch.randn(3, n, 16, requires_grad=True), torch.tensor([n, 0, n // 2])
        weight = torch.randn(3, n, 16) * (torch.arange(n) < lengths[:, None])[..., None]
        results = list[tuple[Tensor, ...]]()
        for mode in MODES:
            y, state = layer.extend(x, layer.initial_state(3), lengths=lengths, mode=mode)
            assert isinstance(state, TensorState)
            grads = torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])
            results.append(((y * weight).sum(), state["s"], state["past"], *grads))
        for other in results[1:]:
            for found, expected in zip(other, results[0], strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("row", [zoo.DeltaNet, zoo.GatedDeltaNet, zoo.DeltaProduct])
@pytest.mark.parametrize("negative", [False, True])
def test_strengths_reach_two_only_where_eigenvalues_may_be_negative(row: Any, negative: bool) -> None:
    layer = row(16, 2, negative_eigenvalues=negative)
    with torch.no_grad():
        layer.strength.weight.mul_(10)
    prepared = layer.prepare(torch.randn(2, 50, 16), layer.empty(2), None)
    rule = prepared.recurrence if isinstance(prepared.recurrence, DeltaRule) else prepared.recurrence.single_steps()
    written = (rule.strength * rule.key.square().sum(-1)).detach()
    assert 0 <= float(written.min()) < 0.01
    assert (1.99 if negative else 0.99) < float(written.max()) <= (2 if negative else 1)


@pytest.mark.usefixtures("shapes_unchecked")
def test_steps_are_a_whole_number() -> None:
    with pytest.raises(ValueError, match="steps_per_token=0 must be a whole number of at least 1"):
        zoo.DeltaProduct(16, 2, steps_per_token=0)
