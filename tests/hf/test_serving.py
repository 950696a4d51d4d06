"""`transformers serve` gives what `generate` gives: its parts behind the web server, in a process of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import scannable as sc
from scannable.hf import ScannableConfig, ScannableForCausalLM
from scannable.hf.tokenizer import fast_tokenizer
from scannable.tasks.tokenizer import ByteTokenizer

SERVE = """
import asyncio, json, sys
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerationState

assert "scannable" not in sys.modules
manager = ModelManager(device="cpu", dtype="auto", trust_remote_code={trust}, model_timeout=-1)
model, tokenizer = manager.load_model_and_processor({folder!r} + "@main")
found = []
for continuous in (False, True):
    state = GenerationState(continuous_batching=continuous)
    modality = manager.get_model_modality(model, processor=tokenizer)
    pages = state.use_continuous_batching(model, modality)
    asked = state.get_manager("model", use_cb=pages).generate_non_streaming(
        model, tokenizer, tokenizer("def f(", return_tensors="pt"), model.generation_config, request_id="1"
    )
    _, length, ids = asyncio.run(asked)
    found.append([pages, length, ids.tolist()])
print(json.dumps(found))
"""


def serve(folder: Path, *, trust: bool) -> subprocess.CompletedProcess[str]:
    code = SERVE.format(folder=str(folder), trust=trust)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A model with its tokenizer, which writes eight tokens, the likeliest."""
    torch.manual_seed(0)
    model = ScannableForCausalLM(ScannableConfig(sc.LMConfig(vocab_size=257, width=16, heads=2, layers=("gla", "psm"))))
    model.generation_config.update(max_new_tokens=8, do_sample=False, pad_token_id=256)
    model.save_pretrained(tmp_path)
    fast_tokenizer(ByteTokenizer()).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_what_is_served_is_what_the_model_predicts(saved: Path) -> None:
    done = serve(saved, trust=True)
    assert done.returncode == 0, done.stderr
    model = ScannableForCausalLM.from_pretrained(saved).eval()
    ids = torch.tensor([list(b"def f(")])
    with torch.no_grad():
        for _ in range(8):
            ids = torch.cat((ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)), 1)
    # Continuous batching, which needs pages, is not taken even where it is asked for.
    assert json.loads(done.stdout.splitlines()[-1]) == [[False, 6, ids[0, 6:].tolist()]] * 2


@pytest.mark.slow
def test_without_trust_nothing_is_served(saved: Path) -> None:
    done = serve(saved, trust=False)
    assert done.returncode == 1
    assert "trust_remote_code=True" in done.stderr
