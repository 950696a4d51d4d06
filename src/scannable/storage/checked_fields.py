"""A configuration is what its types say from the moment it is built, in Python as in a file or on a command line."""

import dataclasses
from typing import Any, TypeVar, get_type_hints

from scannable.storage.configuration import from_plain, to_plain


def check_fields(configuration: Any) -> None:
    """Refuse a field whose value is not of its type; for a frozen dataclass's `__post_init__`.

    What a file may say for it becomes what it stands for: a whole number a float, a list a tuple, a string a path.
    """
    hints = get_type_hints(type(configuration))
    for field in dataclasses.fields(configuration):
        value, expected = getattr(configuration, field.name), hints[field.name]
        if expected is Any or isinstance(expected, TypeVar):
            continue
        found = from_plain(to_plain(value, field.name), expected, field.name)
        # A record was checked when it was built, and may hold what it has read since.
        object.__setattr__(configuration, field.name, value if dataclasses.is_dataclass(value) else found)
