"""The command that writes a report: formats, files, and what it says when it cannot."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tilescope import cli
from tilescope.notebook.opening import open_file

from .conftest import PREDICTED, RUN
from .test_report import visible


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says as it refuses: one line, and status 2."""
    try:
        status: Any = cli.main(["report", *arguments])
    except SystemExit as left:
        status = left.code
    out, error = capsys.readouterr()
    assert (status, out, error.count("\n")) == (2, "", 1), (status, out, error)
    return error


@pytest.fixture
def home(in_runs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_ending_chooses_the_format(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ending, start in (
        (".html", b"<!doctype html>"),
        (".md", b"## Tilescope"),
        (".csv", b"run_id,"),
        (".parquet", b"PAR1"),
    ):
        file = home / f"out{ending}"
        assert cli.main(["report", PREDICTED, "--kernel", "softmax", "-o", str(file)]) == 0
        assert file.read_bytes().lstrip().startswith(start)
        assert capsys.readouterr().out.startswith(f"{file}: ")


def test_the_command_costs_nothing_until_it_runs_and_never_torch() -> None:
    paths = [str(Path(__file__).resolve().parents[2] / part) for part in ("profiles", "dashboard")]
    code = (
        f"import sys; sys.path[:0] = {paths}; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "import tilescope_dashboard.report; assert not {'bokeh', 'pandas', 'panel'} & set(sys.modules)\n"
        "from tilescope_dashboard.report import build, html, markdown"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_report_without_file_prints_text_or_names_html(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["report", PREDICTED, "--kernel", "softmax"]
    assert cli.main([*chosen, "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("## Tilescope: synthetic prediction\n")
    assert cli.main(chosen) == 0
    text = visible((home / f"tilescope-{PREDICTED}.html").read_text())
    assert '<h2 class="kernel">softmax</h2>' in text and "layer_norm" not in text


@pytest.mark.parametrize("gpu", [None, {"name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}])
def test_report_of_a_trace_without_a_known_gpu_is_written(gpu: dict[str, Any] | None, tmp_path: Path) -> None:
    about = {
        "device": 0, "stream": 7, "grid": [64, 1, 1], "block": [128, 1, 1], "registers per thread": 32,
        "shared memory": 0,
    }  # fmt: skip
    event = {"ph": "X", "cat": "kernel", "name": "k_rows", "ts": 1, "dur": 5, "args": about}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [event], "deviceProperties": [{"id": 0, **gpu}] if gpu else []}))
    loaded = open_file(trace, tmp_path / "runs")
    for ending in ("html", "md"):
        file = tmp_path / f"out.{ending}"
        assert cli.main(["report", str(loaded.folder), "-o", str(file)]) == 0
        assert "k_rows" in file.read_text() and "5 µs" in file.read_text().replace("5.00", "5")


def test_what_cannot_be_done_is_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown kernel 'softmx': did you mean 'softmax'? in" in said(capsys, RUN, "--kernel", "softmx")
    assert "no run 'nowhere'" in said(capsys, "nowhere")
    assert "has no implementation 'cuda': use one of compile, eager, triton" in said(capsys, RUN, f"{RUN}:cuda")
    assert f"{RUN} is named twice" in said(capsys, RUN, RUN)
    assert "would be compared with itself" in said(capsys, RUN, f"{RUN}:triton")
    assert f"name one of {PREDICTED} too" in said(capsys, f"{RUN}:eager", PREDICTED)
    assert "there is no folder" in said(capsys, RUN, "-o", "missing/out.html")
    assert "is a folder: name a file in it" in said(capsys, RUN, "-o", ".", "--format", "html")
    assert "its ending names no format; give --format html, md, csv, parquet" in said(capsys, RUN, "-o", "out.txt")
    assert "--format csv does not fit out.html, which would be html" in said(
        capsys, RUN, "-o", "out.html", "--format", "csv"
    )
    assert "invalid choice: 'pdf'" in said(capsys, RUN, "--format", "pdf")
    assert "20270102-030408-dddd" in said(capsys, "20260102-030408-dddd")
    assert not list(home.glob("out*"))


def test_unwritable_file_is_said(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, who may write everywhere.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "cannot write out.html: permission denied" in said(capsys, RUN, "-o", "out.html")
