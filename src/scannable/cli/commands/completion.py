"""`scannable completion`."""

from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Positional[Shell]) -> None:
    """Print a script that completes commands and options with Tab.

    Examples:
        eval "$(scannable completion bash)"
        scannable completion bash > ~/.local/share/bash-completion/completions/scannable
        scannable completion zsh > ~/.zfunc/_scannable
        scannable completion fish > ~/.config/fish/completions/scannable.fish

    Args:
        shell: the one to complete in.
    """
    print(script(shell))


def script(shell: Shell) -> str:
    """What tyro makes of all commands together; each recipe of `train` is there with its fields."""
    from contextlib import redirect_stdout
    from io import StringIO

    from scannable.cli.layer_argument import REGISTRY
    from scannable.cli.main import GROUPS, command

    functions = {name: command(function) for group in GROUPS.values() for name, function in group.items()}
    functions["train"] = _train()
    out = StringIO()
    try:
        with redirect_stdout(out):
            tyro.extras.subcommand_cli_from_dict(
                functions,
                prog="scannable",
                args=["--tyro-print-completion", shell],
                registry=REGISTRY,
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit:
        # How tyro ends when it has printed.
        pass
    # A description of several lines would be offered as several words to choose from.
    lines = (
        line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC") else line for line in out.getvalue().split("\n")
    )
    return "\n".join(lines).rstrip()


def _train() -> Any:
    from scannable.cli.commands.train import Train
    from scannable.recipes import about, all_recipes, recipe_named

    def choice(name: str) -> Any:
        default = recipe_named(name)
        kind: Any = Train[type(default.model), type(default.task)]  # pyright: ignore[reportInvalidTypeArguments]
        settings = tyro.conf.subcommand(name, default=Train(default), description=about(name))
        return Annotated[kind, settings]

    def train(recipe: Any) -> None: ...

    train.__annotations__["recipe"] = Union[tuple(choice(name) for name in all_recipes())]  # noqa: UP007
    return train
