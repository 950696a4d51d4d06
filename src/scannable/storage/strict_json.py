"""JSON that means one thing only, and JSON that carries its own checksum."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn


def parse(content: bytes | str, error: type[ValueError] = ValueError) -> Any:
    """What `content` says; a name that is given twice, NaN, endless nesting and bad text are refused with `error`."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as cause:
        raise error(f"it is no proper JSON: {cause!s:.200}") from cause


def seal(body: Mapping[str, Any]) -> bytes:
    """In one exact form, with the SHA-256 of the rest, so that not a bit of it can change unnoticed."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, indent=1, sort_keys=True).encode()


def unseal(content: bytes, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """The body that was sealed; refused with `error` if it is not right to the last bit."""
    body = parse(content, error)
    # Computed anew, and compared with the text itself.
    if not isinstance(body, dict) or body.pop("sha256", None) is None or seal(body) != content:
        raise error("it is not what was written")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twice!r:.60} is given twice")
    return names


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
