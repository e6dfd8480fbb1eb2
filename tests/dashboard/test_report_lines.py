"""Source lines and sweeps in a report: the run's own, or another's."""

import re
import shutil
from pathlib import Path

from tilescope.models.compare import Side
from tilescope.runs.recordings import of_kernel
from tilescope_dashboard.data import recordings
from tilescope_dashboard.report import markdown
from tilescope_dashboard.report.build import build
from tilescope_dashboard.report.html import html

from .recordings import recorded
from .test_report import side


def test_lines_of_source_are_in_it_with_what_they_cost() -> None:
    kept = next(s for s in recorded() if s.title == "softmax by source line")
    report = build([side(kept.path)])
    (part,) = (part for part in report.runs[0].kernels[0].parts if part.title.startswith("Source, forward"))
    assert part.listing and part.listing.columns[0].metric == "stall_samples" and "From another run" not in part.text
    hot = re.match(r"Line (\d+) has ([\d.]+) % of stall samples \(ncu\)\.", part.text)
    assert hot and float(hot[2]) > 10
    line = part.listing.text.splitlines()[int(hot[1]) - 1].strip()
    assert "tl.load" in line
    text = html(report)
    row = re.search(rf'<tr data-line="{hot[1]}">.*?</tr>', text)
    assert row and "heat measured" in row[0] and "MB" in row[0] and "tl.load(" in row[0]
    # The hottest line heads its table.
    assert re.search(rf"^\| {hot[1]} \| [\d,]+ \| {hot[2]} % ", markdown.markdown(report), re.MULTILINE)


def test_report_borrows_lines_and_sweep_and_names_origin() -> None:
    softmax = side(of_kernel("softmax")[0].path)
    parts = build([softmax]).runs[0].kernels[0].parts
    own, other = (
        [part for part in parts if part.title.startswith(("Source", "Autotune")) and ("another" in part.text) == it]
        for it in (False, True)
    )
    assert all(part.listing and not part.listing.columns[0].measured for part in own) and len(own) == 2
    sweep, lines = other
    for part, run, day in ((sweep, "reductions: autotune sweeps", 26), (lines, "softmax by source line", 27)):
        assert part.text.startswith(f"From another run: {run}, recorded 2026-11-{day} on NVIDIA H200")
    assert "the default" in sweep.text and "did not time" not in sweep.text
    assert lines.listing and lines.listing.columns[0].measured
    assert recordings.best_other(softmax.loaded, "no such kernel", recordings.MEASURED_LINES) is None


def test_report_without_source_text_lists_line_numbers(tmp_path: Path) -> None:
    kept = next(s for s in recorded() if s.title == "softmax by source line")
    folder = shutil.copytree(kept.path, tmp_path / kept.id)
    (folder / "sources.json.gz").unlink()
    loaded = side(folder).loaded
    loaded.run.kernels["softmax"]["sha256"] = "another"
    report = build([Side(loaded)])
    (part,) = (part for part in report.runs[0].kernels[0].parts if part.title.startswith("Source, forward"))
    assert part.listing and not part.listing.text and "has no copy of" in part.text
    assert "<code>" not in html(report) and re.search(r"^\| 27 \| [\d,]+ \|", markdown.markdown(report), re.MULTILINE)
