"""The list of rows: complete, counted, and true."""

import torch

from scannable.cli.layer_costs import rows, table
from scannable.layers import LAYERS
from scannable.spd.counters import CountedWork


def test_the_list_has_every_row_with_its_class_and_cost() -> None:
    facts = {row.name: row for row in rows(width=32, heads=2, length=128)}
    assert list(facts) == list(LAYERS)
    assert {row.spd_class for row in facts.values()} == {"(n, 1)", "(n, log n)", "(n log n, log n)", "(n^2, n)", "none"}
    assert facts["lstm"].spd_class == "none" and facts["log_linear"].spd_class == "(n log n, log n)"
    for name, row in facts.items():
        layer = LAYERS[name](32, 2)
        assert row.parameters == sum(p.numel() for p in layer.parameters())
        assert row.state_nbytes == layer.state_nbytes(128)
        # A token costs at least a multiply-add for each weight of a matrix, and no row does wasteful work.
        matrices = sum(p.numel() for p in layer.parameters() if p.ndim == 2 and min(p.shape) > 2)
        assert 2 * matrices <= row.step_work <= 20 * row.parameters
    assert "gated_deltanet" in table(32, 2, 128)


def test_work_of_an_affine_row_is_linear_in_its_length() -> None:
    for name, row in LAYERS.items():
        if row.spd_class not in ("(n, 1)", "none"):
            continue
        layer = row(16, 2)
        work = []
        for n in (4096, 16_384):
            with CountedWork() as counted, torch.no_grad():
                layer(torch.randn(1, n, 16))
            work.append(counted.operations / n)
        assert work[1] < 1.02 * work[0], name


def test_work_is_counted_by_hand() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with CountedWork() as counted:
        (a @ b).exp().sum()
    assert counted.operations == 2 * 3 * 4 * 5 + 15 + 15
    with CountedWork() as counted:
        torch.cat((a, a)).T.reshape(-1)
    assert counted.operations == 0
