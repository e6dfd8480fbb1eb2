"""Advice where the answer is known: bounds weighed by the time they concern, no contradictions, the distance always said; recorded runs."""

import itertools
import json
import math
import re
from typing import Any

import pytest
from tilescope import cli
from tilescope.hardware import device
from tilescope.models import advice, summary
from tilescope.models.advice import Finding, subject
from tilescope.runs import recordings, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.case_table import gather
from tilescope.table.run import Device

from .made_up import CASE, MB, cost, gpu, values

GPU = gpu(hbm=1e12, fp32=1e13)


def chain(*launches: dict[str, float], read: float = 50 * MB, written: float = 50 * MB, of: Case = CASE) -> list[Any]:
    """Rows of a case of several launches: keys are ``metric@source``."""
    each = (values(launch, number, of, "kernel_") for number, launch in enumerate(launches))
    return [*cost(of, read, written), *itertools.chain.from_iterable(each)]


def find(*launches: dict[str, float], **more: Any) -> list[Finding]:
    return advice.findings(schema.frame(chain(*launches, **more)), GPU)


def launch(microseconds: float, read: float, written: float, **more: float) -> dict[str, float]:
    counted = {"dram_bytes_read@ncu": read * MB, "dram_bytes_written@ncu": written * MB}
    return {"gpu_time@torch_profiler": microseconds * 1e-6, "gpu_time@ncu": microseconds * 1e-6, **counted, **more}


def bounds(found: list[Finding]) -> dict[str, float]:
    return {finding.rule: finding.bound.ratio if finding.bound else math.nan for finding in found}


def test_bounds_weigh_bytes_by_launch() -> None:
    # 200 MB are moved for the 100 that are needed: 200 of 250 us, which HBM keeps busy, so all of the time shrinks.
    assert bounds(find(launch(250, 150, 50)))["extra-bytes"] == pytest.approx(2)
    # 200 of 1000 us: what is not in proportion to bytes stays.
    assert bounds(find(launch(1000, 150, 50)))["extra-bytes"] == pytest.approx(1000 / 900)
    # 200 of 5000 us: not worth a word.
    assert "extra-bytes" not in bounds(find(launch(5000, 150, 50)))
    # The first launch is all bytes (180 of 200 us), the second one's take 20 of 800.
    found = find(launch(200, 100, 80), launch(800, 10, 10))
    share = (200 + 20) / 1000
    assert bounds(found)["extra-bytes"] == pytest.approx(1 / (1 - share + share / 2))
    # Moves 4x the bytes at 80 % of the roof: shorter waits fill the rest of it, and move no less.
    found = bounds(find(launch(500, 350, 50, **STALLS | {"stall_long_scoreboard@ncu": 90.0})))
    assert found["longest-stall"] == pytest.approx(1 / 0.8)
    assert found["extra-bytes"] == pytest.approx(4)
    assert "extra-bytes" in bounds(find(launch(30, 20, 10), launch(30, 20, 10), read=10 * MB, written=10 * MB))
    assert "extra-bytes" not in bounds(find(launch(30, 6, 3), launch(30, 6, 3), read=3 * MB, written=3 * MB))
    # A single launch that reads twice is not warm by an earlier one.
    assert "extra-bytes" in bounds(find(launch(9, 8, 3), read=3 * MB, written=3 * MB))


def test_fused_launches_win_up_to_the_time_of_their_bytes() -> None:
    def said(device: Device, *launches: dict[str, float]) -> str:
        (extra,) = [f for f in advice.findings(schema.frame(chain(*launches)), device) if f.rule == "extra-bytes"]
        return extra.bound.text if extra.bound else ""

    # Twice the bytes, and 2.5 times their time: the datasheet's rate would save more.
    assert said(GPU, *[launch(125, 75, 25)] * 2) == "up to 2.50×"
    assert said(gpu(hbm=1e12, sheet_hbm=1.2e12, fp32=1e13), *[launch(125, 75, 25)] * 2) == "up to 3×"
    # The bytes take a third of the time: how the rest would shrink is not known.
    assert said(GPU, *[launch(300, 75, 25)] * 2) == "1.20× by this alone"
    # A single launch is not fused.
    assert said(GPU, launch(250, 150, 50)) == "2× by this alone"


