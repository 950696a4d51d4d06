"""What theory allows: counts for a scan of r elements, as functions of r alone."""


def agg_evaluations(r: int, *, literal: bool = False) -> int:
    """Agg evaluations for r elements absorbed in any way: r - popcount(r) merges, and a fold an element.

    By law the first fold of each power of two is free; `literal` pays for it. Never above 2r.
    """
    merges = r - r.bit_count()
    return merges + (r if literal else r - r.bit_length())


def agg_calls(r: int) -> int:
    """The most batched calls, one after another, that a parallel scan of r elements may take: 2 ceil(log2 r) + 2."""
    return 2 * max(r - 1, 0).bit_length() + 2
