"""One case, one number: in the terminal, the app, a report and a notebook."""

from pathlib import Path
from types import SimpleNamespace

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
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.units import write
from tilescope_dashboard.report import runs as report
from tilescope_dashboard.topics import overview

from .recordings import recorded

#: A recording with most collectors, sweeps, and two kernels counted by CUPTI.
REPRESENTATIVE = ("rms_norm", "convolution: autotune sweeps", "vector_add")


@pytest.fixture(autouse=True)
def _only_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report's part of each kernel, with its advice, takes most of its time and has no table of cases."""
    monkeypatch.setattr(report, "kernel", lambda *of: None)


def of_defaults(rows: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Those of the rows whose cases ``like`` has, in its columns."""
    wanted = pd.MultiIndex.from_frame(like[CASE_COLUMNS])
    return rows.loc[pd.MultiIndex.from_frame(rows[CASE_COLUMNS]).isin(wanted), list(like)].reset_index(drop=True)


def check(loaded: store.LoadedRun) -> None:
    notebook = Profile.of(loaded).summary
    app = run_cache.summaries(loaded)
    table = report.run_part(loaded).overview.table
    assert table is not None
    assert len(notebook) >= len(app) > 0
    # The app and reports leave sweeps to a view of their own.
    pd.testing.assert_frame_equal(of_defaults(notebook, app), app)
    pd.testing.assert_frame_equal(table.rows[list(app)], app)
    titles = [column.title for column in table.columns]
    times = [cells[titles.index("GPU time (5 to 95 %)")].partition(" (")[0] for cells in table.cells(len(app))]
    assert times == [write(time, "second") for time in app["gpu_time"]]
    headings, rows, _ = text_table.cells(app)
    assert [row[headings.index("GPU time")] for row in rows] == times


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
    assert overview.place(row) == "triton, 8x8-fp32, forward, BLOCK=64, num_warps=2"
    table = report.run_part(loaded).overview.table
    assert table is not None
    assert "BLOCK=64,num_warps=2" in table.cells(1)[0]
    assert text_table.text(loaded).endswith("BLOCK=64,num_warps=2")
    assert "(BLOCK=64, num_warps=2; from torch_profiler)</td>" in Profile.of(loaded)._repr_html_()


@pytest.mark.parametrize("name", ["advice", "traffic"])
def test_view_in_plain_python_is_text(name: str) -> None:
    loaded = store.open_run(next(run.path for run in recorded() if run.title.startswith("vector_add")))
    kernel = next(iter(loaded.run.kernels))
    first, *others = str(getattr(Profile.of(loaded), name)(kernel)).splitlines()
    assert first == headline(loaded, kernel) and first.startswith(kernel)
    assert len(others) > 1 and not any("</" in line for line in others)
