"""Traces inside kernels that people open: ours, and Proton's as its instrumentation writes them."""

import json
from pathlib import Path

import pytest
from tilescope.collectors.lanes import trace
from tilescope.models import lanes
from tilescope.notebook.opening import open_file
from tilescope.runs.store import StoreError
from tilescope.table.case import Case

FIXTURES = Path(__file__).parent / "fixtures" / "lanes"

pytestmark = pytest.mark.usefixtures("runs")


def lanes_of(path):
    """The run that the file makes, and its lanes."""
    run = open_file(path)
    first = run.table.iloc[0]
    return run, lanes.of_case(run, Case(*first[["kernel", "impl", "pass", "workload", "config"]]))


def event(program, warp, name, start, end, *, line=0):
    """An event as Proton writes it."""
    place = {"pid": f"my_kernel Core{program % 2} CTA{program}", "tid": f"warp {warp} (line {line})"}
    about = {"cname": "good", "name": name, "cat": "my_kernel", "ph": "X", "args": {"call_stack": []}}
    return {**about, **place, "ts": start, "dur": end - start}


def written(folder, events):
    path = folder / "my.chrome_trace"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    return path


def test_our_own_trace_opens_as_it_was():
    run, found = lanes_of(FIXTURES / "hopper.trace.json.gz")
    assert run.run.settings["tool"] == "Tilescope (lanes)"
    assert list(run.run.kernels) == ["matmul_hopper_kernel"] and len(found.spans) == 1183
    wait = lanes.longest_wait(trace.by_line(found.spans))
    assert (wait.line, wait.awaits) == (165, "TMA load of lines 90 and 97") and wait.share > 0.1
    assert run.table.set_index("metric")["value"]["lane_tile_wait_line"] == 165


def test_proton_s_trace_opens_with_the_inner_scopes_in_the_outer(tmp_path):
    scopes = [
        event(0, 4, "loop", 1.0, 9.0),
        event(0, 4, "wait for a", 2.0, 5.0, line=1),
        event(0, 4, "mma", 5.0, 6.0, line=1),
    ]
    run, found = lanes_of(written(tmp_path, [*scopes, event(0, 0, "loop", 1.0, 3.0)]))
    spans = found.spans[found.spans["warp"] == 4]
    parts = [(span.name, round(span.start, 9), round(span.end, 9)) for span in spans.itertuples()]
    assert parts == [("loop", 1e-6, 2e-6), ("wait for a", 2e-6, 5e-6), ("mma", 5e-6, 6e-6), ("loop", 6e-6, 9e-6)]
    assert spans["kind"].tolist() == ["arithmetic", "wait", "product", "arithmetic"]
    assert run.table.set_index("metric")["value"]["lane_wait_share"] == pytest.approx(3 / 10)


def test_proton_s_trace_of_many_programs_says_how_many_are_kept(tmp_path):
    run, found = lanes_of(written(tmp_path, [event(program, 0, "load", 1.0, 2.0) for program in range(20)]))
    assert found.spans["program"].nunique() == 7
    assert "of my_kernel 7 of 20 programs are kept" in run.run.notes


def test_a_damaged_trace_of_lanes_is_one_line(tmp_path):
    path = written(tmp_path, [event(0, 0, "load", 1.0, 2.0)])
    path.write_text(path.read_text()[:-40])
    with pytest.raises(StoreError, match="cut off"):
        open_file(path)
