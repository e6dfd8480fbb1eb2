"""The source view: heat by line, the assembly beside it, and nothing that a text from a run could do to the page."""

import dataclasses
import gzip
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from tilescope.collectors.compiled_text import Text
from tilescope.runs import store
from tilescope.runs.store import RunWriter
from tilescope.table import line_values, schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Run
from tilescope_dashboard.components import code_pair
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.topics import source as topic
from tilescope_dashboard.topics.source import FunctionLaunch, LineColumn
from tilescope_dashboard.views.source import Source

from tests.profiles import made_up

from .conftest import field, grid, opened
from .conftest import said as words
from .test_contrast import contrast, rgb

INJECTED = "<script>document.title='injected'</script>"
DEVICE = Device("Synthetic GPU", "sm_90", 100, 1, 1, True)
CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")
SWEPT = dataclasses.replace(CASE, config="BLOCK=64")
STALLS, CODE = LineColumn("stall_samples", "ncu"), LineColumn("sass_instructions", "compiler")
BYTES = LineColumn("requested_bytes_read", "interpreter")
SOURCE = f"""import triton

LIMIT = 4


@triton.jit
def softmax_kernel(x, y):
    largest = tl.max(x)  # {INJECTED}
    tl.store(y, x - largest)


def unrelated():
    return LIMIT
"""
SASS = (
    f"/*0000*/  LDG.E R1, [R2.64]  // softmax.py:8\n.L_x_0:\n/*0010*/  STG.E [R2.64], R1 {INJECTED}  // softmax.py:9\n"
)


def rows(column: LineColumn, by_line: dict[int, float], case: Case = CASE, **place: object) -> list[dict]:
    at = {"launch": 0, "function": "softmax_kernel", "file": "softmax.py", **place}
    return [case.row(column.metric, value, column.source, line=line, **at) for line, value in by_line.items()]


@pytest.fixture
def frame() -> pd.DataFrame:
    """As a recording has it: the compiler knows two lines, ncu one of them, another file's and one that is not a number."""
    return line_values.frame(
        rows(CODE, {8: 30.0, 9: 10.0}) + rows(STALLS, {8: 60.0, 9: float("nan")}, launch=3)
        + rows(STALLS, {191: 20.0}, file="standard.py", launch=3) + rows(BYTES, {8: 134_217_728.0})
    )  # fmt: skip


def cells(markup: str, line: int) -> list[str]:
    """What the cells of a source line say."""
    row = re.search(rf'<tr data-line="{line}">(.*?)</tr>', markup)
    assert row
    return [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row[1])]


def test_launches_are_matched_across_sources_by_their_function(frame: pd.DataFrame) -> None:
    more = line_values.frame(rows(STALLS, {8: 1.0}, launch=5) + rows(STALLS, {20: 7.0}, function="other"))
    both = pd.concat([frame, more], ignore_index=True)
    found = topic.launches(both)
    assert found == [
        FunctionLaunch("softmax_kernel", 0), FunctionLaunch("softmax_kernel", 1), FunctionLaunch("other", 0),
    ]  # fmt: skip
    assert found[1].label == "softmax_kernel, launch 2"
    first = topic.of_launch(both, found[0])
    assert set(first["source"]) == {"compiler", "ncu", "interpreter"}
    assert topic.of_launch(both, found[1])["value"].tolist() == [1.0]


def test_listing_says_shares_of_the_launch(frame: pd.DataFrame) -> None:
    own = topic.of_launch(frame, FunctionLaunch("softmax_kernel", 0))
    stalls = topic.by_line(own, STALLS)
    assert stalls.to_dict() == {("softmax.py", 8): 60.0, ("standard.py", 191): 20.0}
    assert topic.shares(stalls).tolist() == [0.75, 0.25]
    assert topic.hottest(own, STALLS, "softmax.py") == ("softmax.py", 8, 0.75)
    assert topic.hottest(own, STALLS, "else.py") is None
    assert topic.shares(pd.Series([0.0])).tolist() == [0.0]
    assert topic.files(own) == ["softmax.py", "standard.py"]
    markup = code_pair.source(SOURCE, "softmax.py", own, [STALLS, CODE], [(6, 9)])
    assert cells(markup, 8)[:2] == ["6075 %", "3075 %"]
    # ncu has nothing of the line: not a zero.
    assert cells(markup, 9)[:2] == ["–", "1025 %"]
    assert cells(markup, 6) == ["", "", "@triton.jit"]
    assert "ncu, measured" in markup
    assert "compiler, predicted" in markup
    assert markup.count('class="heat measured"') == 1
    assert markup.count('class="heat predicted"') == 2
    assert "lines 1 to 5" in markup
    assert "lines 10 to 13" in markup
    assert 'data-line="12"' not in markup
    apart = code_pair.elsewhere(own, "softmax.py", [STALLS, CODE])
    assert "standard.py:191" in apart
    assert re.sub(r"<[^>]*>", " ", apart).split()[-3:] == ["20", "25", "%"]
    assert code_pair.elsewhere(own[own["file"] == "softmax.py"], "softmax.py", [STALLS]) == ""


