"""`Trainer`, PEFT and lm-eval, as people use them."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening, Trainer, TrainingArguments

import scannable as sc
from scannable.hf import ScannableForCausalLM
from scannable.hf.tokenizer import fast_tokenizer
from scannable.tasks.tokenizer import ByteTokenizer

from small_hf import CONFIGS, left_padded, prompt, small

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import peft

ROWS = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in prompt(24, 12)]


def trainer(model: Any, folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "max_steps": 6, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "report_to": "none", "save_steps": 3,
        "logging_steps": 1, "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "seed": 3,
    }  # fmt: skip
    return Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **{**settings, **options}),
        train_dataset=ROWS,  # pyright: ignore[reportArgumentType]
        eval_dataset=ROWS[:4],  # pyright: ignore[reportArgumentType]
    )


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def assert_equal_weights(found: torch.nn.Module, expected: torch.nn.Module, tolerance: float = 0) -> None:
    for (name, mine), theirs in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert (mine - theirs).abs().max() <= tolerance, name


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_is_ours_whatever_the_padding(name: str) -> None:
    model = small(name)
    rows = [prompt(1, n, n)[0] for n in (9, 4)]
    ids, mask = left_padded(rows)
    labels = ids.where(mask.bool(), -100)
    own: Any = model.to_scannable()
    # transformers computes a loss in float32, whatever the model's type is.
    parts = [own.loss(row[None, :-1], row[None, 1:]) * (len(row) - 1) for row in rows]
    expected = torch.stack(parts).sum() / sum(len(row) - 1 for row in rows)
    for tokens, which, targets in ((ids, mask, labels), (ids.flip(0), mask.flip(0), labels.flip(0))):
        assert model(tokens, attention_mask=which, labels=targets).loss.item() == pytest.approx(
            expected.item(), abs=1e-5
        )
    loss, weights = model(ids, attention_mask=mask, labels=labels).loss, list(model.parameters())
    gradient, theirs = (torch.autograd.grad(one, weights, materialize_grads=True) for one in (loss, expected))
    assert max(float((a - b).abs().max()) for a, b in zip(gradient, theirs, strict=True)) < 1e-5


def test_documents_that_a_collator_packs_do_not_see_each_other() -> None:
    for name in CONFIGS:
        model = small(name)
        rows = [prompt(1, n, n)[0] for n in (9, 4, 1, 6)]
        packed: Any = DataCollatorWithFlattening()([{"input_ids": row.tolist()} for row in rows])
        assert isinstance(packed, dict) and packed["input_ids"].shape == (1, 20)
        found = model(**packed)
        expected = torch.cat([model(row[None]).logits[0] for row in rows])
        assert (found.logits[0] - expected).abs().max() < 1e-9 and found.past_key_values is None
        targets = torch.cat([torch.cat((row[1:], row.new_tensor([-100]))) for row in rows])
        assert found.loss.item() == pytest.approx(functional.cross_entropy(expected, targets).item(), abs=1e-5)


def test_accumulation_and_checkpointing_change_nothing(tmp_path: Path) -> None:
    for name in ("transformer-psm", "hybrid"):
        start = small(name)
        models = [copy.deepcopy(start) for _ in range(3)]
        plain, accumulated, recomputed = (
            trainer(model, tmp_path / str(i), save_steps=100, max_steps=4, **options)
            for i, (model, options) in enumerate(
                zip(
                    models,
                    (
                        {"per_device_train_batch_size": 4},
                        {"gradient_accumulation_steps": 2},
                        {"per_device_train_batch_size": 4, "gradient_checkpointing": True},
                    ),
                    strict=True,
                )
            )
        )
        for one in (plain, accumulated, recomputed):
            one.train()
        assert models[2].model.network.checkpoint and not models[0].model.network.checkpoint
        assert losses(plain)[-1] < losses(plain)[0]
        assert_equal_weights(models[1], models[0], 1e-6)
        assert_equal_weights(models[2], models[0], 1e-9)
        score = plain.evaluate()["eval_loss"]
        tokens = torch.tensor([row["input_ids"] for row in ROWS[:4]])
        own: Any = models[0].eval().to_scannable()
        assert score == pytest.approx(own.loss(tokens[:, :-1], tokens[:, 1:]).item(), abs=1e-6)


def test_a_run_that_is_resumed_is_the_run(tmp_path: Path) -> None:
    whole = trainer(small("hybrid").float(), tmp_path / "whole")
    whole.train()
    other = trainer(small("hybrid", seed=9).float(), tmp_path / "other")
    other.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-3"))
    assert other.state.global_step == 6 and losses(other) == losses(whole)
    assert_equal_weights(other.model, whole.model)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/checkpoint-6")
    assert_equal_weights(back, whole.model)


@pytest.mark.filterwarnings("ignore")
def test_lora_trains_saves_loads_and_merges(tmp_path: Path) -> None:
    model = small("hybrid").float()
    before = copy.deepcopy(model)
    tuned = peft.get_peft_model(
        model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2, modules_to_save=["embedding"])
    )
    adapted = {name for name, module in tuned.named_modules() if hasattr(module, "lora_A")}
    assert any("mixer.into" in name for name in adapted) and any("agg.transformer" in name for name in adapted)
    assert not any("lm_head" in name for name in adapted)
    trainer(tuned, tmp_path / "run", gradient_checkpointing=True).train()
    ids = prompt(2, 9)
    tuned.eval()
    trained = tuned(input_ids=ids).logits
    assert (trained - before(ids).logits).abs().max() > 1e-3
    tuned.save_pretrained(str(tmp_path / "adapter"))
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(before), tmp_path / "adapter").eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, trained)
    # Decoding goes through the adapters too, token by token.
    greedy: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
    written = tuned.generate(input_ids=ids, **greedy)
    assert torch.equal(written, tuned.generate(input_ids=ids, use_cache=False, **greedy))
    merged = loaded.merge_and_unload()
    assert isinstance(merged, ScannableForCausalLM)
    torch.testing.assert_close(merged(ids).logits, trained, rtol=1e-4, atol=1e-4)


# lm-eval.

TASK = """
task: little
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
QUESTIONS = [
    {"question": "def ma", "choices": ["in", "xyz"], "answer": 0},
    {"question": "retu", "choices": ["q", "rn x"], "answer": 1},
    {"question": "a", "choices": ["bcdefgh", "b", "né"], "answer": 1},
]


