"""One new position of every row, with as little Python around the operations as can be.

The same as `Block.forward`, operation by operation. Calls of modules and views are a third of the time of a single
stream's step, so modules that are plain are not called: their operation is. One that was replaced, wrapped or has
hooks is called as ever.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from scannable.nn.block import Attention, Block
from scannable.nn.cache import Continuation
from scannable.nn.mlp import activated
from scannable.nn.rotary import Rotation, rotate


def can_decode(block: nn.Module) -> bool:
    """Whether a block is one of those below; others are called."""
    if type(block) is not Block or _has_hooks(block) or block.attention_convolution is not None:
        return False
    attention = block._modules["attention"]
    return type(attention) is Attention and not _has_hooks(attention)


def decode(
    block: Any,
    x: Float[Tensor, "b 1 d"],
    new: Continuation,
    layer: int,
    mask: Tensor | None,
    rotation: Rotation | None,
) -> Float[Tensor, "b 1 d"]:
    """The output of a block that does not train and has no convolutions."""
    parts = block._modules
    attention = parts["attention"]
    inside, gain, heads = attention._modules, attention.gain, attention.heads
    b, _, d = x.shape
    size = d // heads
    normed = apply_norm(parts["attention_norm"], x)
    both = apply_linear(inside["key_value"], normed).view(b, 2 * heads, 1, size)
    queries = apply_linear(inside["query"], normed).view(b, heads, 1, size)
    keys, values = both[:, :heads], both[:, heads:]
    if gain is not None:
        keys = F.rms_norm(keys, (size,))
        queries = F.rms_norm(queries, (size,)) * gain[:, None, None]
    if rotation is not None:
        keys, queries = rotate(keys, rotation), rotate(queries, rotation)
    keys, values = new.store(layer, keys, values)
    gathered = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    y = x + apply_linear(inside["out"], gathered.reshape(b, 1, d))
    inner = apply_linear(parts["mlp_in"], apply_norm(parts["mlp_norm"], y))
    return y + apply_linear(parts["mlp_out"], activated(inner, block.mlp))


def apply_linear(module: Any, x: Tensor) -> Tensor:
    """What the module returns, without calling it if it is a plain `nn.Linear`."""
    if type(module) is nn.Linear and not _has_hooks(module):
        own: dict[str, Any] = module._parameters
        return F.linear(x, own["weight"], own["bias"])
    return module(x)


def apply_norm(module: Any, x: Tensor) -> Tensor:
    """Likewise for a `nn.LayerNorm` or `nn.RMSNorm`."""
    kind = type(module)
    if kind is nn.LayerNorm and not _has_hooks(module):
        own = module._parameters
        return F.layer_norm(x, module.normalized_shape, own["weight"], own["bias"], module.eps)
    if kind is nn.RMSNorm and not _has_hooks(module):
        return F.rms_norm(x, module.normalized_shape, module._parameters["weight"], module.eps)
    return module(x)


def _has_hooks(module: Any) -> bool:
    own = module.__dict__
    return bool(own["_forward_hooks"] or own["_forward_pre_hooks"])
