"""Folders of `transformers`: what is saved is loaded, bit for bit, and what is missing starts as it starts here."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import scannable as sc
from scannable.baselines.gpt2 import GPT2BaselineConfig
from scannable.hf import ScannableCache, ScannableConfig, ScannableForCausalLM, ScannableModel
from scannable.storage.configuration import ConfigurationError
from scannable.storage.model_file import build_model

from small_hf import CONFIGS, EVERY, LM, prompt, small


def load(folder: Path, **options: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    assert isinstance(model, ScannableForCausalLM)
    return model


def assert_same_weights(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype and torch.equal(value, theirs[name]), name


def assert_same_answers(found: torch.Tensor, expected: torch.Tensor) -> None:
    """In float64. The weights are equal bit for bit; but a product may be summed in another order where a file's weights
    lie at other places of memory, which some processors do.
    """
    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_model_is_loaded_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = small(name)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).typed == EVERY[name]
    found = load(tmp_path)
    assert_same_weights(found, model)
    assert found.dtype == torch.float64
    assert_same_answers(found(prompt(2, 9)).logits, model(prompt(2, 9)).logits)
    bare = AutoModel.from_pretrained(tmp_path)
    assert isinstance(bare, ScannableModel)
    hidden = bare(prompt(2, 9)).last_hidden_state
    assert_same_answers(model.lm_head(hidden), model(prompt(2, 9)).logits)


def test_tools_find_the_sizes_that_they_look_for() -> None:
    psm = sc.TransformerPSMConfig(50, 24, 3, chunk_length=4, agg_layers=1, inf_layers=4, tie_weights=True)
    found = ScannableConfig(psm)
    assert (found.vocab_size, found.hidden_size, found.num_attention_heads, found.num_hidden_layers) == (50, 24, 3, 5)
    assert found.tie_word_embeddings
    stack = ScannableConfig(sc.LMConfig(50, ("gla", "attention"), 16, 2, positions=33))
    assert (stack.num_hidden_layers, stack.max_position_embeddings) == (2, 33) and not stack.tie_word_embeddings


@pytest.mark.parametrize("name", ["recent", "hybrid"])
def test_tied_weights_are_saved_once_and_stay_tied(name: str, tmp_path: Path) -> None:
    model = small(name)
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    found = load(tmp_path)
    assert found.get_output_embeddings().weight is found.get_input_embeddings().weight
    found.tie_weights()
    assert found.get_output_embeddings().weight is found.get_input_embeddings().weight
    assert_same_answers(found(prompt(1, 5)).logits, model(prompt(1, 5)).logits)


def test_shards_are_put_together(tmp_path: Path) -> None:
    model = small("hybrid")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for place in ("cpu", "auto"):
        assert_same_weights(load(tmp_path, device_map=place), model)


@pytest.mark.parametrize("name", EVERY)
def test_weights_are_loaded_in_the_type_that_is_asked_for(name: str, tmp_path: Path) -> None:
    model = small(name).float()
    model.save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float64):
        found = load(tmp_path, dtype=dtype)
        assert {weight.dtype for weight in found.parameters()} == {dtype}
        assert_same_weights(found, copy.deepcopy(model).to(dtype))


@pytest.mark.parametrize("name", CONFIGS)
def test_half_precision_generates_with_a_cache_what_it_does_without(name: str) -> None:
    model = small(name).to(torch.bfloat16)
    first = model.generate(prompt(1, 9), max_new_tokens=1, do_sample=False)
    assert first.shape == (1, 10)
    whole, cached = model(prompt(1, 9)).logits, model(prompt(1, 8), use_cache=True)
    last = model(prompt(1, 9)[:, 8:], past_key_values=cached.past_key_values).logits[:, -1]
    assert last.dtype == torch.bfloat16 and (last - whole[:, -1]).abs().max() < 0.2
    with torch.autocast("cpu", torch.bfloat16):
        assert small(name).float().generate(prompt(2, 5), max_new_tokens=5, do_sample=False).shape == (2, 10)


@pytest.mark.parametrize("name", EVERY)
def test_a_new_model_starts_as_the_library_starts_it(name: str) -> None:
    torch.manual_seed(3)
    own = build_model(EVERY[name])
    torch.manual_seed(3)
    assert_same_weights(ScannableForCausalLM(ScannableConfig(EVERY[name])).to_scannable(), own)


@pytest.mark.parametrize("name", EVERY)
def test_what_a_file_lacks_starts_as_the_library_starts_it(name: str, tmp_path: Path) -> None:
    """Everything is missing but one weight; without memory first, values from a new model then."""
    small(name).float().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    kept = next(key for key in weights if "norm" in key and key.endswith("weight"))
    # Of its own: older versions of safetensors read from the file itself, which is written anew here.
    changed = weights[kept] + 7
    save_file({kept: changed}, path, {"format": "pt"})
    torch.manual_seed(3)
    found = load(tmp_path)
    torch.manual_seed(3)
    expected = ScannableForCausalLM(ScannableConfig(EVERY[name])).state_dict()
    for key, value in found.state_dict().items():
        if key == kept:
            assert torch.equal(value, changed)
        elif not key.startswith("lm_head"):
            assert torch.equal(value, expected[key]), key
        elif not found.config.tie_word_embeddings and key.endswith("weight"):
            # From a new model of its own, so with other numbers of the same size.
            assert float(value.std()) == pytest.approx(float(expected[key].std()), rel=0.2)


def test_from_config_starts_like_the_class_itself() -> None:
    config = ScannableConfig(EVERY["hybrid"])
    torch.manual_seed(1)
    expected = ScannableForCausalLM(config)
    torch.manual_seed(1)
    assert_same_weights(AutoModelForCausalLM.from_config(config), expected)
    with torch.device("meta"):
        assert all(weight.is_meta for weight in ScannableForCausalLM(config).parameters())


def test_a_model_goes_back_into_the_library(tmp_path: Path) -> None:
    for name in CONFIGS:
        model = small(name)
        own = model.to_scannable()
        assert_same_answers(own(prompt(2, 9)), model(prompt(2, 9)).logits)
        assert all(mine is theirs for mine, theirs in zip(own.parameters(), model.parameters(), strict=True))
        sc.save_model(own, tmp_path / name)
        assert_same_answers(sc.load_model(tmp_path / name)(prompt(2, 9)), own(prompt(2, 9)))


# Without the import line.


def in_a_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


LOAD = """
import sys
from transformers import AutoModel, AutoModelForCausalLM
{1}
for auto in (AutoModelForCausalLM, AutoModel):
    print(type(auto.from_pretrained({0!r}, trust_remote_code=True)))
