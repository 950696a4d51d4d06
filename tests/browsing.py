"""A visit of a page in a browser, as tests make it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Visit:
    """A page that is open, and what went wrong in it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    @property
    def hash(self) -> str:
        """The position as a link, without the wait after which it is written into the address."""
        return self.page.evaluate("session.toHash()")


Open = Callable[..., Visit]
