"""`scannable zoo`."""

from scannable.training.recipe import positive


def zoo(width: int = 256, heads: int = 4, length: int = 1024) -> None:
    """List the layers with their complexity class, memory and work.

    Example:
        scannable zoo --width 512 --heads 8

    Args:
        width: of the layers that are counted.
        heads: of the layers that are counted.
        length: how many tokens they have seen.
    """
    for name, value in (("width", width), ("heads", heads), ("length", length)):
        positive(name, value)
    from scannable.cli.layer_costs import check_fits, table

    check_fits(width, length)
    print(table(width, heads, length))
