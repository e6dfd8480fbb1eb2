"""Summary: the verdict, the shares of peak, the baseline, and whose recording each panel shows."""

import dataclasses
import math
import os
import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from bokeh.document import Document
from tilescope.hardware import device
from tilescope.models.advice import findings
from tilescope.models.compare import Side
from tilescope.models.summary import summarise
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.case_table import gather
from tilescope.table.run import Failure
from tilescope_dashboard.data.kernel_cases import case_name
from tilescope_dashboard.figures.speed_of_light import speed_of_light
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.report.build import build
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import summary as topic
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.summary import Summary

from tests.profiles import made_up

from . import conftest, synthetic
from .conftest import PREDICTED, RUN
from .conftest import said as words

CASE = Case("softmax", "triton", "forward", "8x8-bf16")
opened = partial(conftest.opened, Summary, run=RUN, kernel="softmax")


def counted(**metrics: float) -> pd.DataFrame:
    """A launch of which ncu says this."""
    at = {"launch": 0, "function": "softmax_kernel"}
    return schema.frame([CASE.row(name, value, "ncu", **at) for name, value in metrics.items()])


def shares(**metrics: float) -> dict[str, float]:
    rows = topic.speed_of_light(next(iter(gather(counted(**metrics))), None), synthetic.DEVICE)
    return dict(zip(rows["part"], rows["share"], strict=True))


def test_what_was_not_recorded_has_no_share() -> None:
    assert shares() == {}
    assert shares(sm_throughput=0.5) == {"SM": 0.5}
    assert shares(dram_throughput=0.8, l2_bytes=1e6) == {"HBM": 0.8}  # bytes without a time are no share
    # The made-up GPU's L2 moves 11 TB/s, its tensor cores do 700 Tflop/s in bf16 and have no fp8.
    found = shares(l2_bytes=1.1e7, tensor_ops_bf16=3.5e8, tensor_ops_int8=0.0, gpu_time=2e-6)
    assert found == pytest.approx({"L2": 0.5, "tensor cores": 0.25})
    assert shares(tensor_ops_bf16=0.0, gpu_time=1e-6) == {"tensor cores": 0.0}
    assert "tensor cores" not in shares(tensor_ops_fp8=1.0, gpu_time=1e-6)


def test_the_longest_launch_is_meant() -> None:
    rows = [
        CASE.row(name, value, "ncu", launch=launch, function=f"f{launch}")
        for launch, (share, time) in enumerate([(0.1, 1e-6), (0.9, 5e-6), (0.2, 2e-6)])
        for name, value in (("sm_throughput", share), ("gpu_time", time))
    ]
    (case,) = gather(schema.frame(rows))
    assert topic.speed_of_light(case, synthetic.DEVICE)["share"].tolist() == [0.9]


@pytest.mark.parametrize("metrics", [{"sm_throughput": 0.5}, {"sm_throughput": 0.5, "dram_throughput": 1.2}])
def test_the_figure_has_a_bar_a_share_and_says_what_is_absent(metrics: dict[str, float]) -> None:
    rows = topic.speed_of_light(next(iter(gather(counted(**metrics))), None), synthetic.DEVICE)
    for look in (LIGHT, DARK):
        plot = speed_of_light(rows, topic.PARTS, look)
        Document().add_root(plot)
        drawn = {renderer.name: renderer.data_source.data for renderer in plot.renderers}
        assert len(drawn["shares"]["share"]) == len(metrics)
        assert drawn["values"]["text"].count("not recorded") == 4 - len(metrics)
        assert plot.x_range.end > rows["share"].max()


