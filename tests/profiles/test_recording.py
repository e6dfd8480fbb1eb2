"""``tilescope record``: its parts, how they are shared out, resumed and joined, and what is published."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tilescope import cli
from tilescope.jobs import questions, recording, tuning
from tilescope.runs import store

from . import made_up
from .fake_jobs import KIT, OWN, tune_with

SHIPPED = store.recorded_dir()
IMPLS = ("--impl", "good,fine", "--workload", "small")


@pytest.fixture
def family(kit, runs, no_gpu, monkeypatch, tmp_path):
    """A family of two kernels of the fakes. The commands of the parts run in this process."""
    (tmp_path / "other.py").write_text((KIT / "own.py").read_text())
    names = [OWN, f"{tmp_path / 'other.py'}:SPEC"]
    describe = questions.describe

    async def known(kernels=(), workloads=(), *timeout):
        every = await describe(kernels or names, workloads, *timeout)
        return every if kernels else [{**entry, "family": "kit"} for entry in every]

    def in_this_process(commands):
        for command, gpu in commands:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CUDA_VISIBLE_DEVICES", gpu)
                if status := cli.main(list(command[3:])):
                    return status
        return 0

    monkeypatch.setattr(questions, "describe", known)
    monkeypatch.setattr(recording, "beside", in_this_process)
    return tmp_path


def recorded(folder):
    """The recordings in the folder of a test, by title."""
    loaded = [store.open_run(path) for path in sorted((folder / "recorded").glob("2*"))]
    return {one.run.title: one for one in loaded}


def test_record_publishes_each_kernel_and_replaces_it(family, capsys):
    record = ["record", "kit", "--collect", "fakes.quick", *IMPLS]
    assert cli.main(record) == 0
    first = recorded(family)
    assert list(first) == ["other.py", "own.py"] or list(first) == ["own.py", "other.py"]
    own = first["own.py"]
    assert own.run.complete and list(own.run.kernels) == ["own.py"]
    assert set(own.table["impl"]) == {"good", "fine"}
    assert (own.table["metric"] == "registers").sum() == 2
    assert (family / "recorded" / "claims.jsonl").is_file()
    assert not list((family / "runs" / "recording").iterdir())
    step = next(path for path in sorted(SHIPPED.glob("2*")) if not store.read_run(path).kernels)
    shutil.copytree(step, family / "recorded" / step.name)
    capsys.readouterr()
    assert cli.main(record) == 0
    second = recorded(family)
    assert second.pop(store.read_run(step).title).folder.name == step.name, "a model's step stays"
    assert {one.run.id for one in second.values()}.isdisjoint(one.run.id for one in first.values())
    out = capsys.readouterr().out
    assert sorted(line for line in out.splitlines() if line.startswith("replaced")) == sorted(
        f"replaced: {one.folder}" for one in first.values()
    )
    assert "unknown family 'norm'" in error(capsys, "record", "norm")


def error(capsys, *arguments):
    assert cli.main(list(arguments)) == 2
    return capsys.readouterr().err


def test_parts_of_two_gpus_and_another_machine_are_joined(family, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(recording, "MEASURING", frozenset({"fakes.mortal"}))
    record = ["record", "kit", "--collect", "fakes.quick,fakes.mortal", *IMPLS]
    elsewhere = family / "elsewhere"
    assert cli.main([*record, "--without-gpu", "--runs", str(elsewhere)]) == 0
    assert not (family / "recorded").exists()
    assert "lacks the part of these families" in error(capsys, *record, "--join", str(family / "nothing"))
    # Its collector fails on the first GPU: nothing is published.
    assert cli.main([*record, "--join", str(elsewhere)]) == 1
    (first,) = (family / "runs" / "recording").iterdir()
    assert store.read_run(first).title.startswith("GPU 1 of 2") and not (family / "recorded").exists()
    # The same command goes on with that part.
    (family / "deaths").write_text("0")
    monkeypatch.setenv("FAKES_DEATHS", str(family / "deaths"))
    assert cli.main([*record, "--join", str(elsewhere)]) == 0
    assert len(list(elsewhere.iterdir())) == 1 and not first.exists()
    for kernel in ("own.py", "other.py"):
        loaded = recorded(family)[kernel]
        assert loaded.run.settings["collectors"] == ["fakes.mortal", "fakes.quick"]
        assert (loaded.table["metric"] == "registers").sum() == 2 * 2
        costs = loaded.table[loaded.table["source"] == "model"]
        assert len(costs) == 3 * 2 == len(costs.drop_duplicates(["impl", "metric"]))
    assert any("gone on with" in note for one in recorded(family).values() for note in one.run.notes)
    assert cli.main(["record", "kit", "--collect", "fakes.quick", *IMPLS]) == 0
    assert len(list((family / "recorded").glob("2*"))) == 4, "what another collector found stays"


def test_code_that_changed_between_parts_is_refused(family, capsys):
    record = ["record", "kit", "--collect", "fakes.quick", *IMPLS]
    assert cli.main([*record, "--without-gpu"]) == 0
    (family / "other.py").write_text((family / "other.py").read_text() + "MORE = 1\n")
    assert "the code of other.py has changed since" in error(capsys, *record)


def test_sweeps_are_published_in_place_of_former_ones(family, monkeypatch, capsys):
    tune_with(monkeypatch, "fakes.quick")
    monkeypatch.setattr(recording, "plan_tuning", tuning.plan_tuning)
    sweep = ["record", "kit", "--sweep", "--impl", "good,raises", "--workload", "small"]
    for _ in range(2):
        assert cli.main(sweep) == 0, "a config that fails is no failure of a sweep"
    assert "replaced: " in capsys.readouterr().out
    (found,) = recorded(family).values()
    assert found.run.title == "kit: autotune sweeps"
    assert set(found.table["config"]) == {"", "BLOCK=1", "BLOCK=2"}
    assert found.run.failures
    assert "--sweep has collectors of its own" in error(capsys, *sweep, "--collect", "compiler")


def test_without_a_gpu_nothing_is_published_by_default(family, capsys):
    assert "--without-gpu makes the part that needs none" in error(capsys, "record", "kit")


def entry(name, sizes=(("8", "small"), ("64", "large"), ("512", "widest")), implementations=2, selected=()):
    declared = {f"impl{number}": {"configs": []} for number in range(implementations)}
    workloads = [{"id": f"{size}-fp32", "label": label, "elements": int(size)} for size, label in sizes]
    cost = {f"{size}-fp32": {"forward": {"flops": 1e10 * int(size)}} for size, _ in sizes}
    facts = {"family": "f", "passes": ["forward"], "implementations": declared, "cost": cost}
    return {"name": name, "kernel": name, "workloads": workloads, "selected": list(selected), **facts}


def test_kernels_are_dealt_by_their_cases_and_cost(monkeypatch):
    catalog = [entry("small", implementations=1), entry("large", implementations=4), entry("other", implementations=2)]
    dealt = [[one["name"] for one in share] for share in recording.deal(catalog, 2)]
    assert dealt == [["large"], ["other", "small"]]
    assert [one["name"] for share in recording.deal(catalog, 1) for one in share] == ["large", "other", "small"]
    slow = entry("slow", [("9999", "")], implementations=1)
    alone, _ = recording.deal([*catalog, slow], 2)
    assert [one["name"] for one in alone] == ["slow"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert recording.visible() == ["GPU-a", "GPU-b"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    made_up.machine(monkeypatch, count=3)
    assert recording.visible() == ["0", "1", "2"]


def test_ncu_replays_one_size_of_each_kernel(monkeypatch, tmp_path):
    catalog = [entry("softmax"), entry("rope", (("8", ""), ("16", "")))]
    choice = recording.Choice(collectors=recording.COLLECTORS)
    parts = {part.title.partition(" [")[0]: part for part in choice.parts(catalog, 1, 1)}
    assert list(parts) == ["GPU 1 of 1", "GPU 1 of 1: ncu", "GPU 1 of 1: ncu_source"]
    assert parts["GPU 1 of 1"].collectors == ("check", "events", "torch_profiler", "cupti")
    (alone,) = choice.parts(catalog, 0, 1)
    assert alone.collectors == ("compiler", "interpreter")
    asked = {}

    async def plan(request, work, catalog):
        asked[request.collectors] = request, [one["selected"] for one in catalog]
        raise ValueError

    monkeypatch.setattr(recording, "plan", plan)
    for part in (*parts.values(), alone):
        with pytest.raises(ValueError, match=r"^$"):
            asyncio.run(part.run(tmp_path, print))
    assert asked["ncu",][1] == [["512-fp32"], ["16-fp32"]]
    assert asked["ncu",][0].workloads == ("512-fp32", "16-fp32")
    assert asked["ncu_source",][1] == [["512-fp32"]]
    assert asked["ncu",][0].implementations == asked["ncu_source",][0].implementations == ("triton",)
    assert asked["compiler", "interpreter"][1] == [[], []]
    passes = {collectors[-1]: request.settings.get("one_pass") for collectors, (request, _) in asked.items()}
    assert passes == {"cupti": True, "ncu": None, "ncu_source": None, "interpreter": None}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no half")
def test_part_without_a_gpu_leaves_half_of_the_cores_and_sees_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    own = len(os.sched_getaffinity(0))
    count = "import os, sys\nassert os.environ['CUDA_VISIBLE_DEVICES'] == ''\nwhile len(os.sched_getaffinity(0)) == int(sys.argv[1]): pass\nsys.exit(len(os.sched_getaffinity(0)))"
    waits = [sys.executable, "-c", count, str(own)]
    assert recording.beside([([sys.executable, "-c", ""], "0"), (waits, "")]) == own - own // 2


def test_commands_run_beside_one_another_and_end_together(tmp_path):
    wait = "import sys, time; time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"
    assert recording.beside([([sys.executable, "-c", wait, "0", status], "") for status in ("0", "3", "1")]) == 3
    said = tmp_path / "said"
    code = (
        "import sys, pathlib; from tilescope.jobs import recording\n"
        "said = 'import os, sys, time; open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(60)'\n"
        f"recording.beside([([sys.executable, '-c', said, {str(said)!r}], '')])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        while not (said.is_file() and said.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() != 0
    assert not Path(f"/proc/{said.read_text()}").exists()


def test_joined_parts_keep_the_digests_of_each(tmp_path):
    """A part by source line alone sees no launch, and so has none."""
    parts = [
        made_up.written(
            tmp_path, made_up.cost(), name, kernels={made_up.CASE.kernel: facts}, settings={"collectors": ["ncu"]}
        )
        for name, facts in (
            ("20261120-000000-aaaa", {"functions": {"first": "1"}}), ("20261121-000000-bbbb", {"functions": {"second": "2"}}),
            ("20261122-000000-cccc", {}),
        )
    ]  # fmt: skip
    (facts,) = store.read_run(recording.join(parts, tmp_path / "joined")).kernels.values()
    assert facts["functions"] == {"first": "1", "second": "2"}
