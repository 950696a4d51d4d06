"""Runs of this library to folders of `transformers`, and back."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

import scannable.hf  # registers the classes
from scannable.hf.causal_lm import ScannableForCausalLM
from scannable.hf.configuration import ScannableConfig
from scannable.hf.model_card import Facts, model_card
from scannable.hf.run_file import RunFile, digest
from scannable.hf.tokenizer import fast_tokenizer
from scannable.models.base import CausalModel
from scannable.storage.checked_folder import put_in_place
from scannable.storage.configuration import to_plain
from scannable.storage.files import write_whole
from scannable.storage.model_file import ModelFileError, save_model
from scannable.tasks.text import TextTask
from scannable.training import checkpoint as checkpoints
from scannable.training.checkpoint import Checkpoint
from scannable.training.progress import Progress
from scannable.training.recipe import Weights
from scannable.training.run_folder import load_result, load_trained, write_config

assert scannable.hf


def export_run(run: Path, folder: Path, *, weights: Weights | None = None) -> str:
    """Write a trained run as a folder that `from_pretrained` reads, whole or not at all: weights, tokenizer, card.

    Args:
        run: folder of the run.
        folder: a new one.
        weights: those of the last step or the best ones; by default what the recipe tests at its end.

    Returns:
        What was written, in words.
    """
    found = load_trained(run, weights=weights)
    recipe, own = found.recipe, found.model
    model = wrapped(own)
    tokenizer, files = None, dict[str, str]()
    if isinstance(recipe.task, TextTask):
        limit = getattr(model.config, "max_position_embeddings", None)
        tokenizer = fast_tokenizer(recipe.task.loaded_tokenizer, limit)
        files = {name: content.decode() for name, content in recipe.task.loaded_tokenizer.files().items()}
        end: Any = tokenizer.eos_token_id
        for where in (model.config, model.generation_config):
            where.bos_token_id = where.eos_token_id = where.pad_token_id = end
    result = load_result(run)
    facts = Facts(
        name=folder.name,
        kind=type(recipe.model).__name__,
        parameters=sum(weight.numel() for weight in own.parameters()),
        task=type(recipe.task).__name__,
        step=found.step,
        weights=found.weights,
        has_text=tokenizer is not None,
        result=result,
        config=model.config.network,
    )

    def write(place: Path) -> None:
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        RunFile(recipe, found.step, found.weights, digest(own), result, files).write(place)
        write_whole(place / "README.md", model_card(facts))

    _whole_folder(folder, write)
    return f"{folder}: {found}{'' if tokenizer is None else ', with its tokenizer'}"


def import_folder(folder: Path, out: Path) -> str:
    """The way back: a run, if the folder remembers one, and otherwise a model for `scannable.load_model`.

    Returns:
        What was written, in words.
    """
    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder} holds no model of transformers: config.json is missing")
    # Nothing is unpickled.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", use_safetensors=True)
    if not isinstance(model, ScannableForCausalLM):
        raise ModelFileError(
            f"{folder} holds a {type(model).__name__}, no ScannableForCausalLM; only models of this library go back"
        )
    own: Any = model.to_scannable()
    run = RunFile.read(folder)
    if run is None:
        _whole_folder(out, lambda place: save_model(own, place))
        return f"{out}: a model, for scannable.load_model"
    if run.recipe.model != own.config:
        raise ModelFileError(
            f"{folder}: scannable_run.json is of another model than config.json; remove one of the two"
        )
    same = run.digest == digest(own)

    def write(place: Path) -> None:
        state = {
            "progress": Progress(step=run.step, ended="steps").to_plain(),
            "metrics_bytes": 0,
            "recipe": to_plain(run.recipe),
            "versions": {"torch": torch.__version__},
        }
        # Averages are exported as the weights, so there are none beside them.
        checkpoints.write(place / "checkpoints", Checkpoint(run.step, own.state_dict(), {}, state))
        write_config(place, run.recipe)
        for name, content in run.tokenizer.items():
            write_whole(place / name, content.encode())
        if same and run.result is not None:
            write_whole(place / "result.json", json.dumps(run.result, indent=1, sort_keys=True).encode() + b"\n")

    _whole_folder(out, write)
    changed = "" if same else "; its weights are others than those that were exported, so it has no result"
    return f"{out}: a run at step {run.step}{changed}"


def wrapped(own: CausalModel[Any]) -> ScannableForCausalLM:
    """A model of this library for `transformers`, with its weights and in its mode."""
    config: Any = own.config
    model: Any = ScannableForCausalLM(ScannableConfig(config))
    weights = {
        f"model.network.{name}": value for name, value in own.state_dict().items() if not name.startswith("head.")
    }
    weights |= {f"lm_head.{name}": value for name, value in own.head.state_dict().items()}
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.to(next(own.parameters()).dtype).train(own.training)


def _whole_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """A new folder with all that `write` puts into it, or none."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelFileError(f"{folder} is there already; give a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.writing"
    try:
        temporary.mkdir()
        write(temporary)
        put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
