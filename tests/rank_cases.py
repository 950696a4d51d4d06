"""What one rank does in a test of the scan; `rank_pool.run` calls these in every process."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as c10d

import scannable as sc
from scannable import distributed

from operators import TanhMLP, two_three

WIDTH = 3


class Pair(NamedTuple):
    """A tree of two leaves of two types, one of them complex."""

    a: Tensor
    b: Tensor


class PairAgg(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = TanhMLP(WIDTH)

    def forward(self, older: Pair, newer: Pair) -> Pair:
        a = self.mlp(older.a, newer.a) + 0.1 * newer.b.real.float().double()
        return Pair(a, 0.5 * older.b * newer.b + (0.3 - 0.2j) * older.b + newer.a.to(torch.complex64))


class Counted(nn.Module):
    """Counts calls and evaluations."""

    def __init__(self, agg: Any) -> None:
        super().__init__()
        self.agg, self.calls, self.evaluations = agg, 0, 0

    def forward(self, older: Any, newer: Any) -> Any:
        self.calls += 1
        self.evaluations += len(older[0] if isinstance(older, tuple) else older)
        return self.agg(older, newer)


def problem(seed: int, n: int, t: int, kind: str) -> tuple[Any, Any, Any, Any]:
    """An Agg, its identity, n + t elements (time on axis 1) and weights for a loss, alike on every rank."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    agg = PairAgg() if kind == "tree" else TanhMLP(WIDTH)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    def one(*shape: int) -> Any:
        a = numbers(*shape, WIDTH)
        return (
            Pair(a, torch.complex(numbers(*shape, WIDTH), numbers(*shape, WIDTH)).to(torch.complex64))
            if kind == "tree"
            else a
        )

    return agg, one(), one(2, n + t), one(2, n + t)


def leaves(tree: Any) -> list[Tensor]:
    return list(tree) if isinstance(tree, tuple) else [tree]


def mapped(function: Any, *trees: Any) -> Any:
    return Pair(*map(function, *trees)) if isinstance(trees[0], tuple) else function(*trees)


def loss_of(prefixes: Any, weights: Any) -> Tensor:
    return sum(
        (p * w).abs().square().sum() + (p * w).real.sum()
        for p, w in zip(leaves(prefixes), leaves(weights), strict=True)
    )  # pyright: ignore


def state_loss(state: Any) -> Tensor:
    held = [*state.roots.values(), *state.folds.values()]
    return sum((i + 1) * leaf.abs().square().sum() for i, one in enumerate(held) for leaf in leaves(one))  # pyright: ignore


def run_case(
    group: Any, seed: int, bounds: tuple[int, ...], t: int, kind: str, options: dict[str, Any]
) -> dict[str, Any]:
    """One case on this rank, or, without a group, on one process with the scan that is the truth."""
    alone = group is None
    n = bounds[-1]
    rank = 0 if alone else c10d.get_rank(group)
    agg, identity, xs, weights = problem(seed, n, t, kind)
    with_state = options.pop("with_state", False) or bool(t)
    literal, known = options.get("literal", False), options.pop("known", False)
    identity = mapped(lambda leaf: leaf.requires_grad_(), identity)
    history = mapped(lambda leaf: leaf[:, :t].clone().requires_grad_(), xs)
    lo, hi = (0, n) if alone else (bounds[rank], bounds[rank + 1])
    shard = mapped(lambda leaf: leaf[:, t + lo : t + hi].clone().requires_grad_(), xs)
    mine = mapped(lambda leaf: leaf[:, t + lo : t + hi], weights)
    counted = Counted(agg)
    state = None
    if with_state:
        state = sc.empty(identity, literal=literal)
        if t:
            _, state = sc.extend(agg, state, history, dim=1)
    place: dict[str, Any] = {} if alone else {"group": group}
    if known and not alone:
        place["split"] = distributed.Split(bounds, rank)
    package = sc if alone else distributed
    with distributed.traffic() as sent:
        if state is not None:
            options.pop("literal", None)
            prefixes, after = package.extend(counted, state, shard, dim=1, **options, **place)
        else:
            prefixes, after = package.scan(counted, shard, identity=identity, dim=1, **options, **place), None
        forward = len(sent)
        loss = loss_of(prefixes, mine)
        if after is not None and rank == 0:
            # One rank's loss has the state, the others none: each would wait for the others if nothing were tied.
            loss = loss + state_loss(after)
        evaluations, calls = counted.evaluations, counted.calls
        if loss.requires_grad:
            loss.backward()
    parameters = [p.grad if p.grad is not None else torch.zeros_like(p) for p in agg.parameters()]
    shares = [
        leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in (*leaves(identity), *leaves(history))
    ]
    return {
        "prefixes": [leaf.detach().numpy() for leaf in leaves(prefixes)],
        "state": None
        if after is None
        else [leaf.detach().numpy() for one in (*after.roots.values(), *after.folds.values()) for leaf in leaves(one)],
        "shard": [(leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)).numpy() for leaf in leaves(shard)],
        "shares": [grad.numpy() for grad in (*parameters, *shares)],
        "evaluations": evaluations,
        "calls": calls,
        "forward": [(one.kind, one.nbytes) for one in sent[:forward]],
        "backward": [(one.kind, one.nbytes) for one in sent[forward:]],
    }