def test_columns_begin_with_where_the_time_goes(frame: pd.DataFrame) -> None:
    known = topic.line_columns(frame)
    assert [column.text for column in known] == [
        "stall samples (ncu)", "bytes requested, read (interpreter)", "SASS instructions (compiler)",
    ]  # fmt: skip
    assert topic.first_columns(known, 3) == known[:2]
    assert topic.first_columns(known, 1) == [STALLS]
    assert topic.first_columns(known[2:], 3) == [CODE]
    assert topic.first_columns([LineColumn("shared_wavefronts", "ncu")], 3) == [LineColumn("shared_wavefronts", "ncu")]
    assert topic.first_columns([], 3) == []


def test_an_excerpt_is_of_the_functions_that_have_lines() -> None:
    assert topic.excerpt(SOURCE, [8, 9]) == [(6, 9)]
    assert topic.excerpt(SOURCE, [8, 13]) == [(6, 9), (12, 13)]
    # Outside of every function, none known, or no Python: all of it.
    assert topic.excerpt(SOURCE, [3, 8]) == topic.excerpt(SOURCE, []) == [(1, 13)]
    assert topic.excerpt("def broken(:\n    pass\n", [2]) == [(1, 2)]


def test_texts_are_escaped() -> None:
    hostile = line_values.frame(rows(CODE, {1: 1.0}, file=INJECTED) + rows(STALLS, {1: 1.0}, file="<b>"))
    markup = code_pair.pair(
        code_pair.source(INJECTED, INJECTED, hostile, [CODE], [(1, 1)])
        + code_pair.elsewhere(hostile, INJECTED, [STALLS]),
        code_pair.assembly("sass", ["sass"], [Text(INJECTED, "k.py", 1)]) + code_pair.assembly("ptx", [], [], INJECTED),
        LIGHT,
    )
    assert "<script>" not in markup
    assert "<b>" not in markup
    assert markup.count("&lt;script&gt;") == 4


def test_assembly_lines_know_their_source_line() -> None:
    markup = code_pair.assembly("sass", ["sass", "ptx"], [Text("LDG", "k.py", 8, 0), Text(".L_x:", "k.py")])
    assert '<tr data-line="8"><th scope="row">8</th><td><code>LDG</code>' in markup
    assert '<tr><th scope="row"></th><td><code>.L_x:</code>' in markup
    assert re.findall(r'name="stage" value="(\w+)"( checked)?', markup) == [("ptx", ""), ("sass", " checked")]


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_values_can_be_read_on_their_bars(look) -> None:
    heat = re.search(r"--heat: (#\w{6})", code_pair.pair("", "", look))
    assert heat
    assert contrast(rgb(heat[1]), rgb(look.ink)) >= 7


@pytest.fixture
def run(own_runs: Path, frame: pd.DataFrame) -> str:
    """A run of softmax with lines of two cases, and of matmul without any; its id."""
    facts = {"softmax": {"file": "", "sha256": ""}, "matmul": {"file": "", "sha256": ""}}
    writer = RunWriter(own_runs, Run("20260102-030405-eeee", "2026-01-02T03:04:05+00:00", DEVICE, facts, {}, {}))
    table = [case.row("registers", 32, "compiler", launch=0, function="softmax_kernel") for case in (CASE, SWEPT)]
    table.append(CASE.row("algorithm_bytes_read", 100, "model"))
    writer.append(schema.frame(table))
    writer.append_lines("softmax", frame, {"softmax.py": SOURCE})
    writer.append_lines("softmax", line_values.frame(rows(CODE, {9: 5.0}, case=SWEPT)), {})
    artefact = {
        "launches": [{"function": "softmax_kernel", "file": "softmax.py", "stages": {"ptx": "ret;", "sass": SASS}}]
    }
    writer.artefact_path("compiler", CASE, ".json.gz").write_bytes(gzip.compress(json.dumps(artefact).encode()))
    writer.finish()
    return writer.run.id


def shown(run: str, kernel: str = "softmax") -> Source:
    return opened(Source, run=run, kernel=kernel)


def test_view_opens_on_the_hottest_line_and_follows(run: str) -> None:
    view = shown(run)
    assert "Line 8 has 75.0 % of stall samples (ncu)" in words(view)
    assert "ncu counts inlined calls from other files separately" in words(view)
    assert field(view, "case").value == ("triton", "forward", "16384x4096-bf16", "")
    assert view.code.line == 8
    assert "LDG.E R1" in view.code.markup
    assert "<script>" not in view.code.markup
    assert INJECTED not in words(view)
    table = grid(view).filled
    assert table["label"].tolist().count("stall samples") == 2
    assert set(table["source"]) == {"ncu", "compiler", "interpreter"}
    view.code.stage = "ptx"
    assert "<code>ret;</code>" in view.code.markup
    field(view, "columns").value = [CODE]
    assert "ncu, measured" not in view.code.markup
    assert "Line 8 has 75.0 % of SASS instructions (compiler)" in words(view)
    field(view, "case").value = ("triton", "forward", "16384x4096-bf16", "BLOCK=64")
    # The choice of columns stays; the line that was chosen is not in this case.
    assert field(view, "columns").value == [CODE]
    assert view.code.line == 9
    assert "Line 9 has 100 %" in words(view)
    assert "No assembly of this case" in view.code.markup
    field(view, "columns").value = []
    assert "softmax_kernel" in words(view)


