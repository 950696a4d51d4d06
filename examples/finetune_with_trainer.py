"""Fine-tune a model with the Trainer of transformers, and stream text from the result.

python examples/finetune_with_trainer.py [--model FOLDER] [--steps 120]

FOLDER is one that `scannable hf export` or `save_pretrained` wrote; without it a small hybrid of Mamba, a
prefix-scannable layer and attention starts from nothing. The text are modules of Python's standard library, in bytes.
"""

import argparse
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    TextStreamer,
    Trainer,
    TrainingArguments,
)

import scannable as sc
from scannable.hf import ScannableConfig, ScannableForCausalLM
from scannable.hf.tokenizer import fast_tokenizer
from scannable.models.layer_options import AttentionOptions, PSMOptions
from scannable.tasks.tokenizer import ByteTokenizer

LENGTH = 256


def new_model() -> ScannableForCausalLM:
    layers = ("mamba", PSMOptions(chunk_length=32, agg_layers=1, inf_layers=1), AttentionOptions(window=64))
    return ScannableForCausalLM(ScannableConfig(sc.LMConfig(257, layers, width=64, heads=2, tie_weights=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a model (default: a new one)")
    parser.add_argument("--steps", type=int, default=120, help="steps of training (default 120)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(arguments.model) if arguments.model else new_model()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model) if arguments.model else fast_tokenizer(ByteTokenizer())

    folder = Path(textwrap.__file__).parent
    text = "\n".join((folder / f"{name}.py").read_text() for name in ("textwrap", "random", "argparse", "heapq"))
    tokens = tokenizer(text).input_ids
    rows: Any = [{"input_ids": tokens[i : i + LENGTH]} for i in range(0, len(tokens) - LENGTH, LENGTH)]
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                out,
                max_steps=arguments.steps,
                per_device_train_batch_size=8,
                learning_rate=5e-3,
                lr_scheduler_type="cosine",
                logging_steps=20,
                report_to="none",
                use_cpu=not torch.cuda.is_available(),
            ),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
            train_dataset=rows[8:],
            eval_dataset=rows[:8],
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        print(f"validation loss {before:.3f}, then {trainer.evaluate()['eval_loss']:.3f}")
        trainer.save_model(f"{out}/tuned")
        tuned: Any = AutoModelForCausalLM.from_pretrained(f"{out}/tuned")
    prompt = tokenizer("def ", return_tensors="pt")
    written = tuned.generate(
        **prompt,
        max_new_tokens=200,
        do_sample=True,
        temperature=0.7,
        pad_token_id=tokenizer.pad_token_id,
        streamer=TextStreamer(tokenizer),
        return_dict_in_generate=True,
    )
    cache = written.past_key_values
    print(f"the stream behind {cache.get_seq_length()} tokens holds {cache.nbytes:,} bytes")


if __name__ == "__main__":
    main()
