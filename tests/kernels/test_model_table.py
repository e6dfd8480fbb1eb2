"""The table by models: its rows are declared, its times and its figures are as they should be. Timing itself needs a GPU."""

import pytest
import tilescope_kernels
import torch
from tilescope.execution import launches, offline
from tilescope_kernels import catalog

from benchmarks import model_rows, model_variants, models


def test_rows_fit_declarations():
    rows = model_rows.rows()
    assert len({row.id for row in rows}) == len(rows) and {row.kernel for row in rows} == model_rows.PEERS.keys()
    for row in (*rows, *model_rows.dropped()):
        spec = catalog.find(row.kernel)
        assert spec.cost(spec.workload(row.workload), row.direction).bytes > 0 and row.direction in spec.passes


def test_every_model_has_rows():
    named = {name for row in model_rows.rows() for name in row.models}
    assert named >= model_rows.SHAPES["models"].keys() and len(named) == len(model_rows.SHAPES["models"]) + 2


def test_repetitions_are_parted_by_flushes():
    events = [(40, 50, "matmul"), (0, 9, "before"), (10, 20, "read_zeros"), (45, 60, "sum"), (21, 30, "spin_kernel")]
    (repetition,) = models.groups(events)
    assert [name for *_, name in repetition] == ["matmul", "sum"]
    # Kernels that overlap count once.
    assert models.busy((start, end) for start, end, _ in repetition) == 0.02


def line(name, ours, without=None, **peers):
    times = {"triton": ours, **peers}
    return {"id": name, "family": "f", "models": ["A"], "times": times, "without": without or {}}


def test_summary_takes_the_quickest_peer():
    rows = [line("a", 10.0, eager=20.0, compile=40.0), line("b", 10.0, eager=5.0), line("c", 10.0)]
    every, of_model = models.summary(rows)
    assert (every["model"], of_model["model"], every["rows"]) == ("all", "A", 2)
    assert every["mean"] == pytest.approx(1.0) and (every["worst"], every["where"]) == (0.5, "b")


def test_variant_gains_in_its_rows_and_in_its_family():
    rows = [line("a", 10.0, {"x": {"time": 12.1, "kernels": []}}), line("b", 10.0)]
    (found,) = models.gains(rows)
    assert found["mean"] == pytest.approx(1.21) and found["family mean"] == pytest.approx(1.1) and found["rows"] == 1


def test_variant_is_watched_and_left_out():
    x, w = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((16, 4096), (4096, 4096)))

    def kernels():
        with launches.catch() as seen, model_variants.watched() as chosen:
            tilescope_kernels.matmul(x, w)
        return seen[0].name, chosen

    with offline.targeting("sm_90"):
        assert kernels() == ("matmul_split_kernel", ["products: small tiles"])
        with model_variants.without("products: small tiles"):
            assert kernels() == ("matmul_kernel", [])


def test_rows_of_a_file_are_not_timed_again(tmp_path, capsys):
    row = model_rows.rows()[0]
    models.store(
        tmp_path / "rows", row, {"times": {"triton": 1.0, "eager": 2.0}, "failed": {"compile": "out of memory"}}
    )
    assert models.main(["--rows", str(tmp_path / "rows"), "--table"]) == 0
    shown = capsys.readouterr().out
    assert "| all | 16-bit products | 1 | 2.000 |" in shown and "out of memory" in shown


def test_dropped_variant_costs_what_it_gained(tmp_path, capsys):
    row = model_rows.dropped()[0]
    for name, time in (("now", 12.0), ("before", 10.0)):
        models.store(tmp_path / name, row, {"times": {"triton": time}})
    assert models.main(["--table", "--rows", str(tmp_path / "now"), "--beside", str(tmp_path / "before")]) == 0
    assert f"| {row.models[0]} | {row.id} | 12.000 | 10.000 | 1.200 |" in capsys.readouterr().out


def test_publish_stores_rows_with_their_provenance(tmp_path):
    found = {"families": list(models.summary([line("a", 10.0, eager=20.0)]))}
    models.publish(found, "NVIDIA H200; 2026-11-29; torch 2.11", tmp_path)
    *about, head, row = (tmp_path / "models.csv").read_text().splitlines()
    assert about[2:] == ["# where: NVIDIA H200", "# when: 2026-11-29", "# versions: torch 2.11"]
    assert (head, row) == ("family,rows,mean,worst,where", "f,1,2.000,2.000,a")
