"""The collector of ncu's source page, on output of an H200: launches are assigned to their cases."""

import gzip
from pathlib import Path

import pandas as pd
import pytest
from tilescope.collectors import compiled_text
from tilescope.collectors.ncu import counters, source
from tilescope.collectors.ncu import source as collector
from tilescope.table.case import Case

from . import made_up

FIXTURES = Path(__file__).parent / "fixtures"
PAGE = gzip.decompress((FIXTURES / "source_cuda_sass_h200.csv.gz").read_bytes()).decode()
SOFTMAX = Case("softmax", "triton", "forward", "16384x4096-bf16")
MATMUL = Case("matmul", "triton", "forward", "4096x4096x4096-bf16")
NVTX = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def details(*launches):
    """The columns of a details page that tell whose a launch is, two metrics a launch."""
    rows = [
        {"ID": str(number), "Kernel Name": name, NVTX: f"0:<default domain>:tilescope:{case.slug}:none" if case else ""}
        for number, (name, case) in enumerate(launches)
        for _ in range(2)
    ]
    return rows


def test_the_page_is_divided_among_the_cases():
    # A library's kernel, between them, has no source lines.
    order = details(
        ("softmax_kernel", SOFTMAX), ("void at::native::vectorized_elementwise_kernel", MATMUL), ("mm_kernel", MATMUL)
    )
    found = collector.divide(PAGE, order, [SOFTMAX, MATMUL])
    assert set(found) == {SOFTMAX, MATMUL}
    assert [launch.function for launch in source.launches(found[MATMUL])] == ["mm_kernel"]
    whole = source.parse_page(PAGE, SOFTMAX)
    alone = source.parse_page(found[SOFTMAX], SOFTMAX)
    pd.testing.assert_frame_equal(alone, whole[whole["function"] == "softmax_kernel"])


def test_launch_whose_last_row_is_cut_off_keeps_its_case():
    order = details(("softmax_kernel", SOFTMAX), ("mm_kernel", MATMUL))
    assert collector.divide(PAGE, [*order, {"ID": "1"}], [SOFTMAX, MATMUL]).keys() == {SOFTMAX, MATMUL}


def test_parse_without_instructions_has_no_values():
    """ncu prints a table without SASS rows for code that it cannot read."""
    lines_only = "".join(line for line in PAGE.splitlines(keepends=True) if '"0x' not in line)
    code = compiled_text.read("sass", "/*0000*/  EXIT  // softmax.py:3\n", "softmax.py")
    assert source.parse_page(lines_only, SOFTMAX, {"softmax_kernel": code}).empty


def test_launches_of_one_function_go_to_their_cases_in_order():
    larger = Case("softmax", "triton", "forward", "32768x4096-bf16")
    one = PAGE[: PAGE.index('"File Path"', PAGE.index("mm_kernel") - 200)]
    order = details(
        ("softmax_kernel", SOFTMAX), ("softmax_kernel", None), ("softmax_kernel", larger), ("softmax_kernel", larger)
    )
    found = collector.divide(one * 4, order, [SOFTMAX, larger])
    assert [len(source.launches(found[case])) for case in (SOFTMAX, larger)] == [1, 2]


def ncu(monkeypatch, folder, script):
    """A program that stands for ncu; the file that its arguments are written to, a line a call."""
    program = folder.parent / f"{folder.name}-tools" / "ncu"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> "$0.asked"\n{script}\n')
    program.chmod(0o755)
    made_up.machine(monkeypatch, ncu=str(program))
    return program.with_name("ncu.asked")


@pytest.mark.parametrize("printed", [True, False], ids=["in the log", "in the report"])
def test_finish_reads_the_report_back_and_removes_it(printed, tmp_path, monkeypatch):
    order = pd.DataFrame(details(("softmax_kernel", SOFTMAX))).assign(**{"Metric Name": "m", "Metric Value": "1"})
    table = order.to_csv(index=False, quoting=1)
    (tmp_path / counters.LOG).write_text("==PROF== Connected\n" + (table if printed else ""))
    (tmp_path / "report.ncu-rep").touch()
    page = FIXTURES / "source_cuda_sass_h200.csv.gz"
    asked = ncu(monkeypatch, tmp_path, f"case $* in *source*) zcat {page};; *) cat $0.table;; esac")
    (asked.parent / "ncu.table").write_text(table)
    collector.finish(tmp_path, [SOFTMAX, MATMUL])
    *others, last = asked.read_text().splitlines()
    assert last == f"--import {tmp_path / 'report.ncu-rep'} --page source --csv --print-source cuda,sass"
    assert len(others) == (0 if printed else 1)
    artefact = tmp_path / f"{SOFTMAX.slug}.csv.gz"
    assert list(tmp_path.iterdir()) == [artefact]
    frame, sources = collector.parse_lines(artefact, SOFTMAX)
    assert sources == {}
    assert frame.loc[frame["metric"] == "stall_samples", "value"].sum() == 7603
    assert collector.parse(artefact, SOFTMAX).empty


def test_an_unreadable_report_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "report.ncu-rep").touch()
    ncu(monkeypatch, tmp_path, "echo ==ERROR== bad file >&2; exit 1")
    with pytest.raises(counters.NcuError, match="bad file"):
        collector.finish(tmp_path, [SOFTMAX])
    assert list(tmp_path.iterdir()) == []
