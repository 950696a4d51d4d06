"""The models of flash-linear-attention on a CPU: their wiring as it is, with torch in the place of each Triton kernel.

The recurrences are flash-linear-attention's own reference functions, and so is RMSNorm. What has no reference there, a
convolution and two products with SiLU, is written out. Where a caller hands over what these do not take, it is a
TypeError, so nothing is left out silently.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fla.layers.delta_net
    import fla.layers.gated_deltanet
    import fla.layers.gla
    import fla.modules.activations
    import fla.modules.causal_conv1d.ops
    import fla.modules.mlp
    import fla.modules.norm.fused_norm_gate
    import fla.modules.norm.layernorm
    from fla.modules.norm.layernorm import rms_norm_ref
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla


def replace_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the models run here, until `monkeypatch` is undone."""
    for module, names, instead in (
        (fla.layers.gla, ("chunk_gla", "fused_recurrent_gla"), gla),
        (fla.layers.delta_net, ("chunk_delta_rule", "fused_recurrent_delta_rule"), delta_rule),
        (
            fla.layers.gated_deltanet,
            ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"),
            gated_delta_rule,
        ),
        (fla.layers.gated_deltanet, ("causal_conv1d",), causal_convolution),
        (fla.modules.causal_conv1d.ops, ("causal_conv1d",), causal_convolution),
        (fla.modules.norm.layernorm, ("rms_norm",), rms_norm),
        (fla.modules.norm.fused_norm_gate, ("rms_norm_gated",), gated_rms_norm),
        (fla.modules.mlp, ("swiglu",), swiglu),
        (fla.modules.mlp, ("swiglu_linear",), swiglu_linear),
    ):
        for name in names:
            monkeypatch.setattr(module, name, instead)
    monkeypatch.setitem(fla.modules.activations.ACT2FN, "swish", functional.silu)


def in_float64(function: Any, *args: Tensor, **options: Any) -> tuple[Tensor, None]:
    """A reference function that turns everything to float32, kept from doing so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch, "float32", torch.float64)
        outputs, state = function(*args, **options)
    assert outputs.dtype == torch.float64 and state is None
    return outputs, None


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gla(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    initial_state: None,
    output_final_state: bool,
    state_v_first: bool,
    cu_seqlens: None,
) -> tuple[Tensor, None]:
    assert initial_state is None and cu_seqlens is None and not output_final_state
    log_decay = gk if g is None else g
    assert log_decay is not None and (g is None or gk is None)
    return in_float64(naive_recurrent_gla, q, k, v, log_decay)


def delta_rule(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    initial_state: None,
    output_final_state: bool,
    cu_seqlens: None,
    use_qk_l2norm_in_kernel: bool,
) -> tuple[Tensor, None]:
    assert initial_state is None and cu_seqlens is None and not output_final_state and use_qk_l2norm_in_kernel
    q, k, v, beta = (x.transpose(1, 2) for x in (unit(q), unit(k), v, beta))
    outputs, _ = in_float64(delta_rule_recurrence, q, k, v, beta, output_final_state=False)
    return outputs.transpose(1, 2), None


def gated_delta_rule(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
    cu_seqlens: None,
    use_gate_in_kernel: bool,
    A_log: Tensor,  # noqa: N803, their name
    dt_bias: Tensor,
) -> tuple[Tensor, None]:
    assert initial_state is None and cu_seqlens is None and not output_final_state
    assert use_qk_l2norm_in_kernel and use_beta_sigmoid_in_kernel and use_gate_in_kernel
    beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    decay = -A_log.exp() * functional.softplus(g + dt_bias)
    return in_float64(naive_recurrent_gated_delta_rule, unit(q), unit(k), v, beta, decay)


def causal_convolution(
    *,
    x: Tensor,
    weight: Tensor,
    bias: None,
    activation: str | None,
    backend: str,
    residual: None = None,
    initial_state: None = None,
    output_final_state: bool = False,
    cu_seqlens: None = None,
    chunk_indices: None = None,
) -> tuple[Tensor, None]:
    assert bias is None and residual is None and initial_state is None and not output_final_state
    assert activation in ("silu", "swish") and cu_seqlens is None and chunk_indices is None
    past = functional.pad(x.mT, (weight.shape[-1] - 1, 0))
    return functional.silu(functional.conv1d(past, weight[:, None], groups=x.shape[-1])).mT, None


def rms_norm(
    *, x: Tensor, weight: Tensor, bias: None, residual: Tensor | None, eps: float, prenorm: bool, residual_in_fp32: bool
) -> Any:
    assert not residual_in_fp32
    return rms_norm_ref(x, weight, bias, residual, eps, prenorm)  # pyright: ignore[reportArgumentType]


def gated_rms_norm(
    *,
    x: Tensor,
    g: Tensor,
    weight: Tensor,
    bias: None,
    activation: str,
    residual: None,
    prenorm: bool,
    residual_in_fp32: bool,
    eps: float,
) -> Tensor:
    assert activation in ("silu", "swish") and residual is None and not prenorm
    return rms_norm_ref(x, weight, bias, eps=eps) * functional.silu(g)  # pyright: ignore


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y


def swiglu_linear(x: Tensor, y: Tensor, weight: Tensor, bias: None) -> Tensor:
    return functional.linear(swiglu(x, y), weight, bias)
