"""The scan, to play with: one page of HTML, SVG and JavaScript that needs no network and no build step."""

from pathlib import Path

PAGE = Path(__file__).with_name("index.html")
"""The page; what it needs lies beside it."""
