"""The page of an exported model: what it is, how to load it, and what was measured of it."""

import json
import math
from dataclasses import dataclass
from typing import Any

import scannable


@dataclass(frozen=True)
class Facts:
    """What a card says; nothing in it is made up here."""

    name: str
    kind: str
    """Of the model's configuration."""
    parameters: int
    task: str
    step: int
    weights: str
    has_text: bool
    result: dict[str, Any] | None
    """What the run found on the test split, if it came to its end."""
    config: Any
    """The model's configuration, as JSON holds it."""


def model_card(facts: Facts) -> bytes:
    """The README.md of a model's folder."""
    lines = [
        "---",
        "library_name: transformers",
        "tags: [scannable, prefix-scan]",
        *(["pipeline_tag: text-generation"] if facts.has_text else []),
        "---",
        "",
        f"# {facts.name}",
        "",
        f"A model of scannable {scannable.__version__} ({facts.kind}, "
        f"{facts.parameters:,} parameters), trained with `scannable train` on {facts.task}: the weights of step "
        f"{facts.step:,} ({facts.weights}).",
        "",
        "```python",
        "import scannable.hf" if not facts.has_text else "import scannable.hf  # pip install 'scannable[hf]'",
        *(
            ["from transformers import pipeline", "", f'pipeline("text-generation", "{facts.name}")("Once")']
            if facts.has_text
            else [
                "from transformers import AutoModelForCausalLM",
                "",
                f'model = AutoModelForCausalLM.from_pretrained("{facts.name}")  # its tokens are numbers',
            ]
        ),
        "```",
        "",
        "Or with `trust_remote_code=True` and without the import; the package must be installed either way.",
        "",
        "## Measured",
        "",
        *_measured(facts),
        "",
        "## Configuration",
        "",
        "```json",
        json.dumps(facts.config, indent=1),
        "```",
        "",
    ]
    return "\n".join(lines).encode()


def _measured(facts: Facts) -> list[str]:
    if facts.result is None:
        return ["Nothing: the run has not come to its end, so it was not tested."]
    tested = facts.result["tested"]
    if tested["step"] != facts.step or tested["weights"] != facts.weights:
        return [f"Nothing of these weights: the run tested those of step {tested['step']} ({tested['weights']})."]
    return [
        f"On the test split, after {facts.result['tokens']:,} tokens of training, one seed.",
        "",
        "| length | samples | loss | perplexity | error, % | bits a byte |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(_row, facts.result["test"]),
    ]


def _row(score: dict[str, Any]) -> str:
    bits, perplexity = score["bits_per_byte"], math.exp(min(score["loss"], 700))
    return (
        f"| {score['length']:,} | {score['samples']:,} | {score['loss']:.4f} | {perplexity:.4f} | "
        f"{100 * score['error']:.2f} | {'-' if bits is None else format(bits, '.4f')} |"
    )
