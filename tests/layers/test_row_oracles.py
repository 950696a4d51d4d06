"""mLSTM and log-linear attention equal code that others wrote, which is more than a kernel: see `test_oracles.py`."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fla.ops.log_linear_attn.naive import naive_log_linear_attn
    from transformers.models.xlstm import modeling_xlstm

from scannable.layers.affine.recurrence import Mode
from scannable.layers.log_linear import log_linear_chunks
from scannable.layers.mlstm import normalised, stabilised
from scannable.scan import Roots

SIZES = [(1, 3, 8, 16), (7, 1, 16, 8), (63, 3, 8, 8), (64, 1, 64, 32), (65, 3, 16, 8), (200, 1, 8, 16)]
HEADS = 2


def ours(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c: Tensor, n: Tensor, m: Tensor, mode: Mode
) -> tuple[Tensor, Tensor, Tensor]:
    """In the layout of xlstm, (b, h, n, ...): outputs, and the last C and N without their stabiliser."""
    q, k, v, i, f = (x.transpose(1, 2) for x in (q * q.shape[-1] ** -0.5, k, v, i, f))
    recurrence, stabiliser = stabilised(q, k, v, i, functional.logsigmoid(f), m[..., 0])
    outputs, memory = recurrence.run(torch.cat((c, n[..., None]), -1), mode)
    memory = memory * stabiliser[:, -1].exp()[..., None, None]
    return normalised(outputs, stabiliser, 0.0).transpose(1, 2), memory[..., :-1], memory[..., -1]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(("length", "b", "k", "v"), SIZES)
def test_mlstm_is_that_of_xlstm(length: int, b: int, k: int, v: int, given: bool) -> None:
    torch.manual_seed(0)
    shapes = [(length, k), (length, k), (length, v), (length,), (length,)]
    inputs = [torch.randn(b, HEADS, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    inputs[3].data.mul_(5)  # input gates from e^-15 to e^15
    start = [torch.randn(b, HEADS, *shape, dtype=torch.float64) * given for shape in ((k, v), (k,), (1,))]
    functions: list[tuple[Any, dict[str, Any]]] = [
        (modeling_xlstm.mlstm_recurrent_sequence_native, {"dtype_state": torch.float64})
    ]
    if length == 64:  # whole chunks only
        functions.append((modeling_xlstm.mlstm_chunkwise_native_autograd, {"chunk_size": 32}))
    for function, extra in functions:
        names = ("query", "key", "value", "igate", "fgate", "c_initial", "n_initial", "m_initial")
        h, (c, n, m) = function(
            **dict(zip(names, (*inputs, *start), strict=True)), return_last_states=True, eps=0.0, **extra
        )
        scale = m[..., None].exp()
        expected = (h, c * scale, n * scale[..., 0])
        weight = torch.randn(h.shape, dtype=torch.float64)
        grads = torch.autograd.grad((h * weight).sum(), inputs, retain_graph=True)
        modes: tuple[Mode, ...] = ("chunkwise", "scan", "step")
        for mode in modes:
            found = ours(*inputs, *start, mode=mode)
            own = torch.autograd.grad((found[0] * weight).sum(), inputs)
            for x, y in zip((*found, *own), (*expected, *grads), strict=True):
                assert float((x - y).detach().abs().max()) <= 1e-9 * max(1.0, float(y.detach().abs().max()))


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize(("length", "b", "k", "v"), SIZES)
def test_log_linear_attention_is_that_of_fla(length: int, b: int, k: int, v: int, chunk: int) -> None:
    torch.manual_seed(0)
    levels = 9
    shapes = [(length, HEADS, k), (length, HEADS, k), (length, HEADS, v), (length, HEADS), (length, HEADS, levels)]
    inputs = [torch.randn(b, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    q, key, value, g, weights = inputs
    expected = naive_log_linear_attn(q, key, value, -g.exp(), weights)
    found, after = log_linear_chunks(q, key, value, -g.exp(), weights, Roots(), chunk)
    assert after.position == length // chunk
    weight = torch.randn(expected.shape, dtype=torch.float64)
    own = torch.autograd.grad((found * weight).sum(), inputs, materialize_grads=True)
    grads = torch.autograd.grad((expected * weight).sum(), inputs, materialize_grads=True)
    for x, y in zip((found, *own), (expected, *grads), strict=True):
        assert float((x - y).detach().abs().max()) <= 1e-9 * max(1.0, float(y.detach().abs().max()))
