"""Sweeps over GPUs of other machines: which times are compared, and two workers of a real Dask cluster."""

import asyncio
import json
import re

import pytest
from tilescope import cli
from tilescope.hardware import device
from tilescope.jobs import executors, heats
from tilescope.jobs.executors import Gpu, Heat
from tilescope.jobs.job import Job, WorkerError
from tilescope.runs import store
from tilescope.table.case import Case
from tilescope.tuning import memory, race

from .fake_jobs import KIT, tune_with

OWN = f"{KIT / 'tunable.py'}:SPEC"
H200 = device.for_target("sm_90")
CASES = [Case("softmax", "triton", "forward", "8-fp32", config) for config in ("", "A=1", "A=2", "A=3", "A=4")]


class Pretended:
    """GPUs with given times, which drop configs more than 1 % slower than the fastest of a race."""

    def __init__(self, folder, times, lost=(), code=""):
        self._folder, self._times, self._lost, self._code = folder, times, lost, code
        self.races: list[tuple[str, list[str]]] = []

    async def gpus(self, kernels):
        code = {kernel: self._code or memory.library_digest() for kernel in kernels}
        return [Gpu(f"tcp://{uuid}", uuid, H200, {"triton": "3.6.0"}, code) for uuid in self._times]

    async def race(self, gpu, collector, cases, settings):
        self.races.append((gpu.uuid, [case.config for case in cases]))
        if gpu.uuid in self._lost:
            raise WorkerError("its worker was killed")
        times = {case: self._times[gpu.uuid][case.config] for case in cases}
        problem = memory.Problem("softmax/triton", "digest", "('forward', 'fp32', 8)", H200.name, gpu.uuid, "v")
        artefacts = {}
        for case, time in times.items():
            out = "" if time <= 1.01 * min(times.values()) else "slower than the leader"
            timing = memory.Timing(
                (time,) * 3, out, "2026-11-25T12:00:00+00:00",
                {"config": memory.config_name(case), "sm_clock": 1.98e9},
            )  # fmt: skip
            race.write(self._folder / "artefact", problem, timing, remembered=False)
            artefacts[case.id] = (self._folder / "artefact").read_text()
        return Heat(artefacts, {})


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TILESCOPE_TUNING", str(tmp_path / "tuning.sqlite3"))


def shared_out(executor):
    async def go():
        (gpus,), notes = await heats.kinds(executor, ["softmax"])
        assert not notes
        return await heats.timed(executor, gpus, Job(CASES, ("race",)))

    job = asyncio.run(go())
    return job, {given.case.config: json.loads(given.artefact.read_text()) for given in job.given}


#: The second GPU is quicker at all: what it takes for its best is less than the first takes for a better one.
APART = {
    "GPU-a": {"": 9e-6, "A=1": 4e-6, "A=2": 6e-6, "A=3": 7e-6, "A=4": 8e-6},
    "GPU-b": {"": 4.5e-6, "A=1": 2e-6, "A=2": 3e-6, "A=3": 3.5e-6, "A=4": 4e-6},
}


def test_final_times_are_of_one_gpu(tmp_path):
    executor = Pretended(tmp_path, APART)
    job, made = shared_out(executor)
    assert sorted(executor.races[:2]) == [("GPU-a", ["", "A=1", "A=3"]), ("GPU-b", ["", "A=2", "A=4"])]
    assert executor.races[2:] == [("GPU-a", ["", "A=1", "A=2", "A=3"])]
    assert min((said["samples"], config) for config, said in made.items() if said["samples"])[1] == "A=1"
    assert made["A=4"]["samples"] == []
    assert made["A=4"]["reason"] == f"not in the final: 4 µs on {H200.name} GPU-b, slower than the leader"
    assert {said["problem"]["uuid"] for said in made.values() if said["samples"]} == {"GPU-a"}
    assert {config for config, said in made.items() if "sm_clock" in said} == {"", "A=1", "A=2", "A=3"}
    assert f"{H200.name} GPU-b takes 0.500 times as long at the default" in job.notes
    assert job.settings["gpu"] == "GPU-a"
    known = {winner.problem.uuid: winner.config for winner in memory.Memory().winners()}
    assert known == {"GPU-a": "A=1", "GPU-b": "A=2"}, "all that was timed is remembered, of its own GPU"


