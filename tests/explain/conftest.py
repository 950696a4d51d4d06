"""The page in a real browser: Debian's chromium, or whichever Chromium the machine has."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from scannable.explain import PAGE

from browsing import Open, Visit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        # Root, as which containers run, has no sandbox.
        chromium = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open the page at a position. At the end nothing may have gone wrong, or have come from elsewhere."""
    visits: list[Visit] = []

    def opened(position: str = "", *, width: int = 1280, height: int = 900, **options: Any) -> Visit:
        options = {"reduced_motion": "reduce", **options}
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        one = Visit(page)
        visits.append(one)
        page.on("console", lambda message: one.errors.append(message.text))
        page.on("pageerror", lambda error: one.errors.append(str(error)))
        page.on("request", lambda request: one.requests.append(request.url))
        page.goto(f"{PAGE.as_uri()}{'#' if position else ''}{position}")
        return one

    yield opened
    for one in visits:
        one.page.close()
        assert not one.errors
        assert one.requests
        assert all(url.startswith((f"{PAGE.parent.as_uri()}/", "data:")) for url in one.requests), one.requests