def log_likelihood(model: Any, context: list[int], continuation: list[int]) -> float:
    tokens = torch.tensor([context + continuation])
    logs = model(tokens[:, :-1])[0].double().log_softmax(-1)
    return float(logs[len(context) - 1 :].gather(1, tokens[0, len(context) :, None]).sum())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_log_likelihoods_of_lm_eval_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import lm_eval
    from lm_eval.models import huggingface
    from lm_eval.tasks import TaskManager

    config = sc.LMConfig(257, ("mamba", "psm", "attention"), width=16, heads=2)
    torch.manual_seed(0)
    from scannable.hf import ScannableConfig

    model = ScannableForCausalLM(ScannableConfig(config)).eval()
    (tmp_path / "little.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tmp_path / "little.yaml").write_text(TASK.format(file=tmp_path / "little.jsonl"))
    wrap: Any = huggingface.HFLM
    judge = wrap(
        pretrained=model, tokenizer=fast_tokenizer(ByteTokenizer()), max_length=512, batch_size=2, device="cpu"
    )
    evaluate: Any = lm_eval.simple_evaluate
    found = evaluate(
        judge, tasks=["little"], task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False)
    )
    own = model.to_scannable()
    samples = sorted(found["samples"]["little"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(QUESTIONS)
    for sample, question in zip(samples, QUESTIONS, strict=True):
        for (score, _), choice in zip(sample["filtered_resps"], question["choices"], strict=True):
            expected = log_likelihood(own, list(question["question"].encode()), list(choice.encode()))
            assert float(score) == pytest.approx(expected, abs=1e-4)
