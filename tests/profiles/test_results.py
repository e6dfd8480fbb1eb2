"""One line a case, and nothing where nothing was measured."""

import argparse
from dataclasses import replace
from pathlib import Path

from tilescope.commands import check, running
from tilescope.hardware.device import for_target
from tilescope.models import summary, terminal, text_table
from tilescope.notebook.opened_run import Profile
from tilescope.runs.store import LoadedRun
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Failure, Run, Skipped

from . import made_up

DEVICE = for_target("sm_90")
A = Case("softmax", "triton", "forward", "8x8-fp32")
B = Case("softmax", "eager", "backward", "8x8-fp32")
RUN = Run("20260101-000000-aaaa", "", DEVICE, {}, {}, {})


def table():
    rows = [B.row("algorithm_flops", 1, "model")]
    for launch, registers in enumerate((40, 32)):
        for sample, scale in enumerate((1, 2, 9)):
            rows.append(A.row("gpu_time", scale * 1e-6, "torch_profiler", launch=launch, function="k", sample=sample))
        rows.append(A.row("gpu_time", 5e-6, "ncu", launch=launch, function="k"))
        rows.append(A.row("registers", registers, "compiler", launch=launch, function="k"))
        rows.append(A.row("registers", 255, "ncu", launch=launch, function="k"))
        rows.append(A.row("requested_bytes_read", 5_695_052, "interpreter", launch=launch, function="k"))
        for limit, blocks in (("registers", 8), ("warps", 8 + launch), ("blocks", 32)):
            rows.append(A.row(f"occupancy_limit_{limit}", blocks, "ncu", launch=launch, function="k"))
    return schema.frame(rows)


def test_times_are_added_up_and_resources_are_what_ran():
    headings, rows, keys = text_table.cells(summary.summarise(table(), DEVICE))
    row = dict(zip(headings, rows[1], strict=True))
    assert (keys, rows[0][keys:]) == (4, ["–"] * (len(headings) - keys))
    (shown,) = text_table.text(LoadedRun(RUN, table(), Path())).splitlines()[1:]
    assert all(row[name] in shown for name in ("GPU time", "registers", "requested B r / w"))
    assert row["GPU time"] == "4.00 µs"  # the median repetition of both launches, by the profiler
    assert row["registers"] == "255"  # what ran, not what the compiler was given
    assert row["requested B r / w"] == "11,390,104 / –"
    assert row["limited by"] == "registers, warps"
    # The table has no column for an absent value.
    assert not {"unique B r / w", "config"} & {*headings} and not any("HBM" in heading for heading in headings)


def test_a_run_whose_findings_are_no_values_says_where_they_are(tmp_path, capsys):
    empty = LoadedRun(RUN, schema.frame([]), tmp_path)
    assert text_table.text(empty) == "no case gave a result" and running.without_values(empty) == 1
    (tmp_path / "artefacts" / "ncu_activity").mkdir(parents=True)
    (tmp_path / "artefacts" / "ncu_activity" / "case.csv.gz").touch()
    capsys.readouterr()
    assert "activity over a launch's time (ncu_activity)" in text_table.text(empty)
    assert running.without_values(empty) == 0 and not capsys.readouterr().out


def test_tables_as_text():
    text = terminal.render(["name", "count"], [["a", "1"], ["long name", "1,000"]])
    assert text.splitlines() == ["name       count", "a              1", "long name  1,000"]


