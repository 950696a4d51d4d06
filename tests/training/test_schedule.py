"""Learning rates, decay, and stages of a curriculum, by hand."""

import copy
import math

import pytest
import torch
from torch import nn

import scannable as sc
from scannable.nn.decay import with_decay
from scannable.nn.head_norm import HeadNorm
from scannable.training.curriculum import Stage
from scannable.training.muon import Muon
from scannable.training.recipe import Curriculum, Evaluation, Optimizer
from scannable.training.schedule import Together, build_optimizer, learning_rate


def test_the_rate_rises_and_then_falls_to_its_last() -> None:
    for schedule, middle in (("constant", 1.0), ("linear", 0.55), ("cosine", 0.55)):
        optimizer = Optimizer(learning_rate=2.0, warmup=10, schedule=schedule, final=0.1)  # pyright: ignore[reportArgumentType]
        rates = [learning_rate(optimizer, step, 111) for step in range(111)]
        assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
        assert rates[10] == pytest.approx(2.0) and rates[60] == pytest.approx(2.0 * middle)
        assert rates[-1] == pytest.approx(2.0 if schedule == "constant" else 0.2)
    quarter = learning_rate(Optimizer(learning_rate=1.0, warmup=0, final=0.0), 25, 101)
    assert quarter == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_a_late_fall_begins_after_two_thirds() -> None:
    optimizer = Optimizer(learning_rate=2.0, warmup=5, schedule="late", final=0.1)
    rates = [learning_rate(optimizer, step, 91) for step in range(91)]
    assert rates[5:61] == [2.0] * 56
    assert rates[75] == pytest.approx(0.5 * (2.0 + 0.2))
    assert rates[-1] == pytest.approx(0.2)


def test_weights_decay_and_what_modules_leave_alone_does_not() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), HeadNorm(2, 2))
    model[0].weight.requires_grad_(True)
    decaying, still = build_optimizer(model, Optimizer(weight_decay=0.3)).param_groups
    assert [p.shape for p in decaying["params"]] == [(4, 3)] and decaying["weight_decay"] == 0.3
    assert [p.shape for p in still["params"]] == [(4,), (4,), (4,), (2, 2)] and still["weight_decay"] == 0.0
    model[0].requires_grad_(False)
    (still,) = build_optimizer(model, Optimizer(weight_decay=0.3)).param_groups
    assert len(still["params"]) == 3


def small_model() -> sc.TransformerPSM:
    torch.manual_seed(0)
    return sc.TransformerPSM(sc.TransformerPSMConfig(7, 16, chunk_length=2, agg_layers=1, inf_layers=1, heads=2))


def test_muon_moves_the_matrices_inside_and_adamw_the_rest() -> None:
    model = small_model()
    names = {parameter: name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, Optimizer(0.02, algorithm="muon", weight_decay=0.3))
    assert isinstance(optimizer, Together)
    muon, decaying, still = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    linear = ("attention.query", "attention.key_value", "attention.out", "mlp_in", "mlp_out")
    assert muon == {f"layer.{part}.transformer.blocks.0.{name}.weight" for part in ("agg", "inf") for name in linear}
    assert "head.weight" in decaying and "enc.weight" in decaying
    assert "layer.agg.transformer.positions" in still and "head.bias" in still
    assert muon | decaying | still == set(names.values())


