"""The report of one run and of several: what is in it, in each format, and how it is escaped and cut to size."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from tilescope.models import compare
from tilescope.models.compare import Side
from tilescope.runs import changes, store
from tilescope.runs.recordings import of_kernel
from tilescope.table import schema
from tilescope.table.run import Failure
from tilescope.table.sources import MEASURED
from tilescope_dashboard.data import recordings
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.report import markdown, render
from tilescope_dashboard.report.build import build
from tilescope_dashboard.report.content import Part, Report
from tilescope_dashboard.report.html import html

from tests.profiles import made_up

from . import synthetic
from .conftest import INJECTED, PREDICTED, RUN
from .recordings import recorded

#: Text that is markup of one kind or another.
HOSTILE = "a|b`c`<b>&amp;*_x_*[l](u)$m$ @octocat #12 \\| ~~s~~\nsecond line" + "k" * 300


def side(path: Path) -> Side:
    return Side(store.open_run(path))


def counted(kernel: str) -> Side:
    """The newest recording of the kernel with counters."""
    return side(of_kernel(kernel)[0].path)


@pytest.fixture(scope="module")
def norms() -> Side:
    return counted("rms_norm")


@pytest.fixture(scope="module")
def whole(norms: Side) -> Report:
    """The report of all that one recording holds."""
    return build([norms])


@pytest.fixture(scope="module")
def both(norms: Side, slower: Side) -> Report:
    """The report of one kernel in two runs."""
    return build([norms, slower], "rms_norm")


@pytest.fixture(scope="module")
def slower(norms: Side, tmp_path_factory: pytest.TempPathFactory) -> Side:
    """The recorded norms with the Triton code's GPU time made half as long again, and another Triton."""
    was = norms.loaded.run
    table = norms.loaded.table.copy()
    timed = table["metric"].eq("gpu_time") & table["impl"].eq("triton")
    table.loc[timed, "value"] *= 1.5
    other = {"id": "20270101-000000-eeee", "versions": {**was.versions, "triton": "9"}}
    return side(made_up.written(tmp_path_factory.mktemp("slower"), table, **{**vars(was), **other}))


def bare(folder: Path, names: tuple[str, ...] = (), **facts: Any) -> Side:
    """A run without a single value."""
    kernels = {name: synthetic.facts(name) for name in names}
    return side(made_up.written(folder, [], kernels=kernels, device=synthetic.DEVICE, **facts))


