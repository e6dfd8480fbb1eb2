"""Faults of a kernel's code: each is found with its line, and correct kernels that look alike stay silent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tilescope import Capture, cli
from tilescope.table import kernel_faults

from . import faulty_launches as faulty

pytestmark = pytest.mark.usefixtures("no_gpu")


def line_of(marked: str, kernel: Any) -> int:
    """The line of the kernel with the comment."""
    lines = kernel.src.splitlines()
    return kernel.starting_line_number + 1 + next(n for n, text in enumerate(lines) if f"# {marked}" in text)


def told(launch: Callable[[], object], *, wrong: bool = True) -> list[str]:
    """The faults of the launches."""
    with Capture("sm_90") as capture:
        launch()
    assert not capture.notes
    return list(kernel_faults.of_launches((record.data["counted"] for record in capture.records), wrong=wrong))


def cells(count: int, value: float = 0.0, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, device="cuda", dtype=kind)


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(shape, device="cuda")


RACES = {
    "a load and a store": (lambda: faulty.total_kernel[(8,)](numbers(8192), cells(1), 8192, BLOCK=1024), "8 programs", "4 bytes of out_ptr"),
    "stores": (lambda: faulty.column_sums_kernel[(8,)](numbers(512, 128), cells(128), 512, 128, 64, 128), "8 programs", "512 bytes of out_ptr"),
    "stores that are equal by chance": (
        lambda: faulty.column_sums_kernel[(8,)](cells(512 * 128, 1.0), cells(128), 512, 128, 64, 128), "8 programs", "512 bytes of out_ptr",
    ),
    "a store to what another read": (lambda: faulty.shifted_in_place_kernel[(4,)](numbers(256), 256, 64), "4 programs", "12 bytes of x_ptr"),
    "an atomic beside a store": (lambda: faulty.zeroed_by_one_kernel[(4,)](numbers(256), cells(1), 64), "atomics", "4 bytes of out_ptr"),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_race_names_line_bytes_and_programs(name):
    launch, who, what = RACES[name]
    (said,) = told(launch)
    kernel = getattr(faulty, said.partition(",")[0])
    assert f"line {line_of('a race', kernel)}: " in said and who in said and what in said


CORRECT = {
    "atomics": lambda: faulty.atomic_total_kernel[(8,)](numbers(8192), cells(1), 8192, BLOCK=1024),
    "one program": lambda: faulty.total_kernel[(1,)](numbers(1024), cells(1), 1024, BLOCK=1024),
    "equal values": lambda: faulty.flagged_kernel[(4,)](numbers(256), cells(256), cells(2), numbers(1), 64),
    "the same program": lambda: faulty.twice_kernel[(4,)](numbers(256), cells(256), 64),
    "a lock": lambda: faulty.locked_kernel[(4,)](numbers(256), cells(1), cells(1, 0, torch.int32), 64),
    "the last one adds": lambda: faulty.last_one_adds_kernel[(4,)](
        numbers(256), cells(4), cells(1, 0, torch.int32), cells(1), 64, 4
    ),
    "a load before an atomic": lambda: faulty.largest_kernel[(4,)](numbers(256), cells(1), 64),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernel_has_no_race(name):
    assert told(CORRECT[name]) == []


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch
from faulty_launches import total_kernel
total_kernel[(8,)](torch.ones(8192, device="cuda"), torch.zeros(1, device="cuda"), 8192, BLOCK=1024)
"""


def test_race_fails_the_case_and_leads_its_advice(tmp_path, capsys):
    script = tmp_path / "race.py"
    script.write_text(SCRIPT.format(folder=str(Path(faulty.__file__).parent)))
    assert cli.main(["profile", "--runs", str(tmp_path / "runs"), "--collect", "interpreter", str(script)]) == 1
    line = line_of("a race", faulty.total_kernel)
    race = f"total_kernel, line {line}: 8 programs store to the same 4 bytes of out_ptr"
    assert race in " ".join(capsys.readouterr().out.split())
    (run,) = (tmp_path / "runs").glob("2*")
    cli.main(["advise", str(run)])
    said = " ".join(capsys.readouterr().out.split())
    assert f"1. {race}" in said and "do: Add with tl.atomic_add" in said and "2." not in said
