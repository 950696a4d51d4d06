"""The documentation site: `make docs`. Warnings are errors, tutorials are run, nothing is downloaded."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]
# Tutorials run in processes of their own: they shall find the same package, and not fight for cores.
os.environ["PYTHONPATH"] = str(HERE.parent / "src")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import scannable  # noqa: E402

project = "scannable"
author = "The scannable maintainers"
copyright = "The scannable maintainers, Apache-2.0"
version = release = scannable.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "plain_docstrings",
    "command_help",
    "explain_page",
]
exclude_patterns = ["_build", "extensions", "pictures/*.py", "jupyter_execute"]
templates_path: list[str] = []

# Pages that are files of the repository are included, so that nothing is written twice.
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
myst_links_external_new_tab = True

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove-warn"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"scannable {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
linkcheck_ignore = [r".*"]
