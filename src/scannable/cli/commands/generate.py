"""`scannable generate`."""

from scannable.cli.run_argument import RunFolder, check_run
from scannable.storage.configuration import ConfigurationError
from scannable.training.recipe import positive


def generate(
    run: RunFolder,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Stream text, or tokens, from a trained run.

    Examples:
        scannable generate runs/stdlib --prompt "def main(" --tokens 500
        scannable generate runs/s5 --prompt "3 14 15"

    Args:
        run: folder of the run.
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
    check_run(run)
    import torch

    from scannable.cli.device import usable_device
    from scannable.models.generation import generate as stream
    from scannable.tasks.text import TextTask
    from scannable.training.run_folder import load_trained

    place = usable_device(device)
    found = load_trained(run, device=place)
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
