"""What must work of an installed package: python smoke.py [EXTRA]. Nothing of the repository is needed."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ABSENT = ("tyro", "rich", "matplotlib", "transformers", "tokenizers", "datasets", "pytest")
"""What the core must do without."""


def core() -> None:
    import torch

    import scannable as sc

    there = [name for name in ABSENT if importlib.util.find_spec(name) is not None]
    assert not there, f"the environment should hold the core only, but has {there}"
    assert "site-packages" in str(Path(sc.__file__)), sc.__file__
    assert (Path(sc.__file__).parent / "py.typed").exists()
    for name in sc.__all__:
        getattr(sc, name)
    model = sc.TransformerPSM(sc.TransformerPSMConfig(vocab_size=50, width=16, heads=2, chunk_length=4))
    tokens = torch.randint(50, (2, 30))
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    sc.verify_duality(model, tokens, dtype=torch.float64).raise_if_failed()
    hybrid = sc.LM(sc.LMConfig(vocab_size=50, width=16, heads=2, layers=("mamba", "psm", "attention")))
    sc.verify_duality(hybrid, tokens, dtype=torch.float64).raise_if_failed()
    with tempfile.TemporaryDirectory() as folder:
        sc.save_model(model, Path(folder) / "model")
        loaded = sc.load_model(Path(folder) / "model")
        _, state = loaded.prefill(tokens, loaded.initial_state(2))
        sc.save_state(state, Path(folder) / "state")
        assert sc.load_state(Path(folder) / "state").positions == (30, 30)
    assert len(list(sc.generate(loaded, [1, 2, 3], max_new_tokens=4, seed=0))) == 4
    says("doctor", expected="Needed")
    says("--version", expected=sc.__version__)
    says("--help", expected="pip install 'scannable[train,plot]'", code=1)


def says(*arguments: str, expected: str, code: int = 0) -> None:
    """The command that was installed, in an empty folder."""
    command = Path(sys.executable).with_name("scannable")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == code and expected in done.stdout + done.stderr, done.stdout + done.stderr


def command_line() -> None:
    says("--help", expected="Set up:")
    says("recipes", expected="s5-plain")
    says("zoo", "--width", "16", "--heads", "2", "--length", "32", expected="mamba")
    small = ("--steps", "2", "--batch-tokens", "64", "--evaluation.samples", "8")
    says("train", "demo", *small, expected="written to runs/demo")


def hugging_face() -> None:
    importlib.import_module("scannable.hf.mamba_weights")
    baselines = importlib.import_module("scannable.baselines.gpt2")
    assert baselines.__doc__


def imported(*names: str) -> None:
    for name in names:
        importlib.import_module(name)


EXTRAS = {
    "": core,
    "train,plot": command_line,
    "hf": hugging_face,
    "data": lambda: imported("datasets", "scannable.tasks.wikitext"),
    "tensorboard": lambda: imported("tensorboard", "torch.utils.tensorboard"),
    "wandb": lambda: imported("wandb"),
}
"""What is tried with each extra."""

if __name__ == "__main__":
    EXTRAS[sys.argv[1] if len(sys.argv) > 1 else ""]()
    print("works")