def test_two_optimizers_as_one_are_the_two() -> None:
    together, apart = small_model(), small_model()
    settings = Optimizer(0.02, algorithm="muon", weight_decay=0.3)
    one = build_optimizer(together, settings)
    assert isinstance(one, Together)
    matrices = one.param_groups[0]["params"]
    names = {name for name, parameter in together.named_parameters() if any(parameter is each for each in matrices)}
    parts = dict(apart.named_parameters())
    two = [
        Muon(
            [parts[name] for name in parts if name in names],
            lr=0.02,
            weight_decay=0.3,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [
                {"params": [dict(apart.named_parameters())[name] for name in group], "weight_decay": decay}
                for group, decay in (
                    ([n for n, _, _, decays in with_decay(apart) if decays and n not in names], 0.3),
                    ([n for n, _, _, decays in with_decay(apart) if not decays], 0.0),
                )
            ],
            lr=0.02,
            betas=settings.betas,
            fused=True,
        ),
    ]
    tokens = torch.randint(7, (2, 9))
    for step in range(4):
        for model, optimizers in ((together, [one]), (apart, two)):
            model.zero_grad()
            model.loss(tokens, tokens).backward()
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 0.02 / (step + 1)
                optimizer.step()
        if step == 1:
            # A new one that goes on from what the old one has saved.
            saved = copy.deepcopy(one.state_dict())
            one = build_optimizer(together, settings)
            one.load_state_dict(saved)
    for (name, mine), theirs in zip(together.named_parameters(), apart.parameters(), strict=True):
        assert torch.equal(mine, theirs), name
        assert not torch.equal(mine, dict(small_model().named_parameters())[name]) or name.endswith("bias"), name


def test_a_stage_ends_by_error_or_by_steps() -> None:
    by_error, by_steps = Curriculum((2, 4), below=(0.1,)), Curriculum((2, 4), steps=2)
    assert Stage().after_evaluation(by_error, 3.0, 0.2) == Stage(0, 0, 3.0)
    assert Stage(0, 5).after_evaluation(by_error, 3.0, 0.05) == Stage(1)
    assert Stage(1, 5).after_evaluation(by_error, 3.0, 0.05) == Stage(1, 5, 3.0)
    assert Stage(0, 9).after_step() == Stage(0, 10)
    assert Stage(0, 10).when_time_is_up(by_error) == Stage(0, 10)
    assert [Stage(0, n).when_time_is_up(by_steps) for n in (1, 2, 3)] == [Stage(0, 1), Stage(1), Stage(1)]
    assert Stage(1, 9).when_time_is_up(by_steps) == Stage(1, 9)
    assert Stage(1).length(by_steps) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimizer(learning_rate=0.0), "learning_rate=0.0 must be above 0"),
        (lambda: Optimizer(betas=(0.9, 1.0)), r"betas=\(0.9, 1.0\) must lie in \[0, 1\)"),
        (lambda: Optimizer(clip=-1.0), "clip=-1.0 must be 0 or above"),
        (lambda: Optimizer(warmup=-1), "warmup=-1 must be 0 or more steps"),
        (lambda: Curriculum(()), "lengths is empty"),
        (lambda: Curriculum((2, 3)), "needs `below`, `steps` or `patience`"),
        (lambda: Curriculum((0,)), "lengths=0 must be above 0"),
        (lambda: Curriculum((2,), revisit=1.0), r"revisit=1.0 must lie in \[0, 1\)"),
        (lambda: Evaluation(every=0), "every=0 must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_a_length_that_does_not_get_better_is_left() -> None:
    curriculum = Curriculum((2, 4), patience=2)
    stage = Stage()
    for loss in (3.0, 2.0, 2.5):
        stage = stage.after_evaluation(curriculum, loss, 0.9)
        assert stage.index == 0
    assert stage.after_evaluation(curriculum, 1.9, 0.9) == Stage(0, 0, 1.9, 0)
    assert stage.after_evaluation(curriculum, 2.0, 0.9) == Stage(1)


def test_thresholds_and_rates_may_differ_between_lengths() -> None:
    curriculum = Curriculum((2, 4, 8), below=(0.5, 0.1, 0.1), rates=(1.0, 0.5, 0.25))
    assert Stage(0).after_evaluation(curriculum, 1.0, 0.4) == Stage(1)
    assert Stage(1).after_evaluation(curriculum, 1.0, 0.4).index == 1
    assert [Stage(i).rate(curriculum) for i in range(3)] == [1.0, 0.5, 0.25]
    assert Stage(2).rate(Curriculum((2, 4, 8), below=(0.1,), rates=(0.5,))) == 0.5
    with pytest.raises(ValueError, match="one for each of 3 stages"):
        Curriculum((2, 4, 8), below=(0.5, 0.1))