def test_a_check_that_was_skipped_stands_in_the_table():
    checked, failed, skipped = (Case("k", "triton", "forward", f"{size}-fp32") for size in (1, 2, 3))
    rows = [case.row("registers", 40, "compiler", launch=0, function="k") for case in (checked, failed, skipped)]
    rows += [checked.row("relative_error", 0, "check"), checked.row("tolerance", 1e-5, "check")]
    failures = (Failure(f"/home/own.py:{failed.id}", "check", "no"),)
    own = replace(skipped, kernel=f"/home/own.py:{skipped.kernel}")
    run = replace(RUN, failures=failures, skipped=(Skipped("check", "too long", (own,)), Skipped("ncu", "none")))
    # One of before says it in a note, and of how many.
    before = {**replace(RUN, notes=("check skipped 1 of triton: too long",), failures=failures).to_json()}
    del before["skipped"]
    for one in (run, Run.from_json(before), replace(run, skipped=(Skipped("check", "no reference"),))):
        loaded = LoadedRun(one, schema.frame(rows), Path())
        assert [line.split()[4] for line in text_table.text(loaded).splitlines()[1:]] == ["0.00e+00", "–", "skipped"]
        assert made_up.html(Profile.of(loaded)).count(">skipped<") == 1
    # Nobody asked for a check: there is nothing to say.
    assert "error" not in text_table.text(LoadedRun(RUN, schema.frame(rows[:3]), Path()))


def test_the_command_lists_what_was_wrong_right_and_skipped(monkeypatch, capsys):
    right, wrong, left = (Case("k", "triton", "forward", f"{size}-fp32") for size in (1, 2, 3))
    rows = [case.row("algorithm_flops", 1, "model") for case in (right, wrong, left)]
    for case, error in ((right, 0), (wrong, 1)):
        rows += [case.row("relative_error", error, "check"), case.row("tolerance", 1e-5, "check")]
    run = replace(RUN, skipped=(Skipped("check", "takes too long", (left,)),), settings={"target": "sm_90"})
    loaded = LoadedRun(run, schema.frame(rows), Path())
    monkeypatch.setattr(check.running, "run", lambda plan: (loaded, False))
    parser = argparse.ArgumentParser()
    check.add(parser)
    assert check.run(parser.parse_args(["k"])) == 1
    told = capsys.readouterr()
    assert [line.split()[4] for line in told.out.splitlines()[1:4]] == ["ok", "wrong", "skipped"]
    assert "1 of 2 cases are wrong" in told.err


def test_table_is_no_wider_than_the_terminal(monkeypatch):
    rows = [["a_kernel_with_a_long_name" * 4, "tri[red]ton\x1b[31m", "12 µs", *["1,234,567"] * 20] for _ in range(2)]
    headings = ["kernel", "impl", "GPU time", *(f"value {n}" for n in range(20))]
    for width in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = terminal.render(headings, rows, keys=2).splitlines()
        assert max(map(len, lines)) <= width
        assert any("tri[red]" in line for line in lines) and not any("\x1b" in line for line in lines)
        assert ("GPU time" in lines[0]) == (width > 40)
        assert "not shown at this width: " in " ".join(lines) and "value 19" in " ".join(lines)
        assert "".join(lines).replace(" ", "").count("a_kernel") == 8
    said = terminal.render(["config", "failed"], [["BLOCK=256,num_warps=4", "2048 threads a block " * 9]])
    assert said.count("2048") == 9 and "BLOCK=256,num_warps=4" in said
    monkeypatch.setenv("COLUMNS", "400")
    assert "not shown" not in terminal.render(headings, rows, keys=2)


def test_line_is_wrapped_on_a_terminal_only(monkeypatch, capsys):
    line = f"note: {'word ' * 20}[bold] /a/path/{'p' * 60}"
    terminal.say(line)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    terminal.say(line)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.split() == [*line.split()[:-1], "/a/path/" + "p" * 32, "p" * 28]


def test_long_cells_wrap_before_short_ones(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    row = [
        "20261201-035458-6f5b",
        "predicted for NVIDIA H200 (sm_90)",
        "norms and linear layers: autotune sweeps",
        "12",
        "predicted",
    ]
    lines = terminal.render(["run", "device", "title", "cases", "remarks"], [row]).splitlines()
    assert "20261201-035458-6f5b" in lines[1] and len(lines) > 2
    assert all(len(line) <= 80 for line in lines)
