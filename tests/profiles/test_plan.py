"""From a request to its cases."""

import pytest
from tilescope import collectors
from tilescope.jobs import plan
from tilescope.jobs.plan import Request, RequestError
from tilescope.jobs.supervisor import deal


def entry(kernel="k", passes=("forward", "backward"), **implementations):
    implementations = implementations or {"triton": [{"BLOCK": 1}, {"BLOCK": 2}], "eager": []}
    return {
        "kernel": kernel, "name": kernel, "passes": list(passes),
        "implementations": {
            name: {"configs": configs, "available": name != "liger", "requires": [name]}
            for name, configs in implementations.items()
        },
        "workloads": [{"id": "8-fp32"}, {"id": "9-fp32"}], "selected": ["7-fp32"],
    }  # fmt: skip


def ids(request, *catalog):
    return [case.id for case in plan.choose_cases(request, catalog or [entry()])]


def test_implementations_of_a_plan():
    cases = ids(Request(), entry(triton=[], liger=[]))
    assert cases == [f"k/triton/{direction}/{n}-fp32" for n in (8, 9) for direction in ("forward", "backward")]
    request = Request(implementations=["aten"], directions=["forward"])
    assert ids(request, entry("a", aten=[]), entry("b")) == ["a/aten/forward/8-fp32", "a/aten/forward/9-fp32"]
    with pytest.raises(RequestError, match="pip install liger"):
        ids(Request(implementations=["liger"]), entry(triton=[], liger=[]))


def test_sweep_has_every_config_and_the_default():
    request = Request(implementations=["triton"], directions=["forward"], workloads=["x"], configs=["all"])
    swept = ["k/triton/forward/7-fp32", "k/triton/forward/7-fp32/BLOCK=1", "k/triton/forward/7-fp32/BLOCK=2"]
    assert ids(request) == swept
    everything = Request(directions=["forward"], workloads=["x"], configs=["all"])
    assert ids(everything) == swept, "an implementation without configs has no sweep"


@pytest.mark.parametrize(("request_", "said"), [
    (Request(implementations=["tritn"]), "did you mean 'triton'"),
    (Request(directions=["sideways"]), "unknown pass 'sideways'"),
    (Request(implementations=["eager"], configs=["BLOCK=1"]), "k/eager has no config 'BLOCK=1': it has none"),
    (Request(implementations=["triton"], configs=["WIDTH=1"]), "it takes BLOCK"),
    (Request(implementations=["triton"], configs=["BLOCK=x"]), "is not NAME=INTEGER"),
])  # fmt: skip
def test_unknown_names_are_refused(request_, said):
    with pytest.raises(RequestError, match=said):
        ids(request_)


@pytest.fixture
def able(monkeypatch):
    """A machine on which every collector can run."""

    class Module:
        @staticmethod
        def unavailable():
            return None

    monkeypatch.setattr(collectors, "load", lambda name: Module)


@pytest.mark.usefixtures("able")
def test_auto_is_what_this_machine_can_run():
    measuring = plan.choose_collectors(["auto"], "sm_90", "sm_90")
    assert measuring == tuple(name for name in collectors.COLLECTORS if name != "ncu"), "cupti counts without a process"
    assert plan.choose_collectors(["auto", "ncu"], "sm_90", "sm_90") == collectors.COLLECTORS
    assert plan.choose_collectors(["auto"], "sm_90", "") == ("compiler", "interpreter")
    assert plan.choose_collectors([], "sm_80", "sm_90") == ("compiler", "interpreter")
    assert plan.choose_collectors(["auto", "check"], "sm_90", "") == ("check", "compiler", "interpreter")


def test_auto_is_short_where_a_gpu_counts():
    on_gpu, without = ("compiler", "interpreter", "cupti"), ("compiler", "interpreter")
    assert plan.shortened([], on_gpu) == {"interpreter_limit": plan.BRIEF}
    assert plan.shortened(["cupti"], on_gpu) == plan.shortened(["auto"], without) == {}


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("name", [*collectors.OPTIONAL, "ncu"])
def test_optional_collector_runs_only_on_request(name):
    assert name not in plan.choose_collectors(["auto"], "sm_90", "sm_90")
    assert plan.choose_collectors([name, "ncu"], "sm_90", "sm_90")[-1] == name
    with pytest.raises(RequestError, match="measures this machine's GPU"):
        plan.choose_collectors([name], "sm_80", "sm_90")


@pytest.mark.usefixtures("able")
def test_collectors_have_an_order():
    assert plan.choose_collectors(["ncu", "own.module", "check"], "sm_90", "sm_90") == ("check", "ncu", "own.module")


def test_each_process_gets_some_of_each_implementation():
    catalog = [
        {**entry(), "cost": {f"{n}-fp32": {way: {"bytes_read": n} for way in ("forward", "backward")} for n in (8, 9)}}
    ]
    cases = plan.choose_cases(Request(), catalog)
    dealt = deal(cases, catalog, 2)
    assert sorted(case.id for share in dealt for case in share) == sorted(case.id for case in cases)
    assert [sorted(case.impl for case in share) for share in dealt] == [["eager"] * 2 + ["triton"] * 2] * 2
    assert [[case.workload for case in share] for share in deal(cases[1:4], catalog, 8)] == [["8-fp32"] * 3]