def exact_case(group: Any, bounds: tuple[int, ...], inclusive: bool) -> np.ndarray[Any, Any]:
    """An operator that is exact in int64, and neither associative nor commutative."""
    rank = c10d.get_rank(group)
    xs = torch.arange(1, bounds[-1] + 1) ** 3
    shard = xs[bounds[rank] : bounds[rank + 1]]
    return distributed.scan(two_three, shard, identity=torch.tensor(5), dim=0, group=group, inclusive=inclusive).numpy()


def sizes(bounds: tuple[int, ...]) -> list[int]:
    return [b - a for a, b in pairwise(bounds)]


def refused_case(group: Any, faults: dict[int, str]) -> str:
    """The error that this rank gets when some ranks pass something else."""
    rank = c10d.get_rank(group)
    fault = faults.get(rank, "")
    shard = torch.ones(2, 4, 5 if fault == "shape" else 3, dtype=torch.float32 if fault == "dtype" else torch.float64)
    dim = 7 if fault == "dim" else 1
    identity = torch.zeros(9 if fault == "identity" else (), dtype=shard.dtype)
    grad = torch.no_grad() if fault == "gradients" else torch.enable_grad()
    try:
        with grad:
            distributed.scan(
                lambda a, b: a + b,
                shard,
                identity=identity,
                dim=dim,
                group=group,
                literal=fault == "literal",
            )
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was wrong"


def bounds_case(group: Any, bounds: list[tuple[int, ...] | None], lengths: list[int]) -> Any:
    rank = c10d.get_rank(group)
    try:
        return distributed.agreed_split(lengths[rank], group, bounds=bounds[rank]).bounds
    except ValueError as error:
        return str(error)


def layer_case(group: Any, name: str, choices: dict[str, Any], bounds: tuple[int, ...], n: int) -> dict[str, Any]:
    """A layer over this rank's part; without a group, over the whole."""
    from scannable.distributed.layer import layer_over_ranks
    from scannable.layers import LAYERS

    torch.manual_seed(1)
    layer: Any = LAYERS[name](8, 2, **choices).double().eval()
    for parameter in layer.parameters():
        # Also what starts as zeros.
        nn.init.normal_(parameter, std=0.3) if parameter.ndim < 2 else None
    x = torch.randn(2, n, 8, dtype=torch.float64)
    weights = torch.randn(2, n, 8, dtype=torch.float64)
    rank = 0 if group is None else c10d.get_rank(group)
    lo, hi = (0, n) if group is None else (bounds[rank], bounds[rank + 1])
    mine = x[:, lo:hi].clone().requires_grad_()
    with distributed.traffic() as sent:
        y = layer(mine) if group is None else layer_over_ranks(layer, mine, distributed.Split(bounds, rank), group)
        forward = len(sent)
        (y * weights[:, lo:hi]).sum().backward()
    return {
        "y": y.detach().numpy(),
        "x": mine.grad.numpy(),  # pyright: ignore
        "shares": {
            key: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for key, p in layer.named_parameters()
        },
        "forward": [one.kind for one in sent[:forward]],
        "backward": [one.kind for one in sent[forward:]],
    }


def model_case(group: Any, config: Any, bounds: tuple[int, ...] | None, n: int, agreed: bool = False) -> dict[str, Any]:
    """The loss of a model over this rank's part; without a group, of the whole."""
    from scannable.storage.model_file import build_model

    torch.manual_seed(1)
    model: Any = build_model(config).double()
    tokens, targets = torch.randint(11, (2, n)), torch.randint(11, (2, n))
    targets[:, ::5] = -100
    rank = 0 if group is None else c10d.get_rank(group)
    if group is None:
        loss = model.loss(tokens, targets)
        logits = model(tokens)
    else:
        bounds = bounds or distributed.bounds_for(model, n, c10d.get_world_size(group))
        mine = slice(bounds[rank], bounds[rank + 1])
        split = distributed.Split(bounds, rank) if agreed else None
        loss = distributed.loss(model, tokens[:, mine], targets[:, mine], group=group, split=split)
        with torch.no_grad():
            logits = distributed.forward(model, tokens[:, mine], group=group)
    loss.backward()
    return {
        "loss": float(loss.detach()),
        "logits": logits.detach().numpy(),
        "shares": {
            key: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for key, p in model.named_parameters()
        },
    }


def model_refused_case(group: Any, config: Any, bounds: tuple[int, ...]) -> str:
    from scannable.storage.model_file import build_model

    rank = c10d.get_rank(group)
    try:
        distributed.forward(
            build_model(config), torch.zeros(1, bounds[rank + 1] - bounds[rank], dtype=torch.int64), group=group
        )
    except ValueError as error:
        return str(error)
    return "nothing was wrong"
