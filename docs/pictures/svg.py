"""Pictures as SVG: boxes, lines and text, in colours for a light and for a dark page.

Files are text and come out the same every time, so that a test can tell whether a committed picture is still true.
"""

from html import escape

STYLE = """\
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 15px; fill: #24292f }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.small { font-size: 13px }
.dim { fill: #57606a }
.page { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #8c959f }
.held { fill: #0969da; stroke: #0969da }
.warm { fill: #fff8c5; stroke: #9a6700 }
.line { stroke: #8c959f; fill: none }
.on { fill: #ffffff }
.strong { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .dim { fill: #9198a1 }
  .page { fill: #0d1117 }
  .box { fill: #161b22; stroke: #656c76 }
  .held { fill: #1f6feb; stroke: #1f6feb }
  .warm { fill: #3b2f00; stroke: #d29922 }
  .line { stroke: #656c76 }
  .on { fill: #ffffff }
}"""


class Picture:
    """A canvas that is written from top to bottom."""

    def __init__(self, width: int, height: int, title: str, style: str = "") -> None:
        self.width: int = width
        self.height: int = height
        self.title: str = title
        self.style: str = style
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" class="{escape(kind)}"/>'
        )

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{escape(kind)}">{escape(words)}</text>'
        )

    def line(self, *points: tuple[float, float]) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" class="line"/>')

    def group(self, kind: str) -> None:
        self.parts.append(f'<g class="{escape(kind)}">')

    def end(self) -> None:
        self.parts.append("</g>")

    def __str__(self) -> str:
        style = f"{STYLE}\n{self.style}".rstrip()
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">'
        )
        page = f'<rect width="{self.width}" height="{self.height}" rx="8" class="page"/>'
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{style}</style>", page, *self.parts, "</svg>", ""]
        )