def test_the_verdict_is_one_sentence_whatever_is_known() -> None:
    assert topic.verdict("", None, ()).title == "No kernel"
    assert "This run has no data" in topic.verdict("mine", None, ()).text
    said = ("line 10: x is not defined", "CompilationFailed: mine does not compile: line 10: x is not defined")
    failed = topic.verdict("mine", None, (), [Failure("mine/triton/forward/8-fp32", "compiler", one) for one in said])
    assert failed.title == "mine does not compile: line 10: x is not defined"
    broken = "CompilationFailed: mine does not compile for sm_90: line 6: y is not defined"
    failed = topic.verdict("mine", None, (), [Failure("mine/triton/forward/8-fp32", "compiler", broken)])
    assert failed == (
        "mine does not compile for sm_90: line 6: y is not defined",
        "Correct that line, then profile it again.",
    )
    timed = summarise(synthetic.frame(), synthetic.DEVICE).iloc[0].to_dict()
    assert topic.verdict("softmax", timed, ()).title == (
        "softmax: 85.4 % of the measured copy bandwidth, no problem found"
    )
    known = {"baseline_name": "torch.matmul", "run": "r", "baseline_run": "r"}
    for speedup, verdict, how in ((0.997, "alike", "as fast as"), (0.5, "slower", "0.5× the speed of")):
        against = [{**known, "speedup": speedup, "verdict": verdict}]
        said = topic.verdict("softmax", timed, (), against=against)
        assert said.title.startswith(f"softmax: {how} torch.matmul, 85.4 % of the measured copy bandwidth")
        # One number for the share, whoever tells it.
        assert "85.4 % of the measured copy bandwidth" in said.text
    predicted = summarise(synthetic.frame(measured=False), synthetic.DEVICE).iloc[0].to_dict()
    assert topic.verdict("softmax", predicted, ()).title == (
        "softmax: predicted memory-bound, no problem found, not timed"
    )
    unknown = {**timed, "floor": math.nan, "floor_fraction": math.nan, "registers": math.nan}
    title = topic.verdict("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int, 4>(int)", unknown, ()).title
    assert title.startswith("PyTorch CatArrayBatchedCopy: ") and title.endswith("its floor is not known")


OUTSIDE = "InterpretationFailed: mine_kernel, program (3, 0, 0), line 6: "


@pytest.mark.parametrize(
    ("message", "title", "text"),
    [
        ("reads 4 bytes past the end of x: element 4,096 of 4,096", "mine reads past the end of x in line 6",
         "It reads x[4,096]; the last element is 4,095. It happens in program (3, 0, 0) of mine_kernel."),
        ("writes 1 byte before the start of y: element -1 of 7", "mine writes before the start of y in line 6",
         "It writes y[-1]; the last element is 6. "),
        ("reads 1,024 bytes after the end of x: element 40 of 8 (x is expanded, as it is)",
         "mine reads past the end of x in line 6", "the last element is 7 (x is expanded, as it is). It happens in program"),
        ("reads what follows the end of x: element 8 of 8", "mine reads past the end of x in line 6", "It reads x[8]; "),
        ("touches 8 bytes past the end of the memory of x and y", "mine touches past the end of the memory of x and y in line 6",
         "8 bytes past the end of the memory of x and y, in program"),
        ("reads memory of no tensor", "mine reads memory of no tensor in line 6", "Memory of no tensor, in program"),
    ],
)  # fmt: skip
def test_access_outside_is_the_verdict(message: str, title: str, text: str) -> None:
    trace = 'File "/somewhere/mine.py", line 6, in mine_kernel\n    line 6\n'
    failure = Failure("mine/triton/forward/8-fp32", "interpreter", OUTSIDE + message, trace)
    case = Case("mine", "triton", "forward", "8-fp32")
    rows = schema.frame([case.row("registers", 32, "compiler", launch=0, function="mine_kernel")])
    found = findings(rows, synthetic.DEVICE, failures=[failure])
    (row,) = summarise(rows, synthetic.DEVICE, failures=[failure]).to_dict("records")
    for said in (topic.verdict("mine", None, (), [failure]), topic.verdict("mine", row, found)):
        assert said.title == title
        assert text in said.text.replace("triton forward 8-fp32", "")
        assert "Line 6 of mine.py: line 6." in said.text
    # Code that does not compile is to be corrected first.
    broken = Failure("mine/triton/forward/8-fp32", "compiler", "CompilationFailed: mine does not compile for sm_90")
    assert topic.verdict("mine", None, (), [broken, failure]).title == "mine does not compile for sm_90"


