"""``make bench-foreign``: what it says of a call of somebody's kernel, and of a library that is not installed."""

import json
import sys

import pytest
import torch

from benchmarks import foreign, foreign_kernels
from benchmarks.foreign_kernels import Entry

from . import foreign_launches


def gathered():
    return torch.randn(50, 64), torch.tensor([3, 1, 3])


def wrong(table, where):
    return table[where] + 1


def raises(table, where):
    raise RuntimeError("no kernel for it")


RIGHT = Entry("ours", "gather", gathered, foreign_launches.gather, lambda table, where: table[where])


@pytest.mark.skipif(sys.platform != "linux", reason="entries are forked")
def test_main_lists_each_entry(monkeypatch, tmp_path):
    entries = [
        RIGHT,
        Entry("ours", "other", gathered, foreign_launches.gather, wrong),
        Entry("ours", "raises", gathered, raises, wrong),
    ]
    monkeypatch.setattr(foreign_kernels, "every", lambda: iter(entries))
    lines: list[str] = []
    assert foreign.main(["--target", "sm_90", "--out", str(tmp_path / "found.json")], lines.append) == 1
    rows = [[cell.strip() for cell in line.strip("|").split("|")][:-1] for line in lines if line.startswith("| ours")]
    assert rows[0] == ["ours gather", "1 launches, 1 kernels", "1 of 1", "1 of 1", "0.0e+00", ""]
    assert rows[1][4].endswith("not within 1e-05")
    assert rows[2][1] == "0 launches, 0 kernels; RuntimeError: no kernel for it"
    assert lines[-3:] == [
        "\n3 entries, 3 with a reference: 1 whole.",
        "agreed: ours other did not pass.",
        "captured: ours raises did not pass.",
    ]
    assert [one["captured"] for one in json.loads((tmp_path / "found.json").read_text())] == [1, 1, 0]


def test_main_names_absent_libraries(monkeypatch):
    monkeypatch.setattr(foreign_kernels, "LIBRARIES", {"no_such_library": "liger"})
    lines: list[str] = []
    assert foreign.main([], lines.append) == 2
    assert lines == ["no_such_library is not installed: its kernels are left out", "there is nothing to look at"]


def test_missed_is_the_first_failing_column():
    whole = {"captured": 2, "kernels": 1, "compiled": 2, "interpreted": 2, "error": 1e-6, "accused": [], "seconds": 1.0}
    assert foreign.missed(RIGHT, whole) == ""
    alone = Entry("ours", "alone", gathered, foreign_launches.gather)
    assert "| no reference |" in foreign.line(alone, {name: whole[name] for name in whole if name != "error"})
    assert foreign.missed(RIGHT, None) == foreign.missed(RIGHT, {**whole, "captured": 0}) == "captured"
    assert foreign.missed(RIGHT, {**whole, "compiled": 1, "interpreted": 1}) == "compiled"
    assert foreign.missed(RIGHT, {**whole, "interpreted": 1}) == "interpreted"
    assert foreign.missed(RIGHT, {**whole, "error": float("nan")}) == "agreed"
    assert foreign.missed(RIGHT, {**whole, "accused": ["fewer bytes than distinct ones"]}) == "accused"


@pytest.mark.parametrize("module", foreign_kernels.LIBRARIES.values())
def test_entries_load_without_their_library(module):
    import importlib

    entries = importlib.import_module(f"benchmarks.foreign_kernels.{module}").ENTRIES
    assert len({entry.name for entry in entries}) == len(entries) >= 5
