"""The page on which the scan can be played with is shipped in the package; here it is put into the site as it is."""

import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PAGE = Path(__file__).parents[2] / "src" / "scannable" / "explain"


class Explain(SphinxDirective):
    """The page in a frame, and a link to it alone."""

    def run(self) -> list[nodes.Node]:
        pages = sorted(PAGE.glob("*.html"))
        if not pages:
            return [nodes.paragraph(text="This version of the package comes without it.")]
        address = f"explain/{pages[0].name}"
        frame = f'<iframe class="explain" src="{address}" title="The scan, to play with"></iframe>'
        link = f'<p><a href="{address}">The page by itself</a></p>'
        return [nodes.raw("", frame + link, format="html")]


def copy(app: Sphinx, error: Exception | None) -> None:
    if error is None and PAGE.is_dir():
        ignored = shutil.ignore_patterns("*.py", "__pycache__")
        shutil.copytree(PAGE, Path(app.outdir) / "explain", dirs_exist_ok=True, ignore=ignored)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("explain", Explain)
    app.connect("build-finished", copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
