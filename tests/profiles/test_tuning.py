"""A sweep over every config: what is asked for, and how it is printed."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest
from tilescope import cli, device, tuning
from tilescope.commands import tune
from tilescope.plan import RequestError

KIT = Path(__file__).parent / "fixtures" / "orchestration"
OWN = f"{KIT / 'own.py'}:SPEC"


@pytest.fixture(autouse=True)
def kit(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(KIT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(KIT), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(device, "detect", lambda: None)


def test_every_config_of_the_largest_workload_is_compiled_where_nothing_can_be_timed():
    job, timed = asyncio.run(tuning.plan_tuning(OWN, implementations=["good"]))
    assert not timed
    assert job.collectors == ("compiler",)
    assert [case.id for case in job.cases] == [f"{OWN}/good/forward/64-fp32/BLOCK={n}" for n in (1, 2)]


def test_an_implementation_without_configs_cannot_be_tuned(monkeypatch):
    async def describe(kernels, workloads):
        implementations = {"triton": {"configs": [{"B": 1}]}, "eager": {"configs": []}}
        return [{"name": "k", "implementations": implementations}]

    monkeypatch.setattr("tilescope.supervisor.describe", describe)
    with pytest.raises(RequestError, match="k/eager declares no configs: triton can be tuned"):
        asyncio.run(tuning.plan_tuning("k", implementations=["eager"]))


def test_the_table_says_why_a_config_failed(monkeypatch, capsys):
    plan_tuning = tuning.plan_tuning

    async def with_a_fake(kernel, **more):
        job, timed = await plan_tuning(kernel, **more)
        return dataclasses.replace(job, collectors=("fakes.quick",)), timed

    monkeypatch.setattr(tuning, "plan_tuning", with_a_fake)
    assert cli.main(["tune", OWN, "--impl", "good,raises", "--workload", "small"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("SPEC good forward 8-fp32, 2 configs, no GPU to time them")
    assert out[2].split() == ["BLOCK=1", "32"]
    assert out[6].split(maxsplit=2)[0] == "BLOCK=1"
    assert out[6].endswith("RuntimeError: this kernel is wrong")


def test_the_best_comes_first():
    quick, slow, untimed = {"gpu_time": 1.0}, {"gpu_time": 2.0}, {"gpu_time": None}
    assert sorted([untimed, slow, quick], key=lambda row: tune._rank(row, timed=True)) == [quick, slow, untimed]
    tidy = {"spills": (0.0,), "occupancy": (0.25,), "registers": (64.0,)}
    wide = {"spills": (0.0,), "occupancy": (0.5,), "registers": (64.0,)}
    spilling = {"spills": (8.0,), "occupancy": (1.0,), "registers": (32.0,)}
    assert sorted([spilling, tidy, wide], key=lambda row: tune._rank(row, timed=False)) == [wide, tidy, spilling]
