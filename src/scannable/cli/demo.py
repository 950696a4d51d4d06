"""`scannable demo`: the idea of the paper on one screen, and a model that lives on it."""

import shutil
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from scannable.cli import reading
from scannable.experiments import scan_cost, streaming
from scannable.recipes import demo as demo_recipe
from scannable.scan import BinaryCounter, reference, scan
from scannable.spd import CountedAgg, verify_duality
from scannable.training.loop import Run
from scannable.training.run_folder import load_trained
from scannable.weights import load_shipped, shipped

LETTERS = "abcdefgh"
SHIPPED = "s5"
FAR = 100_000
"""Tokens that the shipped model reads."""


def bracket(older: str, newer: str) -> str:
    """An operator that hides nothing: the result shows what was combined with what, and in which order."""
    return f"({older}{newer})"


def run(folder: Path, console: Console, device: torch.device) -> None:
    """One tree, walked both ways; a model that is trained on it in parallel and streamed; and one that was trained for
    longer, which reads far beyond its training.
    """
    show_the_scan(folder, console)
    threads = torch.get_num_threads()
    # So small a model is hardly faster with more, and many times slower as soon as anything else runs beside it.
    torch.set_num_threads(1)
    try:
        train_and_stream(folder, console, device)
        read_far_beyond(console, device)
    finally:
        torch.set_num_threads(threads)


def train_and_stream(folder: Path, console: Console, device: torch.device) -> None:
    """Train the demo's recipe, check that the model is one function, and stream it to 64 times its training length."""
    recipe = demo_recipe()
    trained = recipe.curriculum.lengths[-1]
    console.rule("[bold]A model on that tree")
    console.print(
        f"A Transformer-PSM with chunks of one token learns sums in {recipe.task.group}: after every token it says "
        f"what all tokens so far add up to. It is trained in parallel on up to {trained} tokens, for about a minute.\n"
    )
    place = folder / "run"
    if place.exists():
        shutil.rmtree(place)
    Run(recipe, place, console=console, device=device).train()
    model = load_trained(place, device=device).model
    console.rule("[bold]One function")
    tokens = recipe.task.batch("test", range(2), 100).tokens.to(device)
    report = verify_duality(model, tokens, dtype=torch.float64)
    console.print(str(report), highlight=False)
    console.rule("[bold]Streamed token by token")
    with console.status("streaming"):
        rows = streaming.report(model, recipe.task, folder, trained=trained, longest=64 * trained, streams=32)
    table = Table("tokens", "error", "bytes held by one stream", box=None, pad_edge=False)
    for row in rows:
        if row.n >= trained:
            table.add_row(f"{row.n:,}", f"{row.error:.2%}", f"{row.nbytes:,}")
    console.print(table)
    console.print(f"Report: {folder} (streaming.png, scan_cost.png, their numbers, and the run)", highlight=False)


def read_far_beyond(console: Console, device: torch.device) -> None:
    """The shipped model of S5, thousands of times its training length, against products computed beside it."""
    console.rule("[bold]A trained model, far beyond")
    about, found = shipped(SHIPPED), load_shipped(SHIPPED, device=device)
    trained, group = max(found.recipe.curriculum.lengths), found.recipe.task.group
    console.print(
        f"{about.title}: {about.parameters:,} parameters that come with the package. Its tokens are the "
        f"{found.recipe.task.vocab_size} elements of {group}, and after each it says their product so far. It reads "
        f"{FAR // trained:,} times the length that it was trained on.\n",
        highlight=False,
    )
    reading.read(found, FAR, 1, console)
    console.print(f"A million tokens: scannable eval {SHIPPED} --lengths 1000000", highlight=False)