def test_fused_bound_covers_every_recorded_implementation(recordings: list[store.LoadedRun]) -> None:
    case, problem = ["kernel", "impl", "pass", "workload"], ["kernel", "pass", "workload"]
    judged = 0
    for loaded in recordings[::3]:
        run, table = loaded.run, loaded.table[loaded.table["config"] == ""]
        rows = summary.summarise(table, run.device, run.kernels)
        right = rows[rows["gpu_time"].notna() & ~(rows["relative_error"] > rows["tolerance"])]
        best, times = right.groupby(problem)["gpu_time"].min(), rows.set_index(case)["gpu_time"]
        for found in advice.findings(table, run.device, run.kernels):
            if found.bound and found.bound.most:
                won = times[found.case[:4]] / best[found.kernel, found.direction, found.workload]
                assert won <= found.bound.ratio, (run.id, found)
                judged += 1
    assert judged > 30


@pytest.mark.parametrize(("launches", "said"), [(1, "Moves 2×"), (2, "2 launches move 2×")])
def test_extra_bytes_title_counts_several_launches(launches: int, said: str) -> None:
    found = find(*[launch(250 / launches, 150 / launches, 50 / launches)] * launches)
    (extra,) = [finding for finding in found if finding.rule == "extra-bytes"]
    assert extra.title.startswith(said)


def counted(read: float, written: float, **more: float) -> dict[str, float]:
    return {"unique_bytes_read@interpreter": read, "unique_bytes_written@interpreter": written, **more}


#: A value of all the input, and what uses it.
LARGEST, USES = counted(50 * MB, 4), counted(50 * MB + 4, 50 * MB)


def test_extra_bytes_dependent_passes_stay_two_launches() -> None:
    first, second = launch(55, 50, 0), launch(110, 50, 50)
    found = find({**first, **LARGEST}, {**second, **USES})
    assert [finding.rule for finding in found] == ["distance"]
    assert "two passes over the input" in found[0].title and "Still 9 % below" in found[0].title
    # In three launches one is too many: compared with two passes, and told to be two.
    between = find({**first, **LARGEST}, {**launch(165, 50, 100)}, {**second, **USES, "dram_bytes_read@ncu": 100 * MB})
    (extra,) = [finding for finding in between if finding.rule == "extra-bytes"]
    assert (
        "two passes" in extra.title and "in a second one" in extra.remedy and "compute them in one" not in extra.remedy
    )
    # 330 us; of the second pass L2 may hold 10 of 50 MB.
    assert extra.bound and extra.bound.most and extra.bound.ratio == pytest.approx(330 / 140)


def test_passes_within_l2_are_compared_with_one() -> None:
    small = counted(3 * MB, 4), counted(3 * MB + 4, 3 * MB)
    first, second = launch(60, 3, 0), launch(60, 3, 3)
    found = find({**first, **small[0]}, {**second, **small[1]}, read=3 * MB, written=3 * MB)
    (distance,) = [finding for finding in found if finding.rule == "distance"]
    assert "two passes" not in distance.title
    # Row statistics: a thousandth of the input, of which each program reads its own part.
    rows = find(
        {**launch(55, 50, 0), **counted(50 * MB, 50_000)}, {**launch(110, 50, 50), **counted(50 * MB + 50_000, 50 * MB)}
    )
    (extra,) = [finding for finding in rows if finding.rule == "extra-bytes"]
    assert "compute them in one" in extra.remedy


@pytest.mark.parametrize(("first", "second", "needs"), [
    # Nine tenths of the input are all of it: the rest may be an operand of its own.
    (counted(45.5 * MB, 4), USES, True),
    (counted(44.5 * MB, 4), USES, False),
    (LARGEST, counted(45.5 * MB, 50 * MB), True),
    (LARGEST, counted(44.5 * MB, 50 * MB), False),
    # More than one value of 16 bytes may be used in part.
    (counted(50 * MB, 16), USES, True),
    (counted(50 * MB, 17), USES, False),
])  # fmt: skip
def test_dependence_on_all_input_begins_there(first: dict[str, float], second: dict[str, float], needs: bool) -> None:
    assert bool(subject.two_passes(gather(schema.frame(chain(first, second))))) == needs


@pytest.mark.parametrize(("made", "asked", "needs"), [
    # A 256th of what they are made of, and nine tenths of the 99 programs after the first ask for them again.
    (50 * MB / 257, 90, True), (50 * MB / 255, 90, False), (50 * MB / 257, 89, False),
])  # fmt: skip
def test_two_passes_partial_results_are_small_and_read_by_all(made: float, asked: int, needs: bool) -> None:
    unique = 50 * MB + made
    later = counted(
        unique, 50 * MB, **{"requested_bytes_read@interpreter": unique + asked * made, "grid_blocks@ncu": 100}
    )
    assert bool(subject.two_passes(gather(schema.frame(chain(counted(50 * MB, made), later))))) == needs


STALLS = {"stall_long_scoreboard@ncu": 3.1, "stall_wait@ncu": 3.0, "stall_barrier@ncu": 2.9, "stall_selected@ncu": 1.0}
WASTE = {
    "widest_load@compiler": 4, "sectors_per_load@ncu": 32, "grid_blocks@compiler": 30,
    "occupancy_limit_warps@compiler": 4,
}  # fmt: skip


