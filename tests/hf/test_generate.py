"""`generate` with the stream as its cache is `generate` without a cache, and each row is what it would be alone."""

import copy
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

import scannable as sc
from scannable.hf import ScannableCache, ScannableConfig, ScannableForCausalLM

from small_hf import CONFIGS, ROWS, left_padded, prompt, small

GREEDY: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
KEEP: dict[str, Any] = {"return_dict_in_generate": True, "output_logits": True}
LENGTHS = (7, 1, 4)
NEW_ONES = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.10"), reason="generate took all tokens again, and failed otherwise"
)


def logits_of(output: Any) -> Tensor:
    return torch.stack(output.logits, 1)


def assert_same(found: Any, expected: Any) -> None:
    """Tokens exactly, logits to 1e-9."""
    assert torch.equal(found.sequences, expected.sequences)
    assert (logits_of(found) - logits_of(expected)).abs().max() < 1e-9


@pytest.mark.parametrize("name", ROWS)
def test_greedy_of_every_layer_is_the_same_without_a_cache(name: str) -> None:
    model = small(name)
    ids, mask = left_padded([prompt(1, length, length)[0] for length in (5, 2)])
    kept = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, **KEEP)
    assert_same(
        kept, model.generate(ids, attention_mask=mask, use_cache=False, max_new_tokens=5, do_sample=False, **KEEP)
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_the_same_without_a_cache_and_for_each_row_alone(name: str) -> None:
    model = small(name)
    prompts = [prompt(1, length, length)[0] for length in LENGTHS]
    ids, mask = left_padded(prompts)
    kept = model.generate(ids, attention_mask=mask, **GREEDY, **KEEP)
    assert_same(kept, model.generate(ids, attention_mask=mask, use_cache=False, **GREEDY, **KEEP))
    for row, one in enumerate(prompts):
        alone = model.generate(one[None], **GREEDY, **KEEP)
        assert torch.equal(kept.sequences[row, max(LENGTHS) :], alone.sequences[0, len(one) :])
        assert (logits_of(kept)[row] - logits_of(alone)[0]).abs().max() < 1e-9


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_what_the_library_generates(name: str) -> None:
    model = small(name)
    ids = prompt(2, 7)
    own = list(sc.generate(model.to_scannable(), ids, max_new_tokens=9, temperature=0))
    assert torch.equal(model.generate(ids, **GREEDY)[:, 7:], torch.stack(own, 1))


@pytest.mark.parametrize("name", CONFIGS)
def test_sampling_draws_the_same_tokens(name: str) -> None:
    model = small(name)
    ids, mask = left_padded([prompt(1, length, length)[0] for length in LENGTHS])
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        drawn.append(
            model.generate(
                ids, attention_mask=mask, do_sample=True, top_k=9, top_p=0.95, max_new_tokens=9, use_cache=use_cache,
                num_return_sequences=2, **KEEP,
            )
        )  # fmt: skip
    assert_same(*drawn)
    assert len({tuple(row.tolist()) for row in drawn[0].sequences}) > len(LENGTHS)


@pytest.mark.parametrize("name", CONFIGS)
def test_beam_search_is_the_same_without_a_cache_and_for_each_row_alone(name: str) -> None:
    model = small(name)
    prompts = [prompt(1, length, length)[0] for length in LENGTHS]
    ids, mask = left_padded(prompts)
    beams: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6, **GREEDY}
    scored: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
    kept = model.generate(ids, attention_mask=mask, **beams, **scored)
    without = model.generate(ids, attention_mask=mask, use_cache=False, **beams, **scored)
    assert torch.equal(kept.sequences, without.sequences)
    assert (kept.sequences_scores - without.sequences_scores).abs().max() < 1e-5  # they are kept in float32
    for row, one in enumerate(prompts):
        alone = model.generate(one[None], **beams)
        assert torch.equal(kept.sequences[2 * row : 2 * row + 2, max(LENGTHS) :], alone[:, len(one) :])


