"""A run in a notebook: its summary, its views, and its job's progress."""

import dataclasses
from types import SimpleNamespace

import pytest
import tilescope
from tilescope.hardware import device
from tilescope.jobs.progress import TerminalLine
from tilescope.notebook import live_progress
from tilescope.notebook.opened_run import Profile
from tilescope.runs import recordings, store
from tilescope.table.case import Case
from tilescope.table.run import Failure

from . import made_up
from .made_up import html


def hostile(folder, cases=1):
    """A run whose names are markup, and one of whose collectors failed."""
    case = Case("<img src=x onerror=alert(1)>", "triton", "forward", "8-fp32")
    made = [dataclasses.replace(case, workload=f"{8 + number}-fp32") for number in range(cases)]
    rows = [
        made_case.row(f"algorithm_{name}", 64, "model")
        for made_case in made
        for name in ("bytes_read", "bytes_written")
    ]
    told = {"title": "<b>title</b>", "notes": ("check: wrong <i>",), "device": device.for_target("sm_90")}
    failures = (Failure(case.id, "compiler", "<script>no</script>", ""),)
    return Profile.of(
        store.open_run(made_up.written(folder, rows, kernels={case.kernel: {}}, failures=failures, **told))
    )


def test_summary_escapes_the_texts_of_a_run(tmp_path):
    run = hostile(tmp_path)
    shown = html(run)
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert "&lt;b&gt;title&lt;/b&gt; predicted for NVIDIA H200 (no such GPU took part)" in shown
    assert "&lt;script&gt;no&lt;/script&gt;" in shown
    # What is to be known beside the table, such as that results are wrong, as the command says it.
    assert "<li>check: wrong &lt;i&gt;</li>" in shown
    assert "note: check: wrong <i>" in repr(run)
    assert not any(f"<{tag}" in shown for tag in ("img", "script", "b>title"))
    # Nothing was timed or counted: there is no such column, and nobody it would be from.
    assert "GPU time" not in shown
    assert "(from " not in shown


def test_long_summary_says_what_is_left_out(tmp_path):
    run = hostile(tmp_path, cases=25)
    assert len(run.summary) == 25
    assert html(run).count("<tr>") == 20
    assert "5 more cases" in html(run)


def test_a_recording_can_be_loaded_and_shown():
    recorded = recordings.of_kernel("softmax")[0]
    run = tilescope.load(recorded.id)
    assert isinstance(run, tilescope.LoadedRun)
    assert "(measured)" in repr(run)
    assert "num_stages=3; from torch_profiler, cupti)</td>" in html(run)


def test_views_are_the_dashboards():
    from tilescope_dashboard.notebook.views import VIEWS

    run = tilescope.load(recordings.of_kernel("softmax")[0].id)
    for name in ("advice", "roofline", "traffic", "autotune", "occupancy", "timeline", "source"):
        view = getattr(run, name)("softmax")
        assert type(view) is VIEWS[name]
        assert (view.state.loaded.run.id, view.state.kernel, view.state.theme) == (run.run.id, "softmax", "light")
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        run.roofline("sofmax")


def test_views_need_an_entry_point(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    with pytest.raises(ValueError, match="no installed package draws views: pip install tilescope"):
        hostile(tmp_path).advice()


EVENTS = [
    {"event": "start", "index": 0, "of": 4},
    {"event": "case", "index": 1, "of": 4, "case": "/a/file.py:<b>/triton", "doing": "compiling"},
    {"event": "error", "index": 2, "of": 4, "case": "/a/file.py:<b>/triton", "message": "wrong"},
]


def test_terminal_progress_is_one_line(clock, capsys):
    progress = TerminalLine()
    assert progress.line() == "reading the kernels' declarations, 0 s"
    for event in EVENTS:
        progress(event)
    assert progress.line() == "2 of 4: compiling <b>/triton, 0 s, 1 failed"
    progress({"event": "done", "index": 4, "of": 4, "complete": True, "folder": "x"})
    assert progress.line() == "finished, 0 s, 1 failed"
    shown = capsys.readouterr().err
    assert shown.endswith("finished, 0 s, 1 failed\n")


def test_notebook_progress_is_one_escaped_output(monkeypatch):
    shown: list[str] = []
    output = SimpleNamespace(update=lambda html: shown.append(html.data))
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=None))
    monkeypatch.setattr("IPython.display.display", lambda html, display_id: output)
    progress = live_progress.progress()
    for event in EVENTS:
        progress(event)
    assert 'value="2" max="4"' in shown[-1]
    assert "compiling &lt;b&gt;/triton" in shown[-1]
    progress({"event": "done", "index": 4, "of": 4, "complete": True, "folder": "x"})
    assert "<progress" not in shown[-1]