def test_launch_bound_case_names_no_other_cause() -> None:
    short = find(launch(2, 0.2, 0.1, **STALLS, **WASTE), launch(2, 0.2, 0.1), read=0.1 * MB, written=0.1 * MB)
    assert [finding.rule for finding in short] == ["launch-bound", "distance"]
    longer = find(launch(20, 0.2, 0.1, **STALLS, **WASTE), read=0.1 * MB, written=0.1 * MB)
    assert {"longest-stall", "uncoalesced-loads", "partial-waves"} < bounds(longer).keys()


def test_the_sentence_and_the_rule_agree_on_what_is_launch_bound() -> None:
    for microseconds in (2, 4.9, 5.1, 20):
        table = schema.frame(chain(launch(microseconds, 0.1, 0.1), read=0.1 * MB, written=0.1 * MB))
        why = summary.summarise(table, GPU)["why"].iloc[0]
        assert ("launch-bound" in bounds(advice.findings(table, GPU))) == why.startswith("Launch-bound")
        assert why.startswith("Launch-bound") == (microseconds < 5)


@pytest.mark.parametrize(("stalled", "told"), [(0.26, True), (0.24, False)])
def test_a_quarter_of_the_cycles_is_a_stall_to_speak_of(stalled: float, told: bool) -> None:
    others = ("wait", "barrier", "drain", "membar")
    cycles = {f"stall_{name}@ncu": (1 - stalled) / 4 for name in others} | {"stall_long_scoreboard@ncu": stalled}
    found = find(launch(400, 50, 50, **cycles))
    assert ("longest-stall" in bounds(found)) == told
    distance = found[-1]
    assert f"Long Scoreboard {stalled * 100:.0f} %" in distance.remedy
    assert distance.title.startswith("Still" if told else "No known bottleneck found. Still 75 %")


def test_stall_not_selected_names_instruction_issue() -> None:
    found = find(
        launch(400, 50, 50, **{"stall_not_selected@ncu": 3.0, "stall_selected@ncu": 1.0, "stall_wait@ncu": 1.0})
    )
    (stall,) = [finding for finding in found if finding.rule == "longest-stall"]
    assert "Not Selected" in stall.title and "Instruction issue" in stall.remedy and stall.bound is None


@pytest.mark.parametrize(("ratio", "told"), [(1.06, True), (1.04, False)])
def test_less_than_five_percent_to_win_is_left_out(ratio: float, told: bool) -> None:
    # All of the time is bytes': the bound is their ratio, and 1.1 the least excess; so weigh it with a second launch.
    share = (1 - 1 / ratio) / (1 - 1 / 2)
    busy, idle = launch(1000 * share, 600 * share, 400 * share), launch(1000 * (1 - share), 0, 0)
    found = bounds(find(busy, idle, read=300 * share * MB, written=200 * share * MB))
    assert ("extra-bytes" in found) == told


@pytest.mark.parametrize(("fraction", "said"), [
    (0.7, "No known bottleneck found. Still 30 % below the measured copy bandwidth"),
    (0.002, "No known bottleneck found. Still 99.80 % below the measured copy bandwidth"),
    (0.9, "At the HBM roof: 90.0 % of the measured copy bandwidth"),
    (0.999, "At the HBM roof: 99.9 % of the measured copy bandwidth"),
])  # fmt: skip
def test_the_distance_to_the_roof_is_said(fraction: float, said: str) -> None:
    (only,) = find(launch(100 / fraction, 50, 50))
    assert only.title == said and only.bound is None


def test_distance_of_each_recorded_case_comes_once_and_last(recording: store.LoadedRun) -> None:
    loaded = recording
    table, device, kernels = loaded.table, loaded.run.device, loaded.run.kernels
    by_case: dict[tuple[str, ...], list[Finding]] = {}
    for finding in advice.findings(table, device, kernels):
        by_case.setdefault(finding.case, []).append(finding)
    for row in summary.summarise(table, device, kernels).to_dict("records"):
        found = by_case.get(tuple(row[name] for name in ("kernel", "impl", "pass", "workload", "config")), [])
        said = [finding.rule for finding in found if finding.rule in ("at-the-roof", "at-the-rate", "distance")]
        rules = {finding.rule for finding in found}
        possible = not any(finding.of_results for finding in found)
        assert said == ([said[-1]] if row["measured"] and row["floor_fraction"] > 0 and possible else []), row
        if "launch-bound" in rules:
            assert rules <= {"launch-bound", "late-cpu", "quicker-config", "distance"}, row
        if row["floor_fraction"] > 0:
            # The floor of a product on CUDA cores is theirs, which leaving them passes.
            capped = [f.bound for f in found if f.bound and not f.bound.timed and f.rule != "no-tensor-cores"]
            limits = {True: row["gpu_time"] / row["least_time"], False: 1 / row["floor_fraction"]}
            assert all(b.ratio <= 1.0001 * limits[b.most] for b in capped if b.clock == "gpu_time"), row
            assert limits[True] >= limits[False]


