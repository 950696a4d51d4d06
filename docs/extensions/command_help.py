"""The help of every command, as it is printed: `{commands}`."""

import os
import re
import subprocess
import sys
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def said(*arguments: str) -> str:
    """What the command prints, without colours, at a width that fits the page."""
    environment = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "scannable", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).rstrip()


class Commands(SphinxDirective):
    """All commands in their groups, each with its help."""

    def run(self) -> list[nodes.Node]:
        from scannable.cli.main import GROUPS

        found: list[nodes.Node] = []
        for title, group in GROUPS.items():
            section = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
            section += nodes.title(text=title)
            for name in group:
                part = nodes.section(ids=[f"command-{name}"], names=[f"scannable {name}"])
                part += nodes.title(text=f"scannable {name}")
                part += nodes.literal_block(text=said(name, "--help"), language="text")
                section += part
            found.append(section)
        return found


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
