"""A sweep over every config: its request, and its printed table."""

import asyncio
import dataclasses
import statistics

import pytest
from tilescope import cli
from tilescope.commands import tune
from tilescope.hardware import device
from tilescope.jobs import tuning
from tilescope.jobs.plan import RequestError
from tilescope.models import config_estimate
from tilescope.runs import store
from tilescope.table.case_table import gather

from benchmarks import estimates

from .fake_jobs import OWN, tune_with

pytestmark = pytest.mark.usefixtures("kit", "no_gpu", "forked")


def test_tuning_without_a_gpu_compiles_every_config():
    job, timed = asyncio.run(tuning.plan_tuning([OWN], implementations=["good"]))
    assert not timed
    assert job.collectors == ("compiler",)
    assert [case.id for case in job.cases] == [
        f"{OWN}/good/forward/64-fp32{config}" for config in ("", "/BLOCK=1", "/BLOCK=2")
    ]


def test_implementation_without_configs_is_refused(describe_as):
    implementations = {"triton": {"configs": [{"B": 1}]}, "eager": {"configs": []}}
    describe_as([{"name": "k", "kernel": "k", "implementations": implementations}])
    with pytest.raises(RequestError, match="k/eager declares no configs: triton can be tuned"):
        asyncio.run(tuning.plan_tuning(["k"], implementations=["eager"]))


def test_kernels_without_configs_are_left_out(describe_as):
    def entry(name, elements, **configs):
        workloads = [{"id": f"{n}-fp32", "label": "", "elements": n} for n in elements]
        implementations = {
            impl: {"configs": found, "available": True, "requires": []} for impl, found in configs.items()
        }
        return {"name": name, "kernel": name, "passes": ["forward", "backward"], "workloads": workloads,
                "selected": [workload["id"] for workload in workloads], "implementations": implementations}  # fmt: skip

    describe_as([entry("a", (8, 64), triton=[{"B": 1}, {"B": 2}], eager=[]), entry("b", (4,), eager=[]),
             entry("c", (16, 2), triton=[{"M": 3}], naive=[{"M": 4}])])  # fmt: skip
    job, _ = asyncio.run(tuning.plan_tuning(["a", "b", "c"]))
    assert [case.id for case in job.cases] == [
        "a/triton/forward/64-fp32", "a/triton/forward/64-fp32/B=1", "a/triton/forward/64-fp32/B=2",
        "c/triton/forward/16-fp32", "c/triton/forward/16-fp32/M=3",
        "c/naive/forward/16-fp32", "c/naive/forward/16-fp32/M=4",
    ]  # fmt: skip
    assert job.title == "a, c autotune"
    with pytest.raises(RequestError, match="b declares no configs: there is nothing to tune"):
        asyncio.run(tuning.plan_tuning(["b"]))


def test_export_is_refused_before_anything_compiles(tmp_path, capsys):
    said = [
        (tmp_path / "winners.json", "--export: nothing would be timed, so there are no winners to write"),
        (tmp_path / "missing" / "winners.json", f"there is no folder {tmp_path / 'missing'}"),
        (__file__, f"{__file__} is no file of winners"),
    ]
    before = store.list_runs()
    for file, why in said:
        assert cli.main(["tune", OWN, "--impl", "good", "--export", str(file)]) == cli.BAD_INPUT
        out, err = capsys.readouterr()
        assert not out and why in err.splitlines()[-1] and "compiling" not in err
    assert store.list_runs() == before


def test_table_says_why_a_config_failed(monkeypatch, capsys):
    tune_with(monkeypatch, "fakes.quick")
    assert cli.main(["tune", OWN, "--impl", "good,raises", "--workload", "small"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("own.py good forward 8-fp32, 2 configs and the default, no GPU to time them")
    assert [line.split() for line in out[2:5]] == [["default", "32"], ["BLOCK=1", "32"], ["BLOCK=2", "32"]]
    assert [line.split(maxsplit=1)[0] for line in out[7:10]] == ["default", "BLOCK=1", "BLOCK=2"]
    assert all("RuntimeError: this kernel is wrong" in line for line in out[7:10])


@pytest.fixture(scope="module")
def product_sweeps():
    """The recorded sweeps of a product of 8192, an H200's."""
    folder = next(
        run.path for run in store.list_runs([store.recorded_dir()]) if run.title == "matrix products: autotune sweeps"
    )
    return store.open_run(folder)


SWEEP = ("matmul", "triton", "forward", "8192x8192x8192-bf16")


def test_tune_without_gpu_orders_by_the_recorded_sweep(product_sweeps):
    heading, over, said = tune.untimed_over_best(product_sweeps, SWEEP)
    assert heading == "over best"
    assert said.startswith("no GPU to time them: fastest first as recorded on NVIDIA H200")
    cases = [case for case in gather(product_sweeps.table) if case.key["kernel"] == "matmul"]
    best = min(cases, key=lambda case: case.gpu_time().value)
    assert over[best.key["config"]] == 0
    assert len(over) == len(cases)


def test_tune_without_gpu_estimates_what_is_not_recorded(product_sweeps):
    run = dataclasses.replace(product_sweeps.run, device=device.for_target("sm_80"))
    heading, over, said = tune.untimed_over_best(dataclasses.replace(product_sweeps, run=run), SWEEP)
    assert heading == "estimated"
    assert said.startswith("estimated, no GPU to time them: in sweeps of an H200 the first takes 1.07x")
    assert min(over.values()) == 0
    table = product_sweeps.table
    alone = table[(table["kernel"] == "matmul") & (table["config"] == max(over, key=over.get))]
    loaded = dataclasses.replace(product_sweeps, run=run, table=alone)
    assert tune.untimed_over_best(loaded, SWEEP)[2].startswith("no GPU to time them, and no estimate tells them apart")


def test_estimate_holds_in_families_it_was_not_fitted_to():
    sweeps = estimates.recorded()
    judged = estimates.held_out(sweeps).values()
    first, five = (statistics.mean(found) for found in zip(*judged, strict=True))
    assert (round(first, 2), round(five, 2)) == (config_estimate.FIRST, config_estimate.FIRST_FIVE)
    assert first <= 1.10 and five <= 1.04
    for kind, weights in estimates.fitted(sweeps).items():
        assert weights == pytest.approx(config_estimate.WEIGHTS[kind], abs=1e-3)
