"""One case, one number: in the terminal, the app, a report and a notebook."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from tilescope.hardware import device
from tilescope.models import text_table
from tilescope.models.headline import headline
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store
from tilescope.table import launch_configs, schema
from tilescope.table.case import Case
from tilescope.table.run import Run
from tilescope.table.schema import CASE_COLUMNS
from tilescope_dashboard.data import frames, run_cache
from tilescope_dashboard.data.units import write
from tilescope_dashboard.report import runs as report
from tilescope_dashboard.topics import occupancy
from tilescope_dashboard.views import overview

from .recordings import recorded

#: A recording with most collectors, sweeps, and two kernels counted by CUPTI.
REPRESENTATIVE = ("RMSNorm with its peers", "convolution: autotune sweeps", "addition")
#: Columns of ``results``, of a launch each or of the case, and what the other three call them.
LAUNCHES = {"registers": "registers", "shared_memory": "shared_memory", "spills": "spill_bytes",
            "occupancy": "theoretical_occupancy"}  # fmt: skip
WHOLE = ("gpu_time", "interval", "relative_error", "tolerance", "chosen")


@pytest.fixture(autouse=True)
def _only_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report's part of each kernel, with its advice, takes most of its time and has no table of cases."""
    monkeypatch.setattr(report, "kernel", lambda *of: None)


def same(one: Any, other: Any) -> bool:
    absent = [pd.isna(value) or value == "" for value in (one, other)]
    return all(absent) or one == other


def several(value: Any) -> tuple[float, ...]:
    """What the terminal has of each launch; of none where it is absent."""
    return value if isinstance(value, tuple) else ()


def of_defaults(rows: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Those of the rows whose cases ``like`` has, in its columns."""
    wanted = pd.MultiIndex.from_frame(like[CASE_COLUMNS])
    return rows.loc[pd.MultiIndex.from_frame(rows[CASE_COLUMNS]).isin(wanted), list(like)].reset_index(drop=True)


def check(loaded: store.LoadedRun) -> None:
    terminal = text_table.results(loaded.table, loaded.run.device, loaded.configs).to_dict("records")
    notebook = Profile.of(loaded).summary
    app = run_cache.summaries(loaded)
    table = report.run_part(loaded).overview.table
    assert table is not None
    assert len(terminal) == len(notebook) >= len(app) > 0
    # The app and reports leave sweeps to a view of their own.
    pd.testing.assert_frame_equal(of_defaults(notebook, app), app)
    pd.testing.assert_frame_equal(table.rows[list(app)], app)
    titles = [column.title for column in table.columns]
    times = [cells[titles.index("GPU time (5 to 95 %)")].partition(" (")[0] for cells in table.cells(len(app))]
    assert times == [write(time, "second") for time in app["gpu_time"]]
    for printed, told in zip(terminal, notebook.to_dict("records"), strict=True):
        assert [printed[c] for c in CASE_COLUMNS] == [told[c] for c in CASE_COLUMNS]
        assert all(same(printed[name], told[name]) for name in WHOLE), (printed, told)
        for of_launches, of_longest in LAUNCHES.items():
            each = several(printed[of_launches])
            assert told[of_longest] in each or pd.isna(told[of_longest]), (of_launches, printed, told)
            # Of a launch that is not the longest the compiler may know more.
            assert len(each) != 1 or told["launches"] != 1 or told[of_longest] == each[0], (of_launches, printed, told)
        if told["bytes_source"] == "ncu":
            assert sum(printed["moved"]) == told["bytes"]
    by_launch(loaded, {tuple(row[c] for c in CASE_COLUMNS): row for row in terminal})


def by_launch(loaded: store.LoadedRun, terminal: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """The app's and a report's table of launches, and what the terminal prints of them."""
    defaults = frames.default_configs(loaded.table)
    held = occupancy.occupancies(defaults, loaded.run.device.target)
    known = {
        key for key in defaults[CASE_COLUMNS].itertuples(index=False, name=None) if several(terminal[key]["registers"])
    }
    assert set(held[CASE_COLUMNS].itertuples(index=False, name=None)) == known
    for key, launches in held.groupby(CASE_COLUMNS, sort=False):
        assert tuple(launches["registers"]) == terminal[key]["registers"]
        assert tuple(launches["shared_memory"]) == terminal[key]["shared_memory"]
        # ncu prints the percentage with two decimals.
        assert tuple(launches["occupancy"]) == pytest.approx(terminal[key]["occupancy"], abs=6e-5)


@pytest.mark.parametrize("title", REPRESENTATIVE)
def test_case_has_one_number_everywhere(title: str) -> None:
    run = next(run for run in recorded() if run.title.startswith(title))
    check(run_cache.open_cached(run.path))


def test_the_config_that_ran_is_told_wherever_the_case_is(tmp_path: Path) -> None:
    case = Case("twice", "triton", "forward", "8x8-fp32")
    writer = store.RunWriter(
        tmp_path, Run("20261120-221530-3fa9", "2026-11-20", device.for_target("sm_90"), {"twice": {}}, {}, {})
    )
    writer.append(schema.frame([case.row("gpu_time", 1e-6, "torch_profiler", launch=0, function="k")]))
    artefact = writer.artefact_path("events", case, ".json")
    options = SimpleNamespace(num_warps=2, num_stages=3)
    launch_configs.write(
        artefact, case, [launch_configs.launched("k", {"BLOCK": 64, "EVEN": True}, options, ["BLOCK", "num_warps"])]
    )
    writer.append_configs(launch_configs.beside(artefact, case, "events"))
    loaded = store.open_run(writer.finish())
    check(loaded)
    (row,) = run_cache.summaries(loaded).to_dict("records")
    assert row["chosen"] == "BLOCK=64,num_warps=2"
    assert "(triton, 8x8-fp32, forward, BLOCK=64, num_warps=2)" in overview.of_case(row)
    table = report.run_part(loaded).overview.table
    assert table is not None
    assert "BLOCK=64,num_warps=2" in table.cells(1)[0]
    assert text_table.text(loaded).endswith("BLOCK=64,num_warps=2")
    assert "(BLOCK=64, num_warps=2; from torch_profiler)</td>" in Profile.of(loaded)._repr_html_()


@pytest.mark.parametrize("name", ["advice", "traffic"])
def test_view_in_plain_python_is_text(name: str) -> None:
    loaded = store.open_run(next(run.path for run in recorded() if run.title.startswith("addition")))
    kernel = next(iter(loaded.run.kernels))
    first, *others = str(getattr(Profile.of(loaded), name)(kernel)).splitlines()
    assert first == headline(loaded, kernel) and first.startswith(kernel)
    assert len(others) > 1 and not any("</" in line for line in others)
