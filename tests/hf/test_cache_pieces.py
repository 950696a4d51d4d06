"""What a cache reads again after candidates were refused: pieces, cut at any column."""

import pytest
import torch

from scannable.hf.cache import _behind, _cut, _Piece

SIZES = (2, 3, 1, 4)


@pytest.mark.parametrize("columns", range(sum(SIZES) + 1))
def test_the_first_columns_and_the_rest_are_all_of_them(columns: int) -> None:
    tokens = torch.arange(20).reshape(2, 10)
    pieces = [_Piece(part, None) for part in tokens.split(SIZES, 1)]
    nothing = tokens[:, :0]
    first, rest = (
        torch.cat([nothing, *(piece.tokens for piece in some)], 1)
        for some in (_cut(pieces, columns), _behind(pieces, columns))
    )
    assert torch.equal(first, tokens[:, :columns]) and torch.equal(rest, tokens[:, columns:])
