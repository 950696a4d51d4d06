"""Draw every picture of the documentation from what the library does: python docs/pictures/draw.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from recorded import LETTERS, bracket, calls_of_extend, calls_of_scan, prefixes_of_scan, pushes, span
from svg import Picture

HERE = Path(__file__).parent


def tree() -> Picture:
    """The tree of a scan over eight elements, and which of its nodes a stream holds after each of them."""
    n, leaf, top, row, seconds = 8, 86, 70, 46, 1.6
    frames = pushes(LETTERS[:n])
    merged = [(a, b) for call in calls_of_extend(n) for (a, _), (_, b) in call]
    blocks = sorted({(i, i + 1) for i in range(n)} | {block for block in merged if is_node(block)})
    levels = {block: (block[1] - block[0]).bit_length() - 1 for block in blocks}
    values = {span(value): value for push in frames for value in push.roots.values()}
    # What was merged on the way to a root stands inside it.
    for value in list(values.values()):
        values |= {span(part): part for part in parts_of(value)}
    deepest = max(levels.values())
    total = n * seconds
    style = "\n".join(
        [
            ".frame { opacity: 0 }",
            ".t7 { opacity: 1 }",
            "@media (prefers-reduced-motion: no-preference) {",
            f"  .frame {{ opacity: 0; animation: show {total:g}s step-end infinite }}",
            *(f"  .t{push.t} {{ animation-delay: {(push.t - 1) * seconds:g}s }}" for push in frames),
            f"  @keyframes show {{ 0% {{ opacity: 1 }} {100 / n:g}% {{ opacity: 0 }} }}",
            "}",
        ]
    )
    left, right = 24, 24 + n * leaf
    picture = Picture(
        right + 130,
        top + (deepest + 1) * row + 84,
        "The tree of a scan over eight elements. A stream holds one node for each set bit of the number of elements "
        "that it has read.",
        style,
    )
    picture.text(left, 30, "Training computes the tree level by level, each level in parallel.", "strong", "start")
    picture.text(left, 52, "Streaming holds only the blue ones: one for each 1 in the binary number t.", "dim", "start")

    def place(block: tuple[int, int]) -> tuple[float, float, float]:
        return left + block[0] * leaf + 3, top + (deepest - levels[block]) * row, (block[1] - block[0]) * leaf - 6

    def node(block: tuple[int, int], kind: str, words: str) -> None:
        x, y, width = place(block)
        picture.box(x, y, width, row - 10, kind)
        picture.text(x + width / 2, y + 23, values[block], words)

    for block in blocks:
        node(block, "box", "mono")
    bottom = top + (deepest + 1) * row
    for push in frames:
        picture.group(f"frame t{push.t}")
        for value in push.roots.values():
            node(span(value), "held", "mono on")
        for k in range(deepest + 1):
            y = top + (deepest - k) * row + 23
            picture.text(right + 58, y, f"{push.t >> k & 1}", "mono strong" if push.t >> k & 1 else "mono dim")
        picture.text(left, bottom + 24, f"t = {push.t} read, {push.t:04b} in binary", "strong", "start")
        picture.text(left, bottom + 48, f"prefix  {push.prefix}", "mono", "start")
        calls = "no call" if not push.calls else "1 call" if push.calls == 1 else f"{push.calls} calls"
        picture.text(right, bottom + 24, f"this push: {calls} of Agg", "dim", "end")
        picture.end()
    picture.text(right + 58, top - 12, "bits of t", "dim small")
    return picture


def parts_of(value: str) -> list[str]:
    """Every bracketed part of a value, and its letters."""
    found, opened = list[str](), list[int]()
    for i, letter in enumerate(value):
        if letter == "(":
            opened.append(i)
        elif letter == ")":
            found.append(value[opened.pop() : i + 1])
        else:
            found.append(letter)
    return found


def is_node(block: tuple[int, int]) -> bool:
    """Whether a block is an aligned one, and so a node of the tree."""
    size = block[1] - block[0]
    return size & (size - 1) == 0 and block[0] % size == 0


def loop() -> Picture:
    """Two ways to bracket eight elements: a loop, and the tree."""
    letters = LETTERS[:8]
    from_left = letters[0]
    for letter in letters[1:]:
        from_left = bracket(from_left, letter)
    balanced = pushes(letters)[-1].prefix
    picture = Picture(760, 150, "A loop needs seven steps one after another, the tree three.")
    for y, name, value in ((46, "a loop", from_left), (106, "the tree", balanced)):
        depth = max(value[:i].count("(") - value[:i].count(")") for i in range(len(value) + 1))
        picture.text(24, y, name, "strong", "start")
        picture.text(130, y, value, "mono", "start")
        picture.text(736, y, f"{value.count('(')} merges, {depth} after one another", "dim", "end")
        picture.line((24, y + 18), (736, y + 18))
    picture.text(
        24,
        142,
        "The same for an associative operator, and two different functions for any other.",
        "dim small",
        "start",
    )
    return picture


def sweeps(n: int = 11) -> Picture:
    """Every batched call of Agg that `scan` makes, with what it merged."""
    calls = calls_of_scan(n)
    # A merge into an aligned block is a node of the tree; the first call that makes something else begins the way down.
    down = next(i for i, call in enumerate(calls) if not all(is_node((a, b)) for (a, _), (_, b) in call))
    cell, left, thick, thin = 56, 150, 26, 14
    # Prefixes overlap, so each gets a bar of its own.
    heights = [thick if i < down else thin * len(call) for i, call in enumerate(calls)]
    picture = Picture(
        left + n * cell + 24, 92 + sum(heights) + 12 * len(calls), f"Calls of Agg in a scan over {n} elements."
    )
    for i in range(n):
        picture.text(left + (i + 0.5) * cell, 40, f"x{i}", "mono dim")
    y = 58
    for number, (call, height) in enumerate(zip(calls, heights, strict=True)):
        way = "upsweep" if number < down else "downsweep"
        picture.text(24, y + height / 2 + 4, f"{way}, call {number + 1}", "small", "start")
        for place, ((a, b), (c, d)) in enumerate(call):
            top, tall = (y, thick) if number < down else (y + place * thin, thin)
            picture.box(left + a * cell + 2, top, (b - a) * cell - 3, tall - 3, "box")
            picture.box(left + c * cell + 2, top, (d - c) * cell - 3, tall - 3, "warm")
        y += height + 12
    picture.text(left + n * cell, y + 12, "grey: the older of a pair, yellow: the newer", "dim small", "end")
    return picture


def counter() -> Picture:
    """The binary counter, push by push."""
    rows = pushes(LETTERS[:8])
    cell, left, row = 44, 130, 40
    picture = Picture(760, 62 + len(rows) * row + 10, "What the binary counter holds after each push.")
    picture.text(24, 34, "t", "dim small", "start")
    picture.text(66, 34, "binary", "dim small", "start")
    picture.text(left, 34, "roots held, each over its block", "dim small", "start")
    picture.text(left + 8 * cell + 24, 34, "prefix", "dim small", "start")
    picture.text(736, 34, "calls", "dim small", "end")
    for i, push in enumerate(rows):
        y = 48 + i * row
        picture.text(24, y + 21, str(push.t), "strong", "start")
        picture.text(66, y + 21, f"{push.t:04b}", "mono", "start")
        for value in push.roots.values():
            a, b = span(value)
            picture.box(left + a * cell + 2, y, (b - a) * cell - 4, row - 8, "held")
            picture.text(left + (a + b) / 2 * cell, y + 21, f"{b - a}" if b - a > 1 else value, "mono on")
        picture.text(left + 8 * cell + 24, y + 21, push.prefix, "mono small", "start")
        picture.text(736, y + 21, str(push.calls), "mono", "end")
    return picture


def model() -> Picture:
    """A prefix-scannable model over four chunks: which chunks each output has seen, from the scan itself."""
    chunks, cell, left = 4, 168, 96
    covered = prefixes_of_scan(chunks)
    picture = Picture(left + chunks * cell + 16, 318, "A prefix-scannable model: tokens, Enc, the scan, Inf, outputs.")
    rows = {"tokens": 40, "Enc": 90, "scan": 160, "Inf": 230, "outputs": 280}
    for name, y in rows.items():
        picture.text(20, y + 20, name, "strong", "start")
    picture.line((left + 74, 141), (left + (chunks - 1) * cell + 57, 141))
    for i, (a, b) in enumerate(covered):
        x, width = left + i * cell, cell - 20
        if i < chunks - 1:
            picture.line((x + 74, 122), (x + 74, 141))
        if i:
            picture.line((x + 57, 141), (x + 57, 160))
        middle = x + width / 2
        picture.line((middle, 68), (middle, 90))
        # Inf reads its own chunk beside the prefix.
        picture.line((x + width - 14, 122), (x + width - 14, 230))
        picture.line((middle - 30, 192), (middle - 30, 230))
        picture.line((middle, 262), (middle, 280))
        for j in range(4):
            picture.box(x + j * width / 4 + 1, rows["tokens"], width / 4 - 3, 28)
        picture.box(x, rows["Enc"], width, 32)
        picture.text(middle, rows["Enc"] + 21, f"x{i} = Enc(chunk {i})", "mono small")
        picture.box(x, rows["scan"], width - 34, 32, "held")
        words = "e" if a == b else f"x{a}" if b - a == 1 else f"x{a} .. x{b - 1}"
        picture.text(x + (width - 34) / 2, rows["scan"] + 21, f"s{i} = {words}", "mono small on")
        picture.box(x, rows["Inf"], width, 32, "warm")
        picture.text(middle, rows["Inf"] + 21, f"Inf(s{i}, x{i})", "mono small")
        for j in range(4):
            picture.box(x + j * width / 4 + 1, rows["outputs"], width / 4 - 3, 28)
    return picture


PICTURES = {"tree": tree, "loop": loop, "sweeps": sweeps, "counter": counter, "model": model}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
