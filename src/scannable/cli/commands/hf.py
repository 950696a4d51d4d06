"""`scannable hf`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional

from scannable.cli.run_argument import check_run
from scannable.storage.configuration import ConfigurationError
from scannable.training.recipe import Weights


def hf(
    action: Positional[Annotated[Literal["export", "import"], tyro.conf.arg(metavar="{export,import}")]],
    source: Positional[Annotated[Path, tyro.conf.arg(metavar="FROM")]],
    target: Positional[Annotated[Path, tyro.conf.arg(metavar="TO")]],
    weights: Weights | None = None,
) -> None:
    """Export a run for transformers, or import one.

    export writes weights, tokenizer and model card into a new folder, which from_pretrained reads after
    `import scannable.hf` or with trust_remote_code=True. import goes back to a run, or to a model for
    scannable.load_model if the folder remembers no run.

    Examples:
        scannable hf export runs/stdlib exported
        scannable hf import exported runs/again

    Args:
        action: export a run, or import a folder.
        source: folder of the run to export, or of the model to import.
        target: a new folder.
        weights: those of the last step or the best ones; by default what the recipe tests at its end.
    """
    if action == "export":
        check_run(source)
    elif not source.is_dir():
        raise ConfigurationError(f"there is no folder {source}; give one that save_pretrained or hf export wrote")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is there already; give a new folder")
    if action == "import" and weights is not None:
        raise ConfigurationError(f"weights={weights} is for export: a folder has one set of weights; drop it")
    if find_spec("transformers") is None:
        raise ConfigurationError("scannable hf needs transformers; install it with: pip install 'scannable[hf]'")
    from scannable.hf.exchange import export_run, import_folder

    print(export_run(source, target, weights=weights) if action == "export" else import_folder(source, target))