@pytest.mark.parametrize("lost", ["GPU-a", "GPU-b"])
def test_lost_gpu_leaves_its_share_to_the_final(lost, tmp_path):
    executor = Pretended(tmp_path, APART, lost={lost})
    job, made = shared_out(executor)
    assert all(said["samples"] for config, said in made.items())
    (home,) = set(APART) - {lost}
    assert executor.races[2:] == [(home, ["", "A=1", "A=2", "A=3", "A=4"])]
    assert f"{H200.name} {lost} at tcp://{lost} was lost: its worker was killed" in job.notes
    with pytest.raises(WorkerError, match="its worker was killed"):
        shared_out(Pretended(tmp_path, APART, lost=set(APART)))


def test_one_gpu_has_no_final_and_other_code_no_part(tmp_path):
    executor = Pretended(tmp_path, {"GPU-a": APART["GPU-a"]})
    assert all(said["samples"] for said in shared_out(executor)[1].values())
    assert len(executor.races) == 1
    with pytest.raises(WorkerError, match="the code of softmax differs from the code here"):
        asyncio.run(heats.kinds(Pretended(tmp_path, APART, code="other"), ["softmax"]))


def test_two_memories_become_one(tmp_path, capsys):
    problem = memory.Problem("k", "digest", "(8,)", "NVIDIA H200", "GPU-1", "v")
    memory.Memory(tmp_path / "other.sqlite3").keep(problem, {"a": memory.Timing((1e-3,), "", "")})
    assert cli.main(["tune", "--merge", str(tmp_path / "other.sqlite3")]) == 0
    assert capsys.readouterr().out.startswith("1 timings of ")
    assert memory.Memory().known(problem)["a"].median == 1e-3
    assert cli.main(["tune", "--merge", str(tmp_path / "none")]) == cli.BAD_INPUT
    assert cli.main(["tune"]) == cli.BAD_INPUT
    assert "name a kernel to tune" in capsys.readouterr().err


@pytest.fixture
def cluster(torch_and_catalog, monkeypatch, tmp_path):
    """The address of a Dask cluster with two workers, each with a simulated GPU."""
    distributed = pytest.importorskip("distributed")
    from fakes import gpus

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    tune_with(monkeypatch, "fakes.raced")
    monkeypatch.chdir(tmp_path)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, scheduler_port=0, dashboard_address=":0"
        ) as here,
        distributed.Client(here, set_as_default=False) as client,
    ):
        times = {"": 6e-6, "BLOCK=256,num_warps=4": 5e-6, "BLOCK=512,num_warps=4": 2e-6}
        for number, place in enumerate(sorted(client.run(int))):
            # The second is three times as quick.
            quicker = {config: time / (1 + 2 * number) for config, time in times.items()}
            client.run(gpus.pretend, f"GPU-{number}", quicker, workers=[place])
        yield here.scheduler_address


def test_dask_workers_share_a_sweep(cluster, capsys, monkeypatch):
    assert cli.main(["tune", OWN, "--workload", "2048-fp32", "--scheduler", cluster]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tunable.py triton forward 2048-fp32, 3 configs and the default, fastest first"
    # A narrow table wraps its cells.
    order = [re.match(r"BLOCK=\d+|default", line) for line in lines[1:]]
    assert [found[0] for found in order if found] == ["BLOCK=512", "BLOCK=256", "default", "BLOCK=64"]
    loaded = store.open_run(store.find("latest"))
    assert any("2048 threads a block" in failure.message for failure in loaded.run.failures)
    assert loaded.run.complete
    assert loaded.run.settings["gpu"] == "GPU-0"
    assert any("GPU-1 takes 0.333 times as long at the default" in note for note in loaded.run.notes)
    timed = {winner.problem.uuid: winner.config for winner in memory.Memory().winners()}
    assert timed == {"GPU-0": "BLOCK=512,num_warps=4", "GPU-1": "BLOCK=256,num_warps=4"}
    monkeypatch.setattr(executors, "PATIENCE", 1.0)
    assert cli.main(["tune", OWN, "--scheduler", "tcp://127.0.0.1:1"]) == cli.BAD_INPUT
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["foo", "http://host:8786", "tcp://host:"])
def test_what_is_no_schedulers_address_is_refused_in_a_line(address, capsys):
    pytest.importorskip("distributed")
    assert cli.main(["tune", OWN, "--scheduler", address]) == cli.BAD_INPUT
    said = f"tilescope: {address!r} is no address of a Dask scheduler: write tcp://host:8786\n"
    assert capsys.readouterr() == ("", said)
