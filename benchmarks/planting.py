"""Small changes to Python source, each of which a test should notice."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
}
EXTREMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum"}
Edit = tuple[str, int, int, str]
"""Of what kind, and which bytes are replaced by what."""


@dataclass(frozen=True)
class Mutant:
    """A file with one change."""

    file: Path
    """Below the root of the project."""
    line: int
    kind: str
    old: str
    new: str
    """The lines that differ, without indentation: they name the change whatever is done elsewhere in the file."""
    source: bytes
    mutated: bytes

    @property
    def name(self) -> tuple[str, str, str]:
        return self.file.as_posix(), self.old, self.new

    def diff(self) -> str:
        before, after = (text.decode().splitlines(keepends=True) for text in (self.source, self.mutated))
        return "".join(list(unified_diff(before, after, n=1))[2:])


def mutants_of(file: Path, source: bytes) -> list[Mutant]:
    """Every change that can be planted in a file, in the order of its lines."""
    found: list[Mutant] = []
    for kind, start, end, text in sorted(set(_Planter(source).edits())):
        mutated = source[:start] + text.encode() + source[end:]
        first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
        lines = source[first:last], mutated[first : last + len(mutated) - len(source)]
        old, new = (" ".join(part.decode().split()) for part in lines)
        found.append(Mutant(file, source.count(b"\n", 0, start) + 1, kind, old, new, source, mutated))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.kind, mutant.new))


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """As many of each kind as possible; which ones depends on the seed and on their own lines alone."""

    def lot(mutant: Mutant) -> str:
        return hashlib.sha256(repr((seed, *mutant.name)).encode()).hexdigest()

    taken: Counter[str] = Counter()
    ranked: list[tuple[int, str, Mutant]] = []
    for mutant in sorted(mutants, key=lot):
        ranked.append((taken[mutant.kind], lot(mutant), mutant))
        taken[mutant.kind] += 1
    return [mutant for *_, mutant in sorted(ranked, key=lambda entry: entry[:2])[:count]]


class _Planter:
    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def edits(self, node: ast.AST | None = None) -> Iterator[Edit]:
        node = node or ast.parse(self.source)
        yield from self._at(node)
        for name, value in ast.iter_fields(node):
            # What is read by people and type checkers; and positions in f-strings are wrong before Python 3.12.
            if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.edits(child)

    def _at(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare():
                for left, operator, right in zip(
                    [node.left, *node.comparators], node.ops, node.comparators, strict=False
                ):
                    yield from self._between(left, right, "comparison", *COMPARISONS[type(operator)])
            case ast.BoolOp():
                words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between(left, right, "and, or", *words)
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _text(node.left):
                yield from self._between(node.left, node.right, "arithmetic", *ARITHMETIC[type(node.op)])
            case ast.AugAssign() if type(node.op) in ARITHMETIC:
                yield from self._between(node.target, node.value, "arithmetic", *ARITHMETIC[type(node.op)])
            case ast.UnaryOp(op=ast.Not()):
                yield ("not dropped", *self._span(node), f"({self._text(node.operand)})")
            case ast.UnaryOp(op=ast.USub()):
                yield ("sign", *self._span(node), f"({self._text(node.operand)})")
            case ast.Constant(value=bool(value)):
                yield ("constant", *self._span(node), str(not value))
            case ast.Constant(value=int(value)):
                yield ("constant", *self._span(node), str(value + 1))
                yield ("constant", *self._span(node), f"({value - 1})" if value < 1 else str(value - 1))
            case ast.Constant(value=float(value)):
                yield ("factor", *self._span(node), str(value * 2 or 1.0))
            case ast.Call():
                yield from self._at_call(node)
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
                yield ("statement dropped", *self._span(node), "pass")
            case ast.If() | ast.While() | ast.IfExp() if "TYPE_CHECKING" not in self._text(node.test):
                yield ("condition", *self._span(node.test), f"(not ({self._text(node.test)}))")
            case ast.comprehension():
                for test in node.ifs:
                    yield ("condition", *self._span(test), f"(not ({self._text(test)}))")
            case _:
                pass

    def _at_call(self, node: ast.Call) -> Iterator[Edit]:
        match node.func:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in EXTREMES:
                end = self._span(node.func)[1]
                yield "min, max", end - len(name), end, EXTREMES[name]
            case _:
                pass
        for dropped in node.keywords:
            # Linters ask for it. Lengths that a caller could get wrong have a sentence of their own before the zip.
            if dropped.arg == "strict":
                continue
            rest = [keyword for keyword in node.keywords if keyword is not dropped]
            yield ("argument dropped", *self._span(node), ast.unparse(ast.Call(node.func, node.args, rest)))

    def _between(self, left: ast.expr, right: ast.expr, kind: str, old: str, new: str) -> Iterator[Edit]:
        """Replace an operator, unless a comment stands beside it."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self.source[start:end].decode()
        if gap.count(old) == 1 and "#" not in gap:
            yield kind, start, end, gap.replace(old, new)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        at: dict[str, int] = vars(node)
        start = self.lines[at["lineno"] - 1] + at["col_offset"]
        return start, self.lines[at["end_lineno"] - 1] + at["end_col_offset"]

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