def test_summary_of_a_fault_is_it_alone(own_runs: Path) -> None:
    synthetic.write_run(own_runs, RUN, measured=False)
    said = "InterpretationFailed: softmax, program (0, 0, 0), line 6: reads 4 bytes past the end of x: element 8 of 8"
    failure = Failure("softmax/triton/forward/16384x4096-bf16", "interpreter", said)
    made_up.redescribe(own_runs / RUN, failures=[dataclasses.asdict(failure)])
    shown = opened()
    assert "softmax reads past the end of x in line 6" in words(shown)
    assert "memory-bound" not in words(shown) and not shown.body.visible
    shown.state.choose(workload="1823x781-bf16")
    assert "predicted memory-bound" in words(shown)
    advised = conftest.opened(Advice, run=RUN, kernel="softmax")
    assert "softmax reads past the end of x in line 6" in words(advised) and "up to" not in words(advised)
    (report,) = build([Side(store.open_run(own_runs / RUN))]).runs
    (kernel,) = [part for part in report.kernels if part.name == "softmax"]
    assert kernel.reached.title.startswith("Out of bounds (triton, 16384x4096-bf16, forward")
    assert kernel.advice[0].findings[0].fault and len(kernel.advice[0].findings) == 1


def test_it_opens_first_on_the_case_that_stands_for_the_kernel(in_runs: None) -> None:
    shown = opened()
    assert State(run=RUN).view == "summary"
    assert "85.4 % of the measured copy bandwidth" in words(shown)
    assert "16384x4096-bf16" in words(shown)
    assert "speedup vs unfused" in words(shown)
    assert "From synthetic run, measured 2026-01-02 on Synthetic GPU" in words(shown)
    assert shown.roofline.visible
    shown.state.choose(workload="1823x781-bf16")
    assert "1823x781-bf16" in words(shown)


def test_a_config_of_a_sweep_has_its_own_summary(in_runs: None) -> None:
    shown = opened(kernel="matmul")
    for case in list(shown.state.cases.values())[::4]:
        shown.state.case = case_name(case)
        assert "could not be drawn" not in words(shown)
        assert case.config.replace(",", ", ") in words(shown)
        assert "No run says anything" not in words(shown)


def test_the_chosen_baseline_is_compared_and_follows_the_run(in_runs: None) -> None:
    shown = opened(compared=[f"{RUN}:compile"])
    assert "speedup vs torch.compile" in words(shown)
    assert "eager" not in words(shown)
    shown.state.compared = [PREDICTED]
    assert f"triton in {PREDICTED}: not timed" in words(shown)
    shown.state.compared = [f"{RUN}:compile"]
    shown.state.run = PREDICTED
    assert shown.state.compared == [f"{PREDICTED}:compile"]
    state = shown.state
    none, said = topic.baseline(state.loaded, "softmax", state.standing, ["20200101-000000-0000"], dataclasses.replace)
    assert not none and "no run" in said[0]


def test_later_baseline_is_read(runs: Path, own_runs: Path) -> None:
    shutil.copytree(runs / RUN, own_runs / RUN)
    shown = opened(compared=[PREDICTED])
    assert "no run" in words(shown)
    synthetic.write_run(own_runs, PREDICTED, measured=False)
    shown.state.refresh()
    assert f"triton in {PREDICTED}: not timed" in words(shown)
    shutil.rmtree(own_runs / PREDICTED)
    os.utime(synthetic.write_run(own_runs, PREDICTED) / "run.json", (1, 2_000_000_000))
    shown.state.refresh()
    assert f"speedup vs triton in {PREDICTED}" in words(shown)


def test_counters_come_from_a_run_with_them(in_runs: None) -> None:
    shown = opened(run=PREDICTED)
    assert ", not timed" in words(shown)
    bars = {r.name: r.data_source.data for r in shown.light.object.renderers}["shares"]
    assert "L2" in bars["part"]
    said = shown.causes.object
    assert "measured 2026-01-02 on Synthetic GPU" in said and "(speed of light)" in said
    assert "synthetic prediction, measured 2026-01-02 on Synthetic GPU" in words(shown)


def test_summary_without_counters_anywhere_says_what_to_do(own_runs: Path) -> None:
    rows = [Case("own", "triton", "forward", "8-fp32").row("registers", 32, "compiler")]
    made_up.written(own_runs, rows, RUN, {"own": {"passes": ["forward"]}}, device=device.for_target("sm_90"))
    shown = opened(kernel="own")
    assert not shown.light.visible and "--collect ncu&#x27; counts them there" in words(shown)
    assert '<dl class="stats"></dl>' not in shown.head.object