def show_the_scan(folder: Path, console: Console) -> None:
    """Show both scans, that they agree, and what they cost."""
    console.rule("[bold]One tree")
    console.print(
        "Upsweep of the static scan over a b c d e f g h: node (k, j) covers elements j*2^k to (j+1)*2^k - 1.\n"
    )
    console.print(tree(3, 0))
    console.rule("[bold]Walked element by element")
    console.print("The binary counter keeps one root for each set bit of t, and the fold of the roots down to each.\n")
    console.print(counter_table())
    console.rule("[bold]The same prefixes")
    console.print(agreement())
    console.rule("[bold]And the price")
    with console.status("counting Agg calls up to 65,536 elements"):
        costs, picture = scan_cost.report(folder)
    console.print(cost_table(costs))
    console.print(f"Figure: {picture}", soft_wrap=True, highlight=False)


def tree(k: int, j: int) -> Tree:
    """The subtree under node (k, j), with the value of each node."""

    def value(k: int, j: int) -> str:
        return LETTERS[j] if k == 0 else bracket(value(k - 1, 2 * j), value(k - 1, 2 * j + 1))

    branch = Tree(f"[dim]({k}, {j})[/] {value(k, j)}")
    if k:
        branch.add(tree(k - 1, 2 * j))
        branch.add(tree(k - 1, 2 * j + 1))
    return branch


def counter_table() -> Table:
    """Each push of the letters: what is held, what is emitted, and how many Agg calls that took."""
    table = Table("push", "t", "binary", box=None, pad_edge=False)
    table.add_column("roots held", overflow="fold")
    table.add_column("prefix", overflow="fold")
    table.add_column("Agg calls", justify="right")
    table.add_column("refolding", justify="right")
    agg, printed = CountedAgg(bracket), CountedAgg(bracket)
    counter = BinaryCounter(agg, identity="e")
    refolded = reference.refolding_counter(printed, LETTERS, "e", literal=False)
    for letter in LETTERS:
        before, printed_before = agg.calls, printed.calls
        counter.push(letter)
        if counter.prefix() != next(refolded):
            raise AssertionError("the two counters differ")
        t = counter.position
        roots = "  ".join(f"[cyan]{root}[/]" for root in counter.roots.values())
        table.add_row(
            letter,
            str(t),
            f"{t:b}",
            roots,
            counter.prefix(),
            str(agg.calls - before),
            str(printed.calls - printed_before),
        )
    return table


def agreement(n: int = 65_536) -> str:
    """Compare all prefixes of a long sequence, exactly."""
    xs = torch.randint(-1000, 1000, (n,), generator=torch.Generator().manual_seed(0))
    parallel = scan(scan_cost.non_associative, xs, identity=torch.tensor(0))
    counter = BinaryCounter(scan_cost.non_associative, torch.tensor(0))
    online: list[torch.Tensor] = []
    for x in xs:
        online.append(counter.prefix())
        counter.push(x)
    same = int((torch.stack(online) == parallel).sum())
    left_to_right = torch.tensor(0)
    for x in xs[:-1]:
        left_to_right = scan_cost.non_associative(left_to_right, x)
    verdict = "[bold green]identical[/]" if same == n else "[bold red]DIFFERENT[/]"
    return (
        f"Agg(a, b) = 2a + 3b in int64 is exact and not associative: a plain left-to-right loop ends at "
        f"{int(left_to_right)}, the tree at {int(parallel[-1])}.\n"
        f"Static scan and binary counter: {same:,} of {n:,} prefixes {verdict}."
    )


def cost_table(costs: list[scan_cost.ScanCost]) -> Table:
    """Evaluations per element and values held, for a few n."""
    table = Table("", box=None, pad_edge=False)
    shown = [n for n in (16, 256, 4096, 65_536) if any(cost.n == n for cost in costs)]
    for n in shown:
        table.add_column(f"n = {n:,}", justify="right")
    for title, read in (
        ("Agg evaluations per element", lambda cost: f"{cost.evaluations_per_element:.2f}"),
        ("values held", lambda cost: f"{cost.held:,}"),
    ):
        table.add_row(f"[bold]{title}")
        for way in (scan_cost.STATIC, scan_cost.COUNTER, scan_cost.REFOLDING):
            table.add_row(f"  {way}", *(read(cost) for n in shown for cost in costs if (cost.way, cost.n) == (way, n)))
    return table
