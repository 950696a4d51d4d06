"""Linear time-invariant systems: E is the same at every t, so its powers can be computed once.

`DiagonalInvariant` (S4) is a convolution inside chunks and a short recurrence between them, all matrix products;
`DenseInvariant` (the linear dynamical system of the appendix) goes through sqrt(n) blocks side by side, with at most
24 sqrt(n) launches in forward and backward on every device.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor
from torch.nn import functional

from scannable.layers.affine.actions import Dense, Diagonal
from scannable.layers.affine.elementwise import elementwise_states
from scannable.layers.affine.monoid import Affine
from scannable.layers.affine.recurrence import Recurrence

CHUNK = 64


@dataclass(frozen=True)
class DiagonalInvariant(Recurrence):
    """s_t = exp(log_decay) ⊙ s_(t-1) + gain ⊙ x_t for N complex numbers a channel, y_t = 2 Re(weightᵀ s_t)."""

    x: Float[Tensor, "b n d"]
    log_decay: Complex[Tensor, "N d"]
    gain: Complex[Tensor, "N d"]
    weight: Complex[Tensor, "N d"]
    lengths: Int[Tensor, " b"] | None = None

    def updates(self) -> Affine:
        offset = self.gain * self.x[:, :, None]
        log_decay = self.log_decay.expand(offset.shape)
        if self.lengths is not None:
            kept = _kept(self.lengths, self.x.shape[1])[..., None, None]
            offset, log_decay = offset.where(kept, 0), log_decay.where(kept, 0)
        return Affine(Diagonal(log_decay), offset)

    def read(self, states: Tensor) -> Tensor:
        return 2 * (self.weight * states).sum(2).real

    def padded(self, keep: Bool[Tensor, "b n"]) -> "DiagonalInvariant":
        return replace(self, lengths=keep.sum(1))

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        b, n = self.x.shape[:2]
        c = min(CHUNK, 1 << (n - 1).bit_length())
        x = functional.pad(self.x, (0, 0, 0, -n % c)).unflatten(1, (-1, c))  # b r c d
        r = x.shape[1]
        columns = x.permute(3, 2, 0, 1).flatten(2)  # d c (b r)
        powers = (torch.arange(c + 1, device=x.device)[:, None, None] * self.log_decay).exp()  # c+1 N d

        # One convolution kernel a channel, written as a triangular matrix over the chunk.
        kernel = 2 * (powers[:-1] * (self.weight * self.gain)).sum(1).real  # c d
        lag = torch.arange(c, device=x.device)[:, None] - torch.arange(c, device=x.device)
        within = kernel[lag.clamp(min=0)].where((lag >= 0)[..., None], 0).permute(2, 0, 1) @ columns

        arrives = _real_rows((powers[:-1].flip(0) * self.gain).permute(2, 1, 0))  # d 2N c
        offset = torch.complex(*(arrives @ columns).chunk(2, 1)).unflatten(-1, (b, r)).permute(2, 3, 1, 0)  # b r N d
        after = elementwise_states(powers[-1].expand(offset.shape), offset, start)
        before = torch.cat((start[:, None], after), 1)  # of each chunk, and behind the last

        # 2 Re(w s) = 2 (Re w Re s - Im w Im s) = 2 [Re conj w, Im conj w] [Re s, Im s]
        read = 2 * _real_rows((powers[1:] * self.weight).conj().permute(2, 1, 0)).mT  # d c 2N
        held = _real_rows(before[:, :-1].permute(3, 2, 0, 1).flatten(2))  # d 2N (b r)
        outputs = (within + read @ held).unflatten(-1, (b, r)).permute(2, 3, 1, 0).flatten(1, 2)[:, :n]
        return outputs, self._at_length(before, x, powers)

    def _at_length(self, before: Tensor, x: Tensor, powers: Tensor) -> Tensor:
        """The state after the last position of each row: a part of a chunk on from the state before that chunk."""
        b, r, c = x.shape[:3]
        lengths = self.lengths if self.lengths is not None else torch.full((b,), self.x.shape[1], device=x.device)
        rows, chunk, part = torch.arange(b, device=x.device), lengths // c, lengths % c
        lag = part[:, None] - 1 - torch.arange(c, device=x.device)  # b c
        weights = powers[lag.clamp(min=0)].where((lag >= 0)[..., None, None], 0) * self.gain
        own = (weights * x[rows, chunk.clamp(max=r - 1)][:, :, None]).sum(1)
        return powers[part] * before[rows, chunk] + own


@dataclass(frozen=True)
class DenseInvariant(Recurrence):
    """s_(t+1) = A s_t + f_t, and output t is s_t. A state is (b, d, 1): a memory with one value."""

    matrix: Float[Tensor, "d d"]
    offset: Float[Tensor, "b n d"]
    lengths: Int[Tensor, " b"] | None = None

    reads_before = True

    def updates(self) -> Affine:
        matrix, offset = self.matrix.expand((*self.offset.shape, -1)), self.offset[..., None]
        if self.lengths is not None:
            kept = _kept(self.lengths, self.offset.shape[1])[..., None, None]
            one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
            matrix, offset = matrix.where(kept, one), offset.where(kept, 0)
        return Affine(Dense(matrix), offset)

    def read(self, states: Tensor) -> Tensor:
        return states[..., 0]

    def padded(self, keep: Bool[Tensor, "b n"]) -> "DenseInvariant":
        return replace(self, lengths=keep.sum(1))

    def chunkwise(self, start: Tensor) -> tuple[Tensor, Tensor]:
        b, n, _ = self.offset.shape
        length = max(1, int(n**0.5))
        offset = functional.pad(self.offset, (0, 0, 0, -n % length)).unflatten(1, (-1, length))
        step = self.matrix.mT
        own = offset[:, :, 0]
        for i in range(1, length):
            own = own @ step + offset[:, :, i]
        through, state = torch.linalg.matrix_power(step, length), start[..., 0]
        starts = [state]
        for j in range(own.shape[1]):
            state = state @ through + own[:, j]
            starts.append(state)
        state = torch.stack(starts[:-1], 1)
        held = [state]
        for i in range(length):
            state = state @ step + offset[:, :, i]
            held.append(state)
        before = torch.stack(held[:-1], 2).flatten(1, 2)
        # The state behind n positions is the one before position n, or lies behind the last block.
        every = torch.cat((before, starts[-1][:, None]), 1)
        lengths = self.lengths if self.lengths is not None else torch.full((b,), n, device=start.device)
        return before[:, :n], every[torch.arange(b, device=start.device), lengths][..., None]


def _kept(lengths: Tensor, n: int) -> Tensor:
    return torch.arange(n, device=lengths.device) < lengths[:, None]


def _real_rows(x: Tensor) -> Tensor:
    """Complex rows (d, N, c) as real ones (d, 2N, c): all real parts, then all imaginary ones."""
    return torch.cat((x.real, x.imag), 1)
