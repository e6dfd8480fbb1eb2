"""A script is profiled again at every save, each time in a process of its own."""

import asyncio
import contextlib

import pytest
from tilescope import cli
from tilescope.notebook.watching import Watch

SCRIPT = """
import torch
import triton
import triton.language as tl
from shared import FACTOR


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * FACTOR, mask=i < n)


print("begun")
x = torch.ones(1000, device="cuda")
y = torch.empty_like(x)
scale_kernel[(8,)](x, y, 1000, FACTOR, BLOCK=128)
"""


@pytest.fixture
def folder(forked, tmp_path):
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "shared.py").write_text("FACTOR = 2\n")
    return tmp_path


def versions_of(folder, *saves):
    """The watch of ``own.py``, and a version after each save: a pair of a file's name and its text."""

    async def follow():
        watch, found = Watch(folder / "own.py", runs_dir=folder / "runs"), []
        async with contextlib.aclosing(watch.follow()) as following:
            async for version in following:
                if version.state == "running" or version in found:
                    continue
                found.append(version)
                if len(found) > len(saves):
                    return watch, found
                name, text = saves[len(found) - 1]
                (folder / name).write_text(text)
        return None

    return asyncio.run(follow())


def test_each_save_makes_a_version_that_is_compared(folder):
    renamed = SCRIPT.replace("scale_kernel", "renamed_kernel").replace("128", "256")
    watch, (first, second, third) = versions_of(folder, ("own.py", renamed), ("shared.py", "FACTOR = 3\n"))
    assert {path.name for path in watch.files} == {"own.py", "shared.py"}
    assert (first.state, first.cases[0].title, first.output) == ("ready", "scale_kernel 1000-fp32", "begun\n")
    assert {"registers", "requested", "theoretical_occupancy"} <= first.cases[0].values.keys()
    compared = watch.compared(second)
    assert (compared.baseline, compared.pairs[0].how) == (first, "place")
    assert "-scale_kernel[(8,)](x, y, 1000, FACTOR, BLOCK=128)" in compared.diff
    assert "+FACTOR = 3" in watch.compared(third).diff and third.run.is_dir()


def test_broken_import_names_file_and_line(folder):
    _, (_, syntax, name) = versions_of(folder, ("shared.py", "a = 1\nb = (\n"), ("shared.py", "\n\nFACTOR = nosuch\n"))
    assert "line 2 of shared.py" in syntax.error and "line 3 of shared.py" in name.error
    assert (syntax.number, name.number) == (2, 3) and "SPEC" not in syntax.error


def test_wrong_version_leaves_the_last_good_one(folder):
    beyond = SCRIPT.replace("+ i, mask", "+ i * 2, mask")
    dying = SCRIPT + "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    watch, (good, *wrong) = versions_of(folder, ("own.py", beyond), ("own.py", "x = (\n"), ("own.py", dying))
    assert [version.state for version in wrong] == ["failed"] * 3
    assert all(watch.compared(version).baseline is good for version in wrong)
    assert "past the end" in wrong[0].wrong[0]
    assert "own.py cannot be run" in wrong[1].error
    assert "its process crashed (SIGSEGV)" in wrong[2].error


def test_command_prints_the_version(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert cli.main(["watch", "--once", "own.py"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert {"printed:", "  begun", "version 1: own.py", "scale_kernel 1000-fp32"} <= {*said}
    assert any(line.startswith("registers") for line in said)
    assert cli.main(["watch", "nosuch.py"]) == 2
    assert cli.main(["watch", "own.py", "--text"]) == 2
    assert "put it before own.py" in capsys.readouterr().err
