"""Runs become folders of `transformers` and come back, bit for bit."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, pipeline
from transformers.generation.streamers import TextStreamer

import scannable as sc
import scannable.hf
from scannable.hf.exchange import export_run, import_folder, wrapped
from scannable.hf.tokenizer import fast_tokenizer
from scannable.storage.model_file import ModelFileError
from scannable.tasks.groups import GroupTask
from scannable.tasks.text import TextTask
from scannable.tasks.tokenizer import ByteTokenizer, load_tokenizer, train_bpe
from scannable.training.evaluation import evaluate
from scannable.training.loop import Run
from scannable.training.recipe import Curriculum, Evaluation, Recipe
from scannable.training.run_folder import load_trained

TEXT = "def main(x):\n    return x + 1  # né, 日本\n\n" * 200


@dataclass(frozen=True)
class Exported:
    run: Path
    folder: Path


def trained(folder: Path, task: Any, model: Any, **options: Any) -> Path:
    recipe = Recipe(
        model,
        task,
        steps=3,
        batch_tokens=64,
        curriculum=Curriculum((16,)),
        evaluation=Evaluation(every=3, samples=4),
        checkpoint_every=3,
        **options,
    )
    Run(recipe, folder, console=Console(quiet=True)).train()
    return folder


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    place = tmp_path_factory.mktemp(request.param)
    (place / "text.py").write_text(TEXT)
    size: dict[str, Any] = {"bpe_size": 280} if request.param == "bpe" else {}
    task = TextTask(str(place / "text.py"), request.param, cache=place / "cache", **size)
    if request.param == "bytes":
        model: Any = sc.TransformerPSMConfig(
            task.vocab_size, 16, heads=2, chunk_length=8, agg_layers=1, inf_layers=1, tie_weights=True
        )
    else:
        model = sc.LMConfig(task.vocab_size, ("mamba", "attention"), width=16, heads=2, positions=64)
    run = trained(place / "run", task, model, ema=0.5)
    export_run(run, place / "exported")
    return Exported(run, place / "exported")


def test_a_folder_is_the_run(exported: Exported) -> None:
    own = load_trained(exported.run)
    model: Any = AutoModelForCausalLM.from_pretrained(exported.folder)
    tokenizer = AutoTokenizer.from_pretrained(exported.folder)
    text = "def né(日):"
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert ids[0].tolist() == own.recipe.task.encode(text)
    assert torch.equal(model(ids).logits, own.model(ids))
    assert model.generation_config.eos_token_id == own.recipe.task.loaded_tokenizer.end
    expected = [int(t) for t in sc.generate(own.model, ids, max_new_tokens=20, temperature=0)]
    found = model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :].tolist()
    assert found == expected[: len(found)]
    assert tokenizer.decode(found, skip_special_tokens=True) == own.recipe.task.decode(found)


def test_the_card_holds_what_was_measured(exported: Exported) -> None:
    card = (exported.folder / "README.md").read_text()
    result = json.loads((exported.run / "result.json").read_text())
    (score,) = result["test"]
    assert f"| 16 | {score['samples']:,} | {score['loss']:.4f} | " in card
    assert f"{score['bits_per_byte']:.4f}" in card and f"{result['parameters']:,} parameters" in card
    assert "pipeline_tag: text-generation" in card and "import scannable.hf" in card


def test_a_folder_goes_back_bit_for_bit(exported: Exported, tmp_path: Path) -> None:
    said = import_folder(exported.folder, tmp_path / "again")
    assert said.endswith("a run at step 3")
    before, after = load_trained(exported.run), load_trained(tmp_path / "again")
    assert (after.recipe, after.step) == (before.recipe, before.step)
    mine, theirs = before.model.state_dict(), after.model.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (tmp_path / "again/result.json").read_bytes() == (exported.run / "result.json").read_bytes()
    scores = [evaluate(one.model, one.recipe.task, "test", 16, 4, batch_tokens=64) for one in (before, after)]
    assert scores[0] == scores[1]
    export_run(tmp_path / "again", tmp_path / "exported")
    for path in exported.folder.iterdir():
        if path.name != "README.md":
            assert (tmp_path / "exported" / path.name).read_bytes() == path.read_bytes(), path.name


def test_other_weights_have_no_result(exported: Exported, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(exported.folder)
    with torch.no_grad():
        model.get_input_embeddings().weight[0, 0] += 1
    tuned = tmp_path / "tuned"
    model.save_pretrained(tuned)
    AutoTokenizer.from_pretrained(exported.folder).save_pretrained(tuned)
    assert import_folder(tuned, tmp_path / "model").endswith("a model, for scannable.load_model")
    own = sc.load_model(tmp_path / "model")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(own(ids), model(ids).logits)
    (tuned / "scannable_run.json").write_bytes((exported.folder / "scannable_run.json").read_bytes())
    assert "so it has no result" in import_folder(tuned, tmp_path / "run")
    assert not (tmp_path / "run/result.json").exists()
    assert torch.equal(load_trained(tmp_path / "run").model(ids), model(ids).logits)


def test_a_pipeline_writes_text(exported: Exported, capsys: pytest.CaptureFixture[str]) -> None:
    write: Any = pipeline("text-generation", str(exported.folder), batch_size=2)
    prompts = ["def main", "x"]
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, "return_full_text": False}
    together = [answer[0]["generated_text"] for answer in write(prompts, **options)]
    assert together == [write(one, **options)[0]["generated_text"] for one in prompts]
    tokenizer = write.tokenizer
    assert tokenizer is not None
    write.model.generate(
        **tokenizer("def main", return_tensors="pt"),
        do_sample=False,
        max_new_tokens=8,
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
    )
    assert capsys.readouterr().out.strip() == together[0].strip()


def test_a_run_of_numbers_has_no_tokenizer(tmp_path: Path) -> None:
    task = GroupTask("S3")
    run = trained(tmp_path / "run", task, sc.LMConfig(task.vocab_size, ("gla",), width=16, heads=2))
    export_run(run, tmp_path / "out")
    assert not (tmp_path / "out/tokenizer.json").exists()
    assert "its tokens are numbers" in (tmp_path / "out/README.md").read_text()
    import_folder(tmp_path / "out", tmp_path / "again")
    assert load_trained(tmp_path / "again").recipe == load_trained(run).recipe


def test_what_is_in_the_way_or_no_model_of_ours_is_refused(exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"is there already; give a new folder"):
        export_run(exported.run, exported.folder)
    with pytest.raises(ModelFileError, match=r"config.json is missing"):
        import_folder(tmp_path, tmp_path / "out")
    GPT2LMHeadModel(GPT2Config(vocab_size=5, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ModelFileError, match=r"holds a GPT2LMHeadModel, no ScannableForCausalLM"):
        import_folder(tmp_path / "gpt2", tmp_path / "out")
    model: Any = AutoModelForCausalLM.from_pretrained(exported.folder)
    model.save_pretrained(tmp_path / "damaged")
    (tmp_path / "damaged/scannable_run.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"scannable_run.json cannot be read"):
        import_folder(tmp_path / "damaged", tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_wrapped_is_the_model(tmp_path: Path) -> None:
    own = sc.LM(sc.LMConfig(29, ("gla",), width=16, heads=2, tie_weights=True)).double().eval()
    ids = torch.randint(29, (2, 9))
    assert torch.equal(wrapped(own)(ids).logits, own(ids))


# Tokenizers.


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_bytes_are_the_same_tokens(text: str) -> None:
    own, fast = ByteTokenizer(), FAST
    found = fast(text).input_ids
    assert found == own.encode(text).tolist()
    assert fast.decode(found) == own.decode(found) == text


FAST: Any = fast_tokenizer(ByteTokenizer())


def test_a_tokenizer_pads_on_the_left_and_knows_the_end() -> None:
    both = FAST(["abc", "d"], padding=True)
    assert both.input_ids == [[97, 98, 99], [256, 256, 100]] and both.attention_mask == [[1, 1, 1], [0, 0, 1]]
    assert FAST("a" + FAST.eos_token).input_ids == [97, 256] and sorted(both.keys()) == ["attention_mask", "input_ids"]
    assert FAST.decode([97, 256, 98], skip_special_tokens=True) == "ab"


def test_bpe_gives_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(train_bpe([TEXT], 300))
    own = load_tokenizer(tmp_path)
    fast = fast_tokenizer(own, 64)
    for text in ("def main(x):", "  né 日本\n", "", "returned"):
        assert fast(text).input_ids == own.encode(text).tolist()
        assert fast.decode(own.encode(text).tolist()) == text
    assert fast.model_max_length == 64 and len(fast) == own.vocab_size


def test_safetensors_alone_are_read(exported: Exported, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(exported.folder)
    model.save_pretrained(tmp_path / "one")
    weights = load_file(tmp_path / "one/model.safetensors")
    (tmp_path / "one/model.safetensors").unlink()
    torch.save(weights, tmp_path / "one/pytorch_model.bin")
    with pytest.raises(OSError, match=r"model.safetensors"):
        import_folder(tmp_path / "one", tmp_path / "out")
    save_file(weights, tmp_path / "one/model.safetensors", {"format": "pt"})
    import_folder(tmp_path / "one", tmp_path / "out")
