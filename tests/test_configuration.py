"""A configuration is read back as it was written, or refused with its reason."""

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from scannable.configuration import ConfigurationError, from_plain, to_plain
from scannable.recipes import RECIPES, recipe_named
from scannable.training.loop import TrainingError, load_recipe
from scannable.training.recipe import Recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name: str) -> None:
    recipe = recipe_named(name)
    assert from_plain(json.loads(json.dumps(to_plain(recipe))), Recipe) == recipe


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_model_for_its_task(name: str) -> None:
    recipe = recipe_named(name)
    assert recipe.model.vocab_size >= recipe.task.vocab_size


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="there is no recipe 'sttdlib'; did you mean 'stdlib'"):
        recipe_named("sttdlib")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "width"), "wide", r"the configuration\.model\.width='wide' is no int"),
        (("model", "width"), True, r"width=True is no int"),
        (("model", "widht"), 3, r"model has no field 'widht'; did you mean 'width'"),
        (
            ("model", "kind"),
            "TransformerPSMConfg",
            r"TransformerPSMConfg'.*did you mean 'TransformerPSMConfig'",
        ),
        (("optimizer", "schedule"), "cosin", r"schedule='cosin'.*cosine"),
        (("curriculum", "lengths"), 4, r"lengths=4 is no"),
        (("curriculum", "lengths"), ["a"], r"lengths\[0\]='a' is no int"),
        (("optimizer", "learning_rate"), -1, r"optimizer: learning_rate=-1.0 must be above 0"),
        (("steps",), 1.5, r"steps=1.5 is no int"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[str, ...], value: Any, message: str) -> None:
    plain = to_plain(recipe_named("demo"))
    inner = plain
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ConfigurationError, match=message):
        from_plain(plain, Recipe)


def test_whole_numbers_do_for_floats_and_lists_for_tuples() -> None:
    plain = to_plain(recipe_named("demo"))
    plain["optimizer"]["learning_rate"], plain["optimizer"]["betas"] = 1, [0, 0]
    found = from_plain(plain, Recipe).optimizer
    assert found.learning_rate == 1.0 and found.betas == (0.0, 0.0)


STRANGE: list[Any] = [
    None, True, False, 0, -1, 10**30, 1.5, float("nan"), float("inf"), "", "ä\u0000", "kind", [], [[]], {}, {"kind": None},
    {"kind": "Recipe"}, {"kind": "GroupTask", "group": 3}, {"kind": []}, [1, "two", None], "S5", "float32",
]  # fmt: skip


def test_thousands_of_random_changes_are_answered_not_crashed_on() -> None:
    choose = random.Random(0)
    originals = [to_plain(recipe_named(name)) for name in RECIPES]
    refused = 0
    for _ in range(4000):
        plain = copy.deepcopy(choose.choice(originals))
        for _ in range(choose.randint(1, 3)):
            place: Any = plain
            while isinstance(place, dict) and place and choose.random() < 0.7:
                inner = place[choose.choice(list(place))]
                if not isinstance(inner, dict):
                    break
                place = inner
            if not isinstance(place, dict) or not place:
                continue
            name = choose.choice([*place, "unknown", ""])
            if choose.random() < 0.2:
                place.pop(name, None)
            else:
                place[name] = copy.deepcopy(choose.choice(STRANGE))
        try:
            result = from_plain(plain, Recipe)
        except ConfigurationError:
            refused += 1
        else:
            assert result is None or to_plain(result) is not None
    assert refused > 2000


def test_damaged_text_is_answered_not_crashed_on(tmp_path: Path) -> None:
    choose = random.Random(1)
    text = json.dumps(to_plain(recipe_named("demo"))).encode()
    for _ in range(500):
        damaged = bytearray(text)
        for _ in range(choose.randint(1, 4)):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        (tmp_path / "config.json").write_bytes(damaged[: choose.randint(1, len(damaged))])
        with contextlib.suppress(TrainingError, ConfigurationError):
            load_recipe(tmp_path)