def test_lines_of_another_case_than_the_pages_are_named(run: str, tmp_path: Path) -> None:
    assert "No run has lines of" not in words(shown(another(tmp_path, "20260103-000000-0001", {"softmax": {}})))
    small = dataclasses.replace(CASE, workload="8x8-fp32")
    view = shown(another(tmp_path, "20260103-000000-0002", {"softmax": {}}, of=small))
    said = "Line 8 has 75.0 % of stall samples (ncu), but in another case, triton · forward · 16384x4096-bf16"
    assert said in words(view)
    assert "Another size may not launch softmax_kernel." in words(view)


@pytest.mark.parametrize(
    ("workload", "launched"),
    [(CASE.workload, "rows_kernel"), ("8x8-fp32", "rows_kernel"), ("8x8-fp32", "softmax_kernel")],
)
def test_lines_of_another_kernel_than_the_pages_are_named(
    run: str, tmp_path: Path, workload: str, launched: str
) -> None:
    case = dataclasses.replace(CASE, workload=workload)
    rows = [case.row("registers", 32, "compiler", launch=0, function=launched)]
    made_up.written(tmp_path, rows, "20260103-000000-0003", {"softmax": {}}, device=DEVICE)
    said, other = words(shown("20260103-000000-0003")), launched != "softmax_kernel"
    assert ("triton · forward · 16384x4096-bf16, which launched softmax_kernel" in said) == other
    assert (f"{workload} launches rows_kernel and not softmax_kernel." in said) == other
    assert ("No run has lines of" in said) == (workload != CASE.workload)
    assert "may not launch" not in said


def test_a_kernel_without_lines_says_what_to_do(run: str, no_recordings: None) -> None:
    view = shown(run, "matmul")
    said = view.head.object
    assert "<code>tilescope profile matmul --collect compiler,interpreter</code>" in said
    assert "<code>tilescope profile matmul --collect compiler,interpreter,ncu_source</code>" in said
    assert not view.body.visible
    view.state.kernel = "softmax"
    assert view.body.visible


def another(
    folder: Path, identity: str, facts: dict, found: pd.DataFrame | None = None, title: str = "", *, of: Case = CASE
) -> str:
    """A run with a row of each kernel that ``facts`` describes, and the lines ``found``; its id."""
    writer = RunWriter(folder, Run(identity, "2026-01-03T00:00:00+00:00", DEVICE, facts, {}, {}, title=title))
    writer.append(schema.frame([Case(n, *of.id.split("/")[1:]).row("registers", 32, "compiler") for n in facts]))
    if found is not None:
        writer.append_lines("softmax", found, {"softmax.py": SOURCE})
    writer.finish()
    return identity


def test_source_offers_lines_of_another(own_runs: Path, frame: pd.DataFrame) -> None:
    predicted = another(own_runs, "20260103-000000-0001", {"softmax": {}}, frame[frame["source"] != "ncu"])
    another(own_runs, "20260103-000000-0002", {"softmax": {}}, frame[frame["source"] == "compiler"])
    measured = another(own_runs, "20260103-000000-0003", {"softmax": {}}, frame, title=INJECTED)
    view = shown(predicted)
    choice = field(view, "lines of")
    assert choice.visible
    assert view.origin[1] == predicted
    assert "stall samples (ncu)" not in words(view)
    choice.value = list(choice.options.values())[1]
    assert (view.origin[1], view.state.run) == (measured, predicted)
    assert "stall samples (ncu)" in words(view)
    assert "<script>" not in words(view)
    view.state.theme = "dark"
    assert view.origin[1] == measured
    view.state.run = measured
    assert not choice.visible


def test_case_with_measured_lines_comes_first(frame: pd.DataFrame) -> None:
    compiled = frame[frame["source"] == "compiler"].assign(workload="8x8-fp32")
    both = pd.concat([compiled, frame], ignore_index=True)
    assert topic.first_case(both, ("8x8-fp32", "forward")) == ("triton", "forward", CASE.workload, "")
    assert topic.first_case(compiled, ("8x8-fp32", "forward")) == ("triton", "forward", "8x8-fp32", "")


def test_without_its_text_a_run_shows_numbers_only(run: str) -> None:
    (store.find(run) / "sources.json.gz").unlink()
    view = shown(run)
    assert "This run has no copy of softmax.py" in view.no_text.object
    assert 'data-line="8"' not in view.code.markup.partition("assembly")[0]
    assert len(grid(view).filled) == 5
