"""`scannable generate`."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from scannable.cli.run_argument import check_model, load
from scannable.storage.configuration import ConfigurationError
from scannable.training.recipe import positive


def generate(
    run: Positional[Annotated[Path | None, tyro.conf.arg(metavar="[RUN]")]] = None,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Stream text, or tokens, from a trained run or a shipped model.

    Examples:
        scannable generate --prompt "def main("
        scannable generate runs/stdlib --prompt "def main(" --tokens 500
        scannable generate runs/s5 --prompt "3 14 15"

    Args:
        run: folder of a run, or a name that `scannable models` lists; by default the shipped language model.
        prompt: what to go on from: text for a model of text, else token numbers with spaces between.
        tokens: how many to generate.
        temperature: 0 takes the likeliest every time.
        top_k: choose among the k likeliest.
        seed: makes the choice repeatable.
        device: such as cuda.
    """
    if tokens < 0:
        raise ConfigurationError(f"tokens={tokens} must be 0 or above")
    if not 0 <= temperature < float("inf"):
        raise ConfigurationError(f"temperature={temperature} must be 0 (the likeliest token) or above")
    if top_k is not None:
        positive("top_k", top_k)
    if not 0 <= seed < 2**63:
        raise ConfigurationError(f"seed={seed} must be a whole number from 0 to 2^63 - 1")
    run = run or _shipped_language_model()
    check_model(run)
    import torch

    from scannable.cli.device import usable_device
    from scannable.models.generation import generate as stream
    from scannable.tasks.text import TextTask

    place = usable_device(device)
    found = load(run, device=place)
    recipe, model = found.recipe, found.model
    task = recipe.task
    if isinstance(task, TextTask):
        start = task.encode(prompt or "\n")
    else:
        try:
            start = [int(word) for word in (prompt or "0").split()]
        except ValueError:
            raise ConfigurationError(
                f"prompt {prompt!r:.40} is no list of tokens; those of this run's {type(task).__name__} "
                f"are the numbers 0 to {task.vocab_size - 1}"
            ) from None
    first = torch.tensor(start, device=place)
    chosen = stream(model, first, max_new_tokens=tokens, temperature=temperature, top_k=top_k, seed=seed)
    numbers = (int(token) for token in chosen)
    pieces = task.decode_stream(numbers) if isinstance(task, TextTask) else (f"{number} " for number in numbers)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def _shipped_language_model() -> Path:
    from scannable.weights.shipped_model import language_model

    name = language_model()
    if name is None:
        raise ConfigurationError("no language model is shipped; give the folder of a run, such as runs/stdlib")
    return Path(name)