"""


@pytest.mark.slow
def test_remote_code_needs_no_import(tmp_path: Path) -> None:
    small("transformer-psm").save_pretrained(tmp_path)
    done = in_a_fresh_process(LOAD.format(str(tmp_path), ""))
    assert done.returncode == 0, done.stderr
    assert "scannable.hf.causal_lm.ScannableForCausalLM" in done.stdout
    assert "scannable.hf.model.ScannableModel" in done.stdout


@pytest.mark.slow
def test_remote_code_says_what_is_missing(tmp_path: Path) -> None:
    small("transformer-psm").save_pretrained(tmp_path)
    done = in_a_fresh_process(LOAD.format(str(tmp_path), "sys.modules['scannable'] = None"))
    assert done.returncode == 1
    assert "ImportError: this model needs the package scannable" in done.stderr
    assert "pip install 'scannable[hf]'" in done.stderr


@pytest.mark.slow
def test_without_transformers_weights_of_others_can_still_be_read() -> None:
    done = in_a_fresh_process(
        "import sys; sys.modules['transformers'] = None\n"
        "from scannable.hf.mamba_weights import load_mamba\n"
        "from scannable.hf.fla_weights import load_fla\n"
        "import scannable.hf\n"
        "try: scannable.hf.ScannableConfig\n"
        "except ImportError as error: print(error)"
    )
    assert "scannable.hf.ScannableConfig needs transformers" in done.stdout, done.stderr


# What is refused.


def test_an_unknown_kind_of_model_is_refused(tmp_path: Path) -> None:
    small("transformer-psm").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    written["network"]["kind"] = "os:system"
    path.write_text(json.dumps(written))
    with pytest.raises(ConfigurationError, match="network cannot be of the kind 'os:system'"):
        AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"PSMOptions, which is no configuration of a model; known: .*LMConfig"):
        ScannableConfig(EVERY["psm"].layers[0])


def test_what_contradicts_the_configuration_inside_is_refused(tmp_path: Path) -> None:
    model = small("transformer-psm")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"vocab_size=31 contradicts the TransformerPSMConfig inside, which has 29"):
        AutoModelForCausalLM.from_pretrained(tmp_path, vocab_size=31)
    with pytest.raises(NotImplementedError, match="the vocabulary of 29 tokens cannot become one of 31"):
        model.resize_token_embeddings(31)
    assert model.resize_token_embeddings(29) is model.get_input_embeddings()


def test_what_is_no_language_model_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"an output for each of its 29 tokens, this configuration out_size=3; AutoModel"
    ):
        ScannableForCausalLM(ScannableConfig(sc.LMConfig(**LM, layers=("gla",), out_size=3)))
    with pytest.raises(TypeError, match="a GPT2Baseline cannot be wrapped for transformers"):
        ScannableForCausalLM(ScannableConfig(GPT2BaselineConfig(vocab_size=5, width=8, heads=2)))
    with pytest.raises(ValueError, match="this ScannableConfig has no network"):
        ScannableForCausalLM(ScannableConfig())


def test_inputs_that_have_no_meaning_here_are_refused() -> None:
    model = small("transformer-psm")
    ids = prompt(2, 5)
    with pytest.raises(ValueError, match="input_ids, and no inputs_embeds"):
        model(inputs_embeds=torch.zeros(2, 5, 16))
    with pytest.raises(ValueError, match="output_hidden_states=True: a model here gives no hidden_states"):
        model(ids, output_hidden_states=True)
    with pytest.raises(ValueError, match=r"attention_mask has the shape \(2, 1, 5, 5\)"):
        model(ids, attention_mask=torch.ones(2, 1, 5, 5))
    with pytest.raises(ValueError, match=r"attention_mask has the shape \(2, 4\) for input_ids of \(2, 5\)"):
        model(ids, attention_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match="position_ids must count the tokens of each row from 0"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 2, 3]]))
    with pytest.raises(ValueError, match="cannot be read into a cache"):
        model(ids, position_ids=torch.tensor([[0, 1, 0, 1, 2]]), past_key_values=ScannableCache())
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="cannot be read into a cache"):
        model(ids, position_ids=torch.tensor([[5, 6, 0, 1, 2]]), past_key_values=cache)
