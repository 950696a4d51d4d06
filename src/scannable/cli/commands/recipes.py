"""`scannable recipes`."""

from scannable.recipes import about, all_recipes


def recipes() -> None:
    """List the recipes that `train` knows.

    Example:
        scannable recipes
    """
    for name in all_recipes():
        print(f"{name:<16}{about(name)}")
