"""A sweep over every config: its request, and its printed table."""

import asyncio

import pytest
from tilescope import cli
from tilescope.commands import tune
from tilescope.hardware import device
from tilescope.jobs import tuning
from tilescope.jobs.plan import RequestError

from .fake_jobs import OWN, tune_with


@pytest.fixture(autouse=True)
def no_gpu(kit, monkeypatch):
    monkeypatch.setattr(device, "detect", lambda: None)


def test_tuning_without_a_gpu_compiles_every_config():
    job, timed = asyncio.run(tuning.plan_tuning([OWN], implementations=["good"]))
    assert not timed
    assert job.collectors == ("compiler",)
    assert [case.id for case in job.cases] == [
        f"{OWN}/good/forward/64-fp32{config}" for config in ("", "/BLOCK=1", "/BLOCK=2")
    ]


def test_implementation_without_configs_is_refused(monkeypatch):
    async def describe(kernels, workloads, patience):
        implementations = {"triton": {"configs": [{"B": 1}]}, "eager": {"configs": []}}
        return [{"name": "k", "kernel": "k", "implementations": implementations}]

    monkeypatch.setattr("tilescope.jobs.questions.describe", describe)
    with pytest.raises(RequestError, match="k/eager declares no configs: triton can be tuned"):
        asyncio.run(tuning.plan_tuning(["k"], implementations=["eager"]))


def test_kernels_without_configs_are_left_out(monkeypatch):
    def entry(name, elements, **configs):
        workloads = [{"id": f"{n}-fp32", "label": "", "elements": n} for n in elements]
        implementations = {
            impl: {"configs": found, "available": True, "requires": []} for impl, found in configs.items()
        }
        return {"name": name, "kernel": name, "passes": ["forward", "backward"], "workloads": workloads,
                "selected": [workload["id"] for workload in workloads], "implementations": implementations}  # fmt: skip

    known = [entry("a", (8, 64), triton=[{"B": 1}, {"B": 2}], eager=[]), entry("b", (4,), eager=[]),
             entry("c", (16, 2), triton=[{"M": 3}], naive=[{"M": 4}])]  # fmt: skip

    async def describe(kernels, workloads, patience):
        return [found for found in known if found["kernel"] in kernels]

    monkeypatch.setattr("tilescope.jobs.questions.describe", describe)
    job, _ = asyncio.run(tuning.plan_tuning(["a", "b", "c"]))
    assert [case.id for case in job.cases] == [
        "a/triton/forward/64-fp32", "a/triton/forward/64-fp32/B=1", "a/triton/forward/64-fp32/B=2",
        "c/triton/forward/16-fp32", "c/triton/forward/16-fp32/M=3",
        "c/naive/forward/16-fp32", "c/naive/forward/16-fp32/M=4",
    ]  # fmt: skip
    assert job.title == "a, c autotune"
    with pytest.raises(RequestError, match="b declares no configs: there is nothing to tune"):
        asyncio.run(tuning.plan_tuning(["b"]))


def test_table_says_why_a_config_failed(monkeypatch, capsys):
    tune_with(monkeypatch, "fakes.quick")
    assert cli.main(["tune", OWN, "--impl", "good,raises", "--workload", "small"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("own.py good forward 8-fp32, 2 configs and the default, no GPU to time them")
    assert [line.split() for line in out[2:5]] == [["default", "32"], ["BLOCK=1", "32"], ["BLOCK=2", "32"]]
    assert [line.split(maxsplit=1)[0] for line in out[7:10]] == ["default", "BLOCK=1", "BLOCK=2"]
    assert all("RuntimeError: this kernel is wrong" in line for line in out[7:10])


def test_best_config_comes_first():
    quick, slow, untimed = {"gpu_time": 1.0}, {"gpu_time": 2.0}, {"gpu_time": None}
    assert sorted([untimed, slow, quick], key=lambda row: tune._rank(row, timed=True)) == [quick, slow, untimed]
    tidy = {"spills": (0.0,), "occupancy": (0.25,), "registers": (64.0,)}
    wide = {"spills": (0.0,), "occupancy": (0.5,), "registers": (64.0,)}
    spilling = {"spills": (8.0,), "occupancy": (1.0,), "registers": (32.0,)}
    assert sorted([spilling, tidy, wide], key=lambda row: tune._rank(row, timed=False)) == [wide, tidy, spilling]
