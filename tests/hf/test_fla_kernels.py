"""The Triton kernels of flash-linear-attention themselves, interpreted on a CPU, give the logits of the models read here.

Up to 64 tokens, for which its models take their recurrent kernels: Triton's interpreter cannot run all of the others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

INTERPRET = """
import json, warnings
warnings.simplefilter("ignore")
import torch
from triton.runtime.autotuner import Autotuner


def run(self, *args, **options):
    # Without a GPU there is nothing to measure configurations on: the first will do.
    return self.fn.run(*args, **options, **self.configs[0].kwargs)


Autotuner.run = run
import fla.models
from scannable.hf.fla_weights import load_fla

found = {}
for kind, more in (("GLA", {}), ("DeltaNet", {}), ("GatedDeltaNet", {"head_dim": 16})):
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "intermediate_size": 40}
    config = getattr(fla.models, kind + "Config")(**sizes, **more)
    model = getattr(fla.models, kind + "ForCausalLM")(config).eval()
    tokens = torch.randint(61, (2, 20))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        model.save_pretrained(kind)
        expected, ours = model(tokens, use_cache=False).logits, load_fla(kind)(tokens)
    found[kind] = [float((ours - expected).abs().max()), float(expected.std())]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_interpreted_kernels_give_the_same_logits(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "FLA_CACHE_RESULTS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRET], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"GLA", "DeltaNet", "GatedDeltaNet"}
    for kind, (difference, spread) in found.items():
        assert difference < 1e-4 and spread > 0.3, kind
