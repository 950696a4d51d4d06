"""Whether every link inside the built site leads somewhere: python docs/check_links.py docs/_build/html."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The addresses that a page points at, and the places in it that can be pointed at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def broken(root: Path) -> list[str]:
    """Every link that leads nowhere, with its page."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(root.resolve().rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target.startswith("data:"):
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            goal = goal / "index.html" if goal.is_dir() else goal
            name = f"{path.relative_to(root.resolve())}: {target}"
            place = unquote(parts.fragment)
            if not goal.exists() or (place and goal in pages and place not in pages[goal].places):
                found.append(name)
    return found


def main() -> None:
    root = Path(sys.argv[1])
    count = sum(1 for _ in root.rglob("*.html"))
    if not count:
        sys.exit(f"{root} holds no site; make docs builds it")
    found = broken(root)
    if found:
        sys.exit("links that lead nowhere:\n" + "\n".join(sorted(set(found))))
    print(f"{count} pages, every link inside them leads somewhere")


if __name__ == "__main__":
    main()
