"""Docstrings here are plain text with a little Markdown; autodoc wants reStructuredText.

`name` becomes code, and a link if it is a public name; indented lines after an empty one become a block as they stand;
everything else is kept from meaning anything. Sections such as `Args:` are left to napoleon, which comes after.
"""

import re
from functools import cache
from typing import Any

from sphinx.application import Sphinx

SECTIONS = ("Args:", "Returns:", "Raises:", "Yields:", "Example:", "Examples:")


@cache
def public_names() -> dict[str, str]:
    """Each public name, with where the reference has it."""
    import scannable

    names = {name: f"scannable.{name}" for name in scannable.__all__}
    return names | {name: f"scannable.zoo.{name}" for name in scannable.zoo.__all__}


def inline(text: str) -> str:
    """One line, with nothing in it that reStructuredText would take for markup of its own."""
    # A letter with a dot would begin a list.
    text = re.sub(r"^(\s*\w)\.(?=\s|$)", "\\1\0.", text)
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(_code(part[1:-1]) if part[:1] == "`" and len(part) > 1 else _escaped(part) for part in parts)


def _code(name: str) -> str:
    bare = name.removeprefix("scannable.").removeprefix("sc.").removeprefix("zoo.")
    home = public_names().get(bare)
    return f":py:obj:`~{home}`" if home else f"``{name}``"


def _escaped(text: str) -> str:
    text = re.sub(r"(?<![\w*])\*(\w[^*]*)\*(?![\w*])", "\0\\1\0", text)
    return re.sub(r"([\\*|_])", r"\\\1", text).replace("\0.", "\\.").replace("\0", "*")


def converted(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText."""
    out: list[str] = []
    in_sections = False
    i = 0
    while i < len(lines):
        line = lines[i]
        stripped = line.strip()
        if stripped in SECTIONS and not line.startswith(" "):
            in_sections = stripped not in ("Example:", "Examples:")
            out.append(line if in_sections else ".. rubric:: Example")
        elif stripped.startswith(">>>"):
            out.append("")
            while i < len(lines) and lines[i].strip():
                out.append(lines[i])
                i += 1
            out.append("")
            continue
        elif line.startswith("    ") and not in_sections and (not out or not out[-1].strip()):
            out += [".. code-block:: python" if _is_python(stripped) else ".. code-block:: text", ""]
            while i < len(lines) and (not lines[i].strip() or lines[i].startswith("    ")):
                out.append(lines[i])
                i += 1
            out.append("")
            continue
        else:
            if stripped and not line.startswith(" "):
                in_sections = False
            out.append(_argument(line) if in_sections else inline(line))
        i += 1
    return out


def _argument(line: str) -> str:
    """`name: what it is`, whose name must stay as it is for napoleon."""
    found = re.match(r"^( {4}[\w, *]+:)(.*)$", line)
    return found[1] + inline(found[2]) if found else inline(line)


def _is_python(line: str) -> bool:
    try:
        compile(line.rstrip(":") if not line.startswith("for") else "pass", "docstring", "exec")
    except SyntaxError:
        return False
    return "scannable" in line or "sc." in line or ("(" in line and "=" in line and line.isascii())


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = converted(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    # Before napoleon, which is at 500.
    app.connect("autodoc-process-docstring", process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