@pytest.mark.parametrize(("metric", "told"), [("tensor_ops_fp8", True), ("tensor_ops_bf16", False)])
def test_operands_that_are_widened_first_use_tensor_cores_too(metric: str, told: bool) -> None:
    product = Case("mm", "eager", "forward", "1000x1000x1000-fp8")
    rows = [*cost(product, MB, MB, 2e9), *chain(launch(5000, 1, 1), of=product)[3:]]
    for name in ("tensor_ops_fp8", metric):
        rows += [product.row(name, 0 if name == "tensor_ops_fp8" else 2e9, "ncu", launch=0, function="kernel_0")]
    device = gpu(hbm=1e12, fp32=1e13, fp8=1e14)
    assert ("no-tensor-cores" in bounds(advice.findings(schema.frame(rows), device))) == told


def test_only_the_launches_of_a_product_gain_by_tensor_cores() -> None:
    """ncu counts which launches multiply."""
    product = Case("mm", "eager", "forward", "1000x1000x1000-fp32")
    counted = [launch(800, 1, 1, **{"flops_fp32@ncu": flops, "tensor_ops_tf32@ncu": 0}) for flops in (2e9, 1e6)]
    rows = [*cost(product, MB, MB, 2e9), *chain(*counted, of=product)[3:]]
    found = bounds(advice.findings(schema.frame(rows), gpu(hbm=1e12, fp32=1e13, tf32=1e14)))
    # The product takes half of the time, and tf32 is 10 times as fast as fp32.
    assert found["no-tensor-cores"] == pytest.approx(1 / (0.5 + 0.5 / 10))


def counted_run(kernel: str) -> store.LoadedRun:
    """The newest recording of the kernel with times and counters."""
    return store.open_run(recordings.of_kernel(kernel)[0].path)


def test_a_prediction_is_never_called_measured() -> None:
    loaded = counted_run("layer_norm")
    table = loaded.table[loaded.table["source"].isin(["compiler", "interpreter", "model"])]
    found = advice.findings(table, device.for_target("sm_90"), loaded.run.kernels)
    rules = {finding.rule for finding in found}
    assert "register-pressure" in rules and not rules & {"late-cpu", "launch-bound", "at-the-roof", "longest-stall"}
    assert not any(finding.measured for finding in found)


def test_findings_are_ranked() -> None:
    loaded = counted_run("layer_norm")
    found = advice.findings(loaded.table, loaded.run.device, loaded.run.kernels)
    ratios = [finding.bound.ratio for finding in found if finding.bound]
    assert ratios == sorted(ratios, reverse=True)
    ranks = [
        0 if finding.bound else 1 if finding.rule == "at-the-roof" else 2 for finding in found if not finding.impossible
    ]
    assert ranks == sorted(ranks)


def test_the_command_prints_findings(capsys: pytest.CaptureFixture[str]) -> None:
    run = counted_run("layer_norm").run.id
    assert cli.main(["advise", run, "layer_norm", "--impl", "triton", "--workload", "8192x16384-bf16"]) == 0
    printed = capsys.readouterr().out
    forward, backward = printed.removeprefix("layer_norm/triton/forward/8192x16384-bf16\n").split("\n\n")[:2]
    assert re.match(r"  1\. At the HBM roof: \d\d\.\d % of the measured copy bandwidth", forward)
    assert "no estimate, measured\n     why: " in forward and "\n     do: " in forward
    assert backward.startswith("layer_norm/triton/backward/8192x16384-bf16\n  1. ")
    assert cli.main(["advise", run, "layer_norm", "--workload", "16384x4096-bf16", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["findings"]
    assert {f["workload"] for f in listed} == {"16384x4096-bf16"}
    assert {f["impl"] for f in listed} > {"triton"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["layernorm"], "unknown kernel 'layernorm': did you mean 'layer_norm'?"),
        (["--impl", "trton"], "unknown impl 'trton': did you mean 'triton'?"),
        (["--workload", "1x1-fp32"], "unknown workload '1x1-fp32'"),
    ],
)
def test_command_says_what_is_unknown(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", counted_run("layer_norm").run.id, *arguments]) == 2
    assert said in capsys.readouterr().err