def test_rows_that_have_stopped_do_not_disturb_the_others() -> None:
    model = small("transformer-psm")
    ids, mask = left_padded([prompt(1, length, length)[0] for length in LENGTHS])
    whole = model.generate(ids, attention_mask=mask, **GREEDY)
    stop = int(whole[1, 10])
    found = model.generate(ids, attention_mask=mask, eos_token_id=stop, **GREEDY)
    for row, expected in enumerate(whole[:, max(LENGTHS) :].tolist()):
        end = expected.index(stop) + 1 if stop in expected else len(expected)
        written = found[row, max(LENGTHS) :].tolist()
        assert written[:end] == expected[: min(end, len(written))]
        assert not any(written[end:])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("again", ["all tokens", pytest.param("the new ones", marks=NEW_ONES)])
def test_a_returned_cache_goes_on(name: str, again: str) -> None:
    """As a chat does: the answer and a next question follow, in rows of different lengths."""
    model = small(name)
    ids, mask = left_padded([prompt(1, length, length)[0] for length in LENGTHS])
    first = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    more, mask_more = left_padded([prompt(1, length, length + 50)[0] for length in (3, 5, 1)])
    ids = torch.cat((first.sequences, more), 1)
    mask = torch.cat((mask, torch.ones(3, 5, dtype=torch.long), mask_more), 1)
    expected = model.generate(ids, attention_mask=mask, **GREEDY, **KEEP)
    cache = first.past_key_values
    assert isinstance(cache, ScannableCache) and cache.get_seq_length() == max(LENGTHS) + 4
    given = ids if again == "all tokens" else ids[:, cache.get_seq_length() :]
    found = model.generate(given, attention_mask=mask, past_key_values=copy.deepcopy(cache), **GREEDY, **KEEP)
    assert torch.equal(found.sequences[:, -9:], expected.sequences[:, -9:])
    assert (logits_of(found) - logits_of(expected)).abs().max() < 1e-9
    assert cache.get_seq_length() == max(LENGTHS) + 4


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prefix_is_read_once_for_many(name: str) -> None:
    model = small(name)
    prefix, tails = prompt(1, 9), prompt(3, 4, 1)
    cache = ScannableCache()
    model(prefix, past_key_values=cache)
    for tail in tails:
        whole = torch.cat((prefix, tail[None]), 1)
        found = model.generate(whole, past_key_values=copy.deepcopy(cache), **GREEDY)
        assert torch.equal(found, model.generate(whole, **GREEDY))


def test_beams_go_on_from_a_cache_that_was_repeated() -> None:
    model = small("hybrid")
    ids = prompt(2, 9)
    cache = ScannableCache()
    model(ids[:, :6], past_key_values=cache)
    unrepeated = copy.deepcopy(cache)
    with pytest.raises(ValueError, match=r"holds 2 rows, the input has 6.*batch_repeat_interleave"):
        model.generate(ids, past_key_values=unrepeated, num_beams=3, **GREEDY)
    cache.batch_repeat_interleave(3)
    expected = model.generate(ids, num_beams=3, **GREEDY)
    assert torch.equal(model.generate(ids, past_key_values=cache, num_beams=3, **GREEDY), expected)
    assert unrepeated.get_seq_length() == 6 and unrepeated.state.positions == (6, 6)


