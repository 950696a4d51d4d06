"""A recipe is what results were reported of: it changes on purpose only.

After a change on purpose, `python tests/recipes/test_recorded.py` writes the record anew.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scannable.recipes import RECIPES, recipe_named

RECORD = Path(__file__).with_name("recorded.json")


def said(value: Any) -> Any:
    """A configuration without what has its default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        own = {
            field.name: said(fields[field.name])
            for field in dataclasses.fields(value)
            if field.default is dataclasses.MISSING or fields[field.name] != field.default
        }
        return {"kind": type(value).__name__, **own}
    return [said(item) for item in value] if isinstance(value, tuple | list) else value


def test_every_recipe_is_recorded() -> None:
    assert list(json.loads(RECORD.read_text())) == list(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_as_recorded(name: str) -> None:
    assert said(recipe_named(name)) == json.loads(RECORD.read_text())[name]


if __name__ == "__main__":
    RECORD.write_text(json.dumps({name: said(recipe_named(name)) for name in RECIPES}, indent=1) + "\n")
