"""How large an experiment is done."""

from typing import Literal, get_args

from scannable.storage.configuration import ConfigurationError, nearest

Profile = Literal["smoke", "laptop", "paper"]


def profile_named(name: str) -> Profile:
    """The profile of that name."""
    for known in get_args(Profile):
        if name == known:
            return known
    raise ConfigurationError(f"there is no profile {name!r:.60}{nearest(name, get_args(Profile))}")