@pytest.mark.parametrize("piece", [1, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_prompt_in_pieces_is_the_prompt(name: str, piece: int) -> None:
    model = small(name)
    ids, mask = left_padded([prompt(1, length, length)[0] for length in LENGTHS])
    expected = model.generate(ids, attention_mask=mask, **GREEDY, **KEEP)
    assert_same(model.generate(ids, attention_mask=mask, prefill_chunk_size=piece, **GREEDY, **KEEP), expected)


def repetitive() -> Tensor:
    """A prompt in which what follows can be looked up, and is partly wrong."""
    return prompt(1, 5).repeat(1, 8)[:, :37]


@pytest.mark.parametrize("name", CONFIGS)
def test_prompt_lookup_changes_no_token(name: str) -> None:
    model = small(name)
    # Without an end some versions of transformers fail; this one no token is.
    model.generation_config.eos_token_id = 1000
    expected = model.generate(repetitive(), max_new_tokens=24, do_sample=False, **KEEP)
    found = model.generate(repetitive(), max_new_tokens=24, do_sample=False, prompt_lookup_num_tokens=4, **KEEP)
    assert_same(found, expected)
    assert found.past_key_values.get_seq_length() == 37 + 23


@pytest.mark.parametrize("name", CONFIGS)
def test_an_assistant_changes_no_token(name: str) -> None:
    """One that is right at times: the same model with noise on its weights."""
    model, assistant = small(name), small(name)
    with torch.no_grad():
        for weight in assistant.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    expected = model.generate(repetitive(), max_new_tokens=24, do_sample=False, **KEEP)
    found = model.generate(repetitive(), max_new_tokens=24, do_sample=False, assistant_model=assistant, **KEEP)
    assert_same(found, expected)


class Heard(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_a_streamer_hears_every_token() -> None:
    model, heard = small("hybrid"), Heard()
    found = model.generate(prompt(1, 5), streamer=heard, **GREEDY)
    assert heard.tokens == found[0].tolist() and heard.ended


@pytest.mark.slow
@pytest.mark.usefixtures("shapes_unchecked")
def test_the_cache_of_ten_thousand_tokens_holds_o_of_log_n_bytes() -> None:
    width, c = 8, 32
    config = sc.TransformerPSMConfig(vocab_size=29, width=width, heads=1, chunk_length=c, agg_layers=1, inf_layers=1)
    model: Any = ScannableForCausalLM(ScannableConfig(config)).eval()
    found = model.generate(prompt(1, 5), max_new_tokens=10_000, do_sample=False, return_dict_in_generate=True)
    cache = found.past_key_values
    assert found.sequences.shape == (1, 10_005) and cache.state.position == 10_004
    assert cache.nbytes == model.to_scannable().state_nbytes(10_004)
    # A root and a fold for each set bit of the 312 chunks, the chunk in progress, and what Inf keeps of two chunks.
    assert cache.nbytes <= (2 * (10_004 // c).bit_length() + 1 + 4) * c * width * 4


# What is refused.


def test_a_cache_of_others_is_refused() -> None:
    model = small("transformer-psm")
    with pytest.raises(TypeError, match=r"past_key_values is a DynamicCache.*scannable.hf.ScannableCache"):
        model(prompt(1, 5), past_key_values=DynamicCache())
    with pytest.raises(TypeError, match=r"past_key_values is a DynamicCache"):
        model.generate(prompt(1, 5), past_key_values=DynamicCache(), **GREEDY)


def test_a_cache_of_another_batch_or_model_is_refused_and_stays_as_it_was() -> None:
    model, cache = small("transformer-psm"), ScannableCache()
    model(prompt(2, 5), past_key_values=cache)
    with pytest.raises(ValueError, match=r"holds 2 rows, the input has 3"):
        model(prompt(3, 5), past_key_values=cache)
    with pytest.raises((ValueError, TypeError), match=r"LM goes on from a LMState"):
        small("hybrid")(prompt(2, 5), past_key_values=cache)
    assert cache.get_seq_length() == 5
    expected = model(torch.cat((prompt(2, 5), prompt(2, 3, 1)), 1)).logits[:, 5:]
    assert (model(prompt(2, 3, 1), past_key_values=cache).logits - expected).abs().max() < 1e-9


def test_kinds_of_caches_that_do_not_exist_here_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cache_implementation='static'.*one kind of cache"):
        small("transformer-psm").generate(prompt(1, 5), cache_implementation="static", **GREEDY)


def test_no_new_tokens_are_refused() -> None:
    model, cache = small("transformer-psm"), ScannableCache()
    model(prompt(1, 12), past_key_values=cache)
    with pytest.raises(ValueError, match=r"no new tokens behind the 12 columns.*attention_mask of all columns"):
        model(prompt(1, 6)[:, 6:], past_key_values=cache)


def test_batches_in_pages_are_refused() -> None:
    model = small("transformer-psm")
    assert not hasattr(model, "init_continuous_batching")
    with pytest.raises(NotImplementedError, match="generate takes batches of prompts of any lengths"):
        model.generate_batch([[1, 2]])


def test_a_stream_that_does_not_hold_its_past_cannot_go_back() -> None:
    model, cache = small("transformer-psm"), ScannableCache()
    model(prompt(1, 6), past_key_values=cache)
    with pytest.raises(ValueError, match=r"cannot go back to 4 of its 6 columns.*activate_past_recording"):
        cache.crop(4)


def test_every_row_of_the_zoo_is_here() -> None:
    assert len(ROWS) >= 19