def visible(document: str) -> str:
    """The document without its scripts and styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", document, flags=re.DOTALL)


# What is in it.


def test_html_holds_every_part_with_where_it_comes_from_and_fits(norms: Side, whole: Report) -> None:
    document = html(whole)
    assert len(document.encode()) < 5e6
    text, run = visible(document), norms.loaded.run
    for part in ("Every case", "Advice, forward", "Advice, backward", "Roofline", "HBM traffic", "Occupancy", "Roofs"):
        assert f">{part}" in text, part
    for name in run.kernels:
        assert text.count(f'<h2 class="kernel">{name}</h2>') == 1
    for fact in (">Environment", *run.versions.values(), run.id, run.started, "SM clock", "repetitions", "What to do:"):
        assert fact in text, fact
    for source in ("torch_profiler", "ncu", "compiler", "model", "datasheet", "measured"):
        assert source in text
    for line in (*run.notes, *(failure.message for failure in run.failures)):
        assert line.replace("'", "&#39;") in text


def test_settings_are_told_without_brackets(tmp_path: Path) -> None:
    conditions = {"events": {"cache_control": "L2 flushed", "warmup": 10}, "ncu": {"refused": [], "a.is_b()": True}}
    folder = synthetic.write_run(tmp_path, RUN)
    settings = {"target": "sm_90", "collectors": ["events", "ncu"], "conditions": conditions}
    made_up.redescribe(folder, settings=settings)
    said = dict(build([side(folder)], "softmax").runs[0].environment)
    assert said["collectors"] == "events, ncu"
    assert said["conditions, events"] == "cache control: L2 flushed; warmup: 10"
    assert said["conditions, ncu"] == "a.is_b(): True"


def test_a_time_is_told_with_its_spread(whole: Report) -> None:
    largest = next(kernel for kernel in whole.runs[0].kernels if kernel.name == "rms_norm").largest
    times = largest.rows.set_index(["impl", "pass"])["time"]
    told = re.fullmatch(r"(\d+) µs \((\d+) µs to (\d+) µs\)", times["triton", "backward"])
    assert told
    middle, low, high = map(int, told.groups())
    assert 310 < low < middle < high < 330
    assert largest.rows["workload"].nunique() == 1


def test_the_sweep_is_in_it(runs: Path) -> None:
    (matmul,) = build([side(runs / RUN)], "matmul").runs[0].kernels
    sweep = next(part for part in matmul.parts if part.title.startswith("Autotune, triton"))
    assert sweep.table is not None and len(sweep.table.rows) > 30 and len(sweep.drawings) == 1
    failed = [row for row in sweep.table.cells(200) if row[-1] != "–"]
    assert failed and all(row[0] == "–" for row in failed), "a config that failed has no time, not a zero"


def test_a_prediction_says_so_and_has_no_time(runs: Path) -> None:
    report = build([side(runs / PREDICTED)])
    head = report.runs[0].kernels[0]
    assert head.reached.title.startswith("Predicted, not measured")
    assert set(head.largest.rows["time"]) == {"–"}
    text = markdown.markdown(report)
    assert "GPU time (5 to 95 %)" not in text and "HBM traffic vs minimum" in text and "interpreter" in text
    assert " 0 s" not in text and "nan" not in text.lower()


def test_report_warns_of_partial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "changed_kernels", lambda loaded: ["softmax"])
    loaded = bare(tmp_path, ("softmax",)).loaded
    absent = replace(loaded.run.device, measured=False)
    report = build([Side(replace(loaded, run=replace(loaded.run, complete=False, device=absent)))])
    assert dict(report.runs[0].environment)["device"].endswith(", predicted)")
    for text in (visible(html(report)), markdown.markdown(report)):
        assert "Changed since this run: softmax." in text
        assert "not complete" in text


def test_a_run_without_a_value_is_a_report_all_the_same(tmp_path: Path) -> None:
    for number, names in enumerate([(), ("softmax",)]):
        report = build([bare(tmp_path / str(number), names)])
        assert "Environment" in html(report)
        assert "Environment" in markdown.markdown(report)
        assert [kernel.reached.title for kernel in report.runs[0].kernels] == ["This run has no data on it."] * len(
            names
        )


# Names that are markup.


def test_a_figure_cannot_end_its_script(runs: Path) -> None:
    report = build([side(runs / INJECTED)])
    drawn = Part("x", drawings=(lambda look: overview(report.runs[0].overview.table.rows, look),))
    only = replace(report.runs[0], overview=drawn, kernels=())
    text = html(Report("x", (), (only,)))
    (data,) = (found for found in re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL))
    assert synthetic.INJECTED in str(json.loads(data)), "the figure holds the name, and all of it"
    assert synthetic.INJECTED not in text


def test_reports_have_no_control_characters(tmp_path: Path) -> None:
    odd = "\x1b[31mred\u202e"
    run = bare(tmp_path, (odd,), title=odd, notes=(odd,), failures=(Failure(odd, "compiler", odd),))
    built = build([run])
    page = re.sub(r"<script.*?</script>", "", html(built), flags=re.DOTALL)
    for text in (markdown.markdown(built), page):
        assert "x1b" in text and not {"\x1b", "\u202e"} & {*text}


def test_markdown_escapes_names(tmp_path: Path) -> None:
    failures = (Failure(HOSTILE, "compiler", HOSTILE),)
    run = bare(tmp_path, (HOSTILE,), title=HOSTILE, notes=(HOSTILE,), failures=failures)
    text = markdown.markdown(build([run]))
    read = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)
    assert "<b>" not in read and "<em>" not in read and "<a " not in read and "<code>" not in read and "<s>" not in read
    assert "a|b`c`&lt;b&gt;&amp;amp;*_x_*[l](u)$m$" in read
    assert not re.search(r"[@#]\w", text.replace("&#", "")), "GitHub would mention a person or an issue"
    assert len(max(text.splitlines(), key=len)) < 2000


def test_no_character_of_markup_is_left_in_markdown(tmp_path: Path) -> None:
    assert markdown.escape("a<b") == "a&lt;b", "even unclosed: what follows may close it"
    assert markdown.escape("<!-- x") == "&lt;!-- x"
    assert markdown.escape("a|b`c`") == r"a\|b\`c\`"
    # A comment that is opened would hide all of the report after it, up to the next one's end.
    run = bare(tmp_path, ("softmax",), title="<!-- hidden", notes=("<img src=x onerror=y ", "<br"))
    text = markdown.markdown(build([run]))
    assert set(re.findall(r"<[^/> ]+", text)) <= {"<details", "<summary", "<br"}
    assert not re.search(r"<(!|img|br(?!>))", text)


# Markdown for a pull request.


def test_markdown_ranks_findings_and_names_the_cut(norms: Side, whole: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    text = markdown.markdown(whole)
    assert re.search(
        r"#### rms_norm: 1\d\d µs of GPU time, [\d.]+ % of roofline \(measured copy bandwidth\), 1\.\d\d× vs F\.rms_norm \(triton, ",
        text,
    )
    lists = re.findall(r"^1\. \*\*.+(?:\n\d+\. .+)*", text, re.MULTILINE)
    assert len(lists) == len(norms.loaded.run.kernels)
    bounds = [[float(bound) for bound in re.findall(r"; up to ([\d.]+)× in GPU time", findings)] for findings in lists]
    assert bounds == [sorted(each, reverse=True) for each in bounds]
    assert "<details><summary>Environment</summary>\n\n- run: " in text
    assert "in the HTML report" not in text and 9_000 < len(text.encode()) <= markdown.LIMIT
    monkeypatch.setattr(markdown, "LIMIT", 9_000)
    cut = markdown.markdown(whole)
    assert len(cut.encode()) <= 9_000
    assert re.search(r"_\d+ more rows are in the HTML report\._", cut)


def test_any_names_fit(tmp_path: Path) -> None:
    names = tuple(f"{number}{'<' * 700}" for number in range(25))
    failures = tuple(Failure(name, "compiler", name) for name in names)
    run = bare(tmp_path, names, title=names[0], notes=names, failures=failures)
    text = markdown.markdown(build([run]))
    assert len(text.encode()) <= markdown.LIMIT
    assert "more kernels are in the HTML report" in text


# Several runs.


def test_several_runs_are_compared_first(norms: Side, slower: Side, both: Report) -> None:
    (comparison,) = both.comparisons
    rows = compare.compare(norms, slower, "rms_norm")
    assert comparison.part and comparison.part.table
    pd.testing.assert_frame_equal(comparison.part.table.rows[list(rows)], rows)
    ours = rows["impl"].eq("triton").sum()
    assert comparison.verdict == (
        f"{slower.name} is 1.50× slower than {norms.name} in {ours} of {len(rows)} cases, as fast in {len(rows) - ours}"
    )
    assert "triton 3.6.0 → 9" in comparison.changes
    assert [part.run.id for part in both.runs] == [norms.loaded.run.id, slower.loaded.run.id]
    text = visible(html(replace(both, runs=tuple(replace(run, kernels=()) for run in both.runs))))
    assert text.index("20270101-000000-eeee against") < text.index("Every case")
    row = r"\| rms_norm \| forward \| 8192x16384-bf16 \| triton \| triton \| 1\d\d µs \| 19\d µs \| 0\.667× \|"
    assert re.search(row, markdown.markdown(both))
    title = norms.loaded.run.title
    assert both.title == f"{title} (eeee) against {title} ({norms.loaded.run.id[-4:]})"


def test_other_settings_are_not_compared(norms: Side, tmp_path: Path) -> None:
    was = norms.loaded.run
    other = {"id": "20270101-000000-abcd", "settings": {**was.settings, "cold_l2": True}}
    folder = made_up.written(tmp_path, norms.loaded.table, **{**vars(was), **other})
    (comparison,) = build([norms, side(folder)], "rms_norm").comparisons
    assert comparison.verdict == f"{folder.name} against {was.id}: times cannot be compared"
    assert "different settings: cold_l2" in comparison.obstacles[0]
    assert comparison.part and comparison.part.table
    assert not comparison.part.drawings and not comparison.part.text
    assert comparison.part.table.rows["speedup"].isna().all()


def test_report_of_runs_with_nothing_in_common_says_so(norms: Side) -> None:
    report = build([norms, counted("cross_entropy")], "rms_norm")
    assert "no case in common" in report.comparisons[0].obstacles[-1]
    assert report.comparisons[0].part is None
    alone = replace(report, runs=())
    assert "no case in common" in visible(html(alone)) and "no case in common" in markdown.markdown(alone)
    lacking = report.runs[1]
    assert (lacking.kernels, lacking.overview.drawings) == ((), ())
    assert lacking.overview.text == "This run has no data on it."


def test_an_implementation_is_held_against_triton(norms: Side) -> None:
    report = build([norms, Side(norms.loaded, "compile")], "rms_norm")
    (comparison,) = report.comparisons
    assert (comparison.baseline, comparison.candidate) == (f"{norms.name}:triton", f"{norms.name}:compile")
    assert len(report.runs) == 1, "a run has its sections once"
    assert report.title == f"{norms.loaded.run.title}: compile against triton"


# The tidy table.


def test_parquet_is_the_table_to_the_type(norms: Side, slower: Side, tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    file.write_bytes(render([norms, slower], "parquet"))
    both = pd.concat([norms.loaded.table, slower.loaded.table], ignore_index=True)
    pd.testing.assert_frame_equal(pd.read_parquet(file), both)
    file.write_bytes(render([norms, slower], "parquet", "rms_norm"))
    pd.testing.assert_frame_equal(pd.read_parquet(file), both[both["kernel"] == "rms_norm"].reset_index(drop=True))
    assert list(both.columns) == list(schema.COLUMNS)


def test_csv_has_a_header_units_and_empty_cells(norms: Side, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    file.write_bytes(render([norms], "csv"))
    assert file.read_text().splitlines()[0] == ",".join(schema.COLUMNS)
    read = pd.read_csv(file, keep_default_na=False, na_values={"launch": "", "sample": ""})
    table = norms.loaded.table
    assert read["value"].tolist() == table["value"].tolist()
    assert set(read.loc[read["metric"] == "gpu_time", "unit"]) == {"second"}
    assert read["launch"].isna().tolist() == table["launch"].isna().tolist()
    assert "nan" not in file.read_text().lower().replace("nand", "")


def test_lines_of_source_are_in_it_with_what_they_cost() -> None:
    kept = next(s for s in recorded() if s.title == "softmax")
    report = build([side(kept.path)])
    (part,) = (part for part in report.runs[0].kernels[0].parts if part.title.startswith("Source, forward"))
    assert part.listing and part.listing.columns[0].metric == "stall_samples" and "From another run" not in part.text
    # A row is loaded in a function of another file: the hottest line is there.
    hot = re.match(r"(row_tiles\.py:\d+) has ([\d.]+) % of stall samples \(ncu\)\.", part.text)
    assert hot and float(hot[2]) > 10
    row = re.search(r'<tr data-line="\d+">(?:(?!</tr>).)*heat measured.*?</tr>', html(report))
    assert row
    # The hottest line heads its table.
    assert re.search(rf"^\| {hot[1]} \| [\d,]+ \| {hot[2]} % ", markdown.markdown(report), re.MULTILINE)


def test_report_borrows_lines_and_sweep_and_names_origin() -> None:
    loaded = store.open_run(of_kernel("softmax")[0].path)
    predicted = replace(loaded, run=replace(loaded.run, id="20261121-000000-aaaa"))
    predicted.__dict__["lines"] = loaded.lines[~loaded.lines["source"].isin(MEASURED)]
    softmax = Side(predicted)
    parts = build([softmax]).runs[0].kernels[0].parts
    own, other = (
        [part for part in parts if part.title.startswith(("Source", "Autotune")) and ("another" in part.text) == it]
        for it in (False, True)
    )
    assert all(part.listing and not part.listing.columns[0].measured for part in own) and len(own) == 2
    sweep, lines = other
    for part, run, day in ((sweep, "reductions: autotune sweeps", "11-30"), (lines, "softmax", "12-01")):
        assert part.text.startswith(f"From another run: {run}, recorded 2026-{day} on NVIDIA H200")
    assert "the default" in sweep.text and "did not time" not in sweep.text
    assert lines.listing and lines.listing.columns[0].measured
    assert recordings.best_other(softmax.loaded, "no such kernel", recordings.MEASURED_LINES) is None


def test_report_without_source_text_lists_line_numbers(tmp_path: Path) -> None:
    kept = next(s for s in recorded() if s.title == "softmax")
    folder = shutil.copytree(kept.path, tmp_path / kept.id)
    (folder / "sources.json.gz").unlink()
    loaded = side(folder).loaded
    loaded.run.kernels["softmax"]["sha256"] = "another"
    report = build([Side(loaded)])
    (part,) = (part for part in report.runs[0].kernels[0].parts if part.title.startswith("Source, forward"))
    assert part.listing and not part.listing.text and "has no copy of" in part.text
    assert "<code>" not in html(report) and re.search(
        r"^\| [\w.:]+ \| [\d,]+ \|", markdown.markdown(report), re.MULTILINE
    )
