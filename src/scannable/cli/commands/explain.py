"""`scannable explain`."""

import webbrowser

from scannable.explain import PAGE


def explain(browser: bool = True) -> None:
    """Open a page that shows the scan step by step.

    The static tree and the binary counter side by side, with their brackets and their costs. The page needs no
    network; its path is printed.

    Example:
        scannable explain --no-browser

    Args:
        browser: open the page, and do not only print its path.
    """
    print(PAGE)
    if browser and not webbrowser.open(PAGE.as_uri()):
        print("no browser was found; open this file in one")
