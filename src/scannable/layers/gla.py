"""Gated linear attention (Yang et al. 2024, "Gated linear attention transformers")."""

from torch import Tensor, nn
from torch.nn import functional

from scannable.layers.affine.actions import Diagonal
from scannable.layers.affine.chunkwise import OuterProduct
from scannable.layers.affine.layer import HeadedLayer, Prepared
from scannable.layers.layer import head_size
from scannable.layers.recurrent import Parts
from scannable.nn.head_norm import HeadNorm
from scannable.nn.projection import projection


class GLA(HeadedLayer):
    """Each key coordinate has a decay of its own, set by the input.

        S_t = diag(α_t) S_(t-1) + k_t v_tᵀ     y_t = S_tᵀ q_t     α_t = σ(W₂ W₁ x_t + b)^(1/16)

    Keys are half as wide as values, W₁ has rank 16, heads are normalised and SiLU(W x_t) gates the output: as
    published. The table writes the state transposed, hence its 1 α_tᵀ. Weights of flash-linear-attention can be read
    (see `scannable.hf.fla_weights`).

    Args:
        key_size: of a head; None: half of width / heads.
        value_size: of a head; None: width / heads.
        eps: of the norm of each head.

    >>> layer = sc.zoo.GLA(width=16, heads=2)
    >>> y, state = layer.extend(torch.randn(1, 50, 16), layer.initial_state(1))
    >>> y.shape, state.position
    (torch.Size([1, 50, 16]), 50)
    """

    title = "GLA"
    action = "diagonal gate alpha_t"
    rank = 16
    temperature = 16.0

    def __init__(
        self,
        width: int,
        heads: int = 4,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        if key_size is None:
            key_size = max(1, head_size(width, heads) // 2)
        super().__init__(width, heads, key_size=key_size, value_size=value_size)
        keys, values = heads * self.key_size, heads * self.value_size
        self.sizes: tuple[int, ...] = (keys, keys, values, values)
        self.query_key_value_gate = projection(width, sum(self.sizes))
        self.decay = nn.Sequential(projection(width, self.rank), projection(self.rank, keys, bias=True))
        self.norm = HeadNorm(heads, self.value_size, eps)
        self.out = projection(values, width)

    def prepare(self, x: Tensor, parts: Parts, keep: Tensor | None) -> Prepared:
        q, k, v, gate = self.query_key_value_gate(x).split(self.sizes, -1)
        log_decay = functional.logsigmoid(self.decay(x)) / self.temperature
        q, k, v, log_decay = (self.split(part) for part in (q * self.key_size**-0.5, k, v, log_decay))
        return Prepared(OuterProduct(q, k, v, Diagonal(log_decay)), functional.silu(gate))

    def read_out(self, outputs: Tensor, gate: Tensor) -> Tensor:
        return self.out(self.norm(outputs, gate))
