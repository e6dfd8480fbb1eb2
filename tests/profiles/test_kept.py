"""Disk caches shared between processes: an entry is found until its key changes, and a damaged one is not used."""

import asyncio
import dataclasses
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from tilescope.files import user_cache
from tilescope.jobs import questions, supervisor
from tilescope.jobs.job import Job
from tilescope.jobs.ledger import Ledger
from tilescope.runs import device_roofs, store
from tilescope.runs.store import RunWriter
from tilescope.table.case import Case
from tilescope.table.run import Ceiling

from . import made_up

KERNELS = Path(__file__).parents[2] / "kernels" / "tilescope_kernels"
ENTRY = {
    "kernel": "softmax",
    "implementations": {"triton": {"requires": []}, "absent": {"requires": ["no-such-package"]}},
}
VERSIONS = {"driver": "580.1", "torch": "2.13"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_damaged_is_not_there_and_only_so_much_is_kept(cache, monkeypatch):
    assert user_cache.read("kind", "a") is None
    user_cache.write("kind", "a", {"value": [1, 2]})
    assert user_cache.read("kind", "a") == {"value": [1, 2]}
    file = cache / "kind" / "a.json"
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole.replace(b"1, 2", b"1, 3"), b"", b"\xff\xfe\n{}", b"[" * 100_000):
        file.write_bytes(damaged)
        assert user_cache.read("kind", "a") is None
    for number in range(user_cache.MOST + 9):
        user_cache.write("kind", str(number), number)
        os.utime(cache / "kind" / f"{number}.json", (number, number))
    assert len(list((cache / "kind").iterdir())) <= user_cache.MOST + 1
    monkeypatch.setenv(user_cache.VARIABLE, "/proc/nowhere")
    user_cache.write("kind", "a", 1)
    assert user_cache.read("kind", "a") is None


def test_many_write_at_once(cache):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: user_cache.write("kind", "a", [number] * 1000), range(200)))
    assert len(set(user_cache.read("kind", "a"))) == 1
    assert [path.name for path in (cache / "kind").iterdir()] == ["a.json"]


def test_declarations_hold_until_the_library_is_edited(tmp_path, monkeypatch):
    library = tmp_path / "tilescope_kernels"
    shutil.copytree(KERNELS, library, ignore=shutil.ignore_patterns("__pycache__"))

    found = SimpleNamespace(submodule_search_locations=[str(library)])
    monkeypatch.setitem(sys.modules, "tilescope_kernels", SimpleNamespace(__spec__=found))
    questions.keep_declarations((), (), [ENTRY])
    (entry,) = questions.known_declarations((), ())
    assert {name: known["available"] for name, known in entry["implementations"].items()} == {
        "triton": True,
        "absent": False,
    }
    assert questions.known_declarations(("softmax",), ()) == [entry]
    assert questions.known_declarations(("softmax", "matmul"), ()) is None
    assert questions.known_declarations(("softmax",), ("8x8-fp32",)) is None
    questions.keep_declarations(("own.py:SPEC",), (), [ENTRY])
    assert questions.known_declarations(("own.py:SPEC",), ()) is None
    edited = library / "reductions" / "softmax.py"
    text = edited.read_text()
    edited.write_text(f"{text}\n# edited\n")
    assert questions.known_declarations((), ()) is None
    edited.write_text(text)
    assert questions.known_declarations((), ()) == [entry]
    made_up.machine(monkeypatch, installed={"torch": "another"})
    assert questions.known_declarations((), ()) is None


def test_describe_from_cache_equals_the_workers_answer(monkeypatch):
    told = asyncio.run(questions.describe(["softmax"], ["24x32-fp32"]))

    async def never(*arguments):
        raise AssertionError("a worker was asked")

    monkeypatch.setattr(questions, "ask", never)
    assert asyncio.run(questions.describe(["softmax"], ["24x32-fp32"])) == told
    assert told[0]["selected"] == ["24x32-fp32"]


def test_ceilings_are_measured_once_a_device_and_versions(tmp_path, monkeypatch):
    asked = []

    async def measured(patience):
        asked.append(patience)
        return (Ceiling("hbm", 3.9e12, "byte/second", "measured", "device copy"),)

    monkeypatch.setattr(questions, "ceilings", measured)
    made_up.machine(monkeypatch)

    def roofs(versions=VERSIONS, gpu="Made-up GPU", **settings):
        job = Job([Case("softmax", "triton", "forward", "8x8-fp32")], ["events"], settings, tmp_path / str(len(asked)))
        about = made_up.run(device=made_up.gpu(gpu), versions=versions, settings={"target": "sm_90"})
        ledger = Ledger(job, RunWriter(job.runs_dir, about), lambda event: None)
        asyncio.run(supervisor.measure_ceilings(ledger))
        found = ledger.writer.run.device.ceilings
        ledger.writer.discard()
        return found

    (first,) = roofs()
    assert first.value == 3.9e12 and first.provenance.startswith("device copy; driver 580.1; measured at 20")
    assert roofs() == (first,) and len(asked) == 1
    assert roofs(renew_ceilings=True)[0].value == 3.9e12 and len(asked) == 2
    roofs({**VERSIONS, "driver": "590.1"})
    assert len(asked) == 3
    for wrong in (
        [{"name": "hbm", "value": -1, "unit": "byte/second", "origin": "measured"}],
        {"a": 1},
        [3],
        [{"x": 1}],
    ):
        user_cache.write("ceilings", questions.ceilings_key("GPU-1", VERSIONS), wrong)
        assert questions.known_ceilings("GPU-1", VERSIONS) == ()
    assert questions.known_ceilings("", VERSIONS) == ()
    # A recording's are used, and not measured.
    (gpu, drivers), *_ = json.loads((store.recorded_dir() / device_roofs.FILE).read_text()).items()
    driver = next(iter(drivers))
    found = roofs({**VERSIONS, "driver": driver}, gpu)
    assert len(asked) == 3 and [dataclasses.asdict(one) for one in found] == drivers[driver]
    assert len(roofs({**VERSIONS, "driver": driver}, gpu, renew_ceilings=True)) == 1 and len(asked) == 4
    roofs({**VERSIONS, "driver": "of no recording"}, gpu)
    assert len(asked) == 5
