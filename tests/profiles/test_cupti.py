"""CUPTI's Range Profiler: structs, planning, the order of its calls, refusals, and the artefact."""

import ctypes
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tilescope.collectors.cupti import counters, library, planning, ranges, structures
from tilescope.execution.not_applicable import NotApplicable
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case

from . import made_up

SOFTMAX = Case("softmax", "triton", "forward", "4096x4096-bf16")
#: Bytes of each struct, as the ``…_STRUCT_SIZE`` of CUPTI 13.0's headers gives them to a C++ compiler.
SIZES = {
    "cuptiProfilerInitialize": 16, "cuptiDeviceGetChipName": 32, "cuptiProfilerHostInitialize": 48,
    "cuptiProfilerHostDeinitialize": 24, "cuptiProfilerHostConfigAddMetrics": 40,
    "cuptiProfilerHostGetConfigImageSize": 32, "cuptiProfilerHostGetConfigImage": 40,
    "cuptiProfilerHostGetNumOfPasses": 40, "cuptiProfilerHostEvaluateToGpuValues": 72, "cuptiRangeProfilerEnable": 32,
    "cuptiRangeProfilerDisable": 24, "cuptiRangeProfilerGetCounterDataSize": 64,
    "cuptiRangeProfilerCounterDataImageInitialize": 40, "cuptiRangeProfilerSetConfig": 90,
    "cuptiRangeProfilerStart": 24, "cuptiRangeProfilerStop": 41, "cuptiRangeProfilerDecodeData": 32,
    "cuptiRangeProfilerGetCounterDataInfo": 40,
}  # fmt: skip
FIXTURES = Path(__file__).parent / "fixtures"
READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"


def test_cupti_is_not_started_ahead_where_one_process_has_the_gpu(monkeypatch):
    made_up.machine(monkeypatch, shareable=False)
    monkeypatch.setattr(device, "make_context", lambda: pytest.fail("it makes a context"))
    assert not counters.start_ahead()


@pytest.fixture(scope="module")
def real():
    """The library that is installed, where it plans without a driver: some do not, and some end the process."""
    path = library.find()
    if path is None:
        pytest.skip(library.ABSENT)
    code = f"from tilescope.collectors.cupti import library, planning; planning.plans(library.Library({str(path)!r}), 'GH100', '9.0')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{path} plans nothing without a driver")
    return library.Library(str(path))


def pointed_to(argument):
    """What a call's argument, made by ``byref``, refers to."""
    return argument._obj


class FakeHandle:
    """A CUPTI that counts ``launches`` a pass: what it is asked for, and what it answers."""

    def __init__(self, launches=2, results=None):
        self.launches, self.results, self.calls = launches, results or {}, list[str]()
        self.passes, self.made = 1, 0
        self.subscribed, self.enabled = 0, set[int]()

    def __getitem__(self, name):
        if name == "missing":
            raise AttributeError(name)

        def function(given):
            self.calls.append(name.removeprefix("cupti"))
            if code := self.results.get(name):
                return code
            getattr(self, f"do_{name.removeprefix('cupti')}", lambda p: None)(pointed_to(given))
            return 0

        return function

    def do_RangeProfilerGetCounterDataSize(self, asked):
        asked.counterDataSize = 64 * asked.maxNumOfRanges

    def do_RangeProfilerStop(self, ended):
        self.made += 1
        ended.isAllPassSubmitted = self.made == self.passes

    def do_RangeProfilerGetCounterDataInfo(self, info):
        info.numTotalRanges = self.launches

    def do_ProfilerHostEvaluateToGpuValues(self, asked):
        for place in range(asked.numMetrics):
            asked.values[place] = 100 * asked.rangeIndex + place

    def cuptiSubscribe(self, subscriber, callback, user):
        self.callback = callback
        return self.subscribed

    def cuptiEnableCallback(self, enable, subscriber, domain, number):
        self.enabled.add(number)
        return 0

    def cuptiUnsubscribe(self, subscriber):
        self.calls.append("unsubscribed")

    def cuptiGetVersion(self, found):
        pointed_to(found).value = 130001

    def cuptiGetResultString(self, code, said):
        pointed_to(said).value = b"CUPTI_ERROR_SOMETHING"


def fake(handle):
    made = object.__new__(library.Library)
    made.handle, made.path = handle, "fake"
    return made


@pytest.fixture
def context(monkeypatch):
    """CUDA has a context here."""
    monkeypatch.setattr(ranges, "_context", lambda: 1)


def test_structs_are_laid_out_as_in_cuptis_headers():
    assert {kind.function: kind.size() for kind in structures.Parameters.__subclasses__()} == SIZES
    config = structures.SetConfig
    assert [config.replayMode.offset, config.minNestingLevel.offset, config.passIndex.offset] == [60, 74, 80]
    assert structures.Stop().structSize == SIZES["cuptiRangeProfilerStop"]
    assert structures.CallbackData.symbolName.offset == 4 * ctypes.sizeof(ctypes.c_void_p)


@pytest.mark.parametrize(("chip", "capability"), [("GH100", "9.0"), ("GA100", "8.0"), ("GB100", "10.0")])
def test_bytes_time_and_bf16_operations_fit_one_pass(real, chip, capability):
    (first,) = planning.plans(real, chip, capability)
    assert first.passes == 1
    assert {READ, WRITTEN, TIME, "lts__t_bytes.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"} <= {*first.counters}


@pytest.mark.parametrize(("chip", "capability", "least"), [("GH100", "9.0", 19), ("GA100", "8.0", 18)])
def test_all_counters_are_one_plan(real, chip, capability, least):
    (plan,) = planning.plans(real, chip, capability, planning.PRODUCTS)
    stalls = [name for name in plan.counters if name.startswith("smsp__average_warps_issue_stalled_")]
    assert len(stalls) >= least, "only Hopper has tensor cores to wait for by a name of their own"
    assert {"l1tex__t_sector_hit_rate.pct", "sm__ops_path_tensor_src_int8.sum", READ, TIME} <= {*plan.counters}
    assert 1 < plan.passes < 16
    (fewer,) = planning.plans(real, chip, capability, planning.OTHERS)
    assert fewer.passes < plan.passes and {name for name in plan.counters if "tensor" not in name} <= {*fewer.counters}


def test_tensor_operations_are_counted_where_a_product_may_be():
    few = SimpleNamespace(pipe="fp32", flops=100, bytes_read=50, bytes_written=50)
    many = SimpleNamespace(pipe="fp32", flops=10_000, bytes_read=50, bytes_written=50)
    assert [counters.wanted(cost, {}) for cost in (few, many, None)] == [
        planning.OTHERS, planning.PRODUCTS, planning.PRODUCTS,
    ]  # fmt: skip
    assert counters.wanted(many, {"one_pass": True}) == planning.FIRST


def test_plans_leave_out_counters_that_the_chip_lacks(real):
    names = {name for plan in planning.plans(real, "TU102", "7.5") for name in plan.counters}
    assert READ in names
    assert not any("bf16" in name for name in names)
    with pytest.raises(library.Refused, match=r"does not know the chip GX999: pip install --upgrade nvidia-cuda-cupti"):
        planning.plans(real, "GX999", "9.0")


@pytest.mark.parametrize("passes", [1, 2])
def test_each_pass_begins_cold_and_only_the_call_is_counted(passes, context):
    handle = FakeHandle()
    handle.passes, calls = passes, handle.calls
    plan = planning.Plan((READ, TIME), passes, b"plan")
    cold, call = (lambda: calls.append("cold")), (lambda: calls.append("call"))
    found = ranges.count(fake(handle), "GH100", plan, launches=2, call=call, before=cold)
    assert found == [{READ: 0, TIME: 1}, {READ: 100, TIME: 101}]
    one = ["cold", "RangeProfilerStart", "call", "RangeProfilerStop"]
    start, end = calls.index("RangeProfilerSetConfig") + 1, calls.index("RangeProfilerDecodeData")
    assert calls[start:end] == one * passes
    assert calls.index("RangeProfilerDisable") > end


def test_counts_of_another_number_of_launches_are_an_error(context):
    handle = FakeHandle(launches=3)
    with pytest.raises(library.CuptiError, match="2 launches were seen and 3 counted"):
        ranges.count(fake(handle), "GH100", planning.Plan((READ,), 1, b"plan"), launches=2, call=int, before=int)
    assert handle.calls[-1] == "RangeProfilerDisable"


@pytest.mark.parametrize(("code", "cure"), [
    (35, "NVreg_RestrictProfilingToAdminUsers=0"), (39, "another profiler"), (26, "dcgmi profile --pause"),
    (43, "whole GPU"), (46, "CUPTI 130001 does not know the chip GH100: pip install"),
])  # fmt: skip
def test_a_refusal_is_one_line_with_the_cure(code, cure, monkeypatch):
    cupti = fake(FakeHandle(results={"cuptiRangeProfilerEnable": code}))
    cupti.asked_chip = "GH100"
    with pytest.raises(library.Refused) as refused:
        cupti.call(structures.Enable(context=1))
    assert cure in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_error_names_the_function_and_cuptis_result():
    cupti = fake(FakeHandle(results={"cuptiRangeProfilerStart": 7}))
    with pytest.raises(library.CuptiError, match=r"cuptiRangeProfilerStart gave CUPTI_ERROR_SOMETHING \(7\)") as failed:
        cupti.call(structures.Start(profiler=1))
    assert not isinstance(failed.value, library.Refused)


def test_a_library_that_is_too_old_or_none_is_refused(monkeypatch, tmp_path):
    old = structures.parameters("missing")
    with pytest.raises(library.Refused, match=r"CUDA 12\.6"):
        fake(FakeHandle()).call(old())
    (tmp_path / "libcupti.so.13").write_text("no library")
    with pytest.raises(library.Refused, match="cannot be loaded"):
        library.Library(str(tmp_path / "libcupti.so.13"))
    monkeypatch.setattr(library, "find", lambda: None)
    monkeypatch.setattr(library, "_loaded", lambda: None)
    with pytest.raises(library.Refused, match="pip install nvidia-cuda-cupti"):
        library.load()


def test_launches_are_named_in_order_and_graphs_are_marked():
    handle = FakeHandle()
    with ranges.seen(fake(handle)) as names:
        for number, site, symbol in ((307, 0, b"first"), (307, 1, b"first"), (652, 0, b"_Z6secondv"), (514, 0, None)):
            told = structures.CallbackData(callbackSite=site, symbolName=symbol)
            handle.callback(None, 1, number, ctypes.pointer(told))
    assert names == ["first", "second()", ranges.GRAPH]
    assert {307, 652, 514} <= handle.enabled
    assert handle.calls == ["unsubscribed"]
    handle.subscribed = 39
    with pytest.raises(library.Refused, match="another profiler"), ranges.seen(fake(handle)):
        pass


def test_counts_of_plans_are_merged_and_nan_is_absent(monkeypatch):
    counts = {(READ,): 7.0, (WRITTEN, TIME): math.nan}
    monkeypatch.setattr(
        ranges,
        "count",
        lambda cupti, chip, plan, launches, **_: [dict.fromkeys(plan.counters, counts[plan.counters])] * launches,
    )
    plans = [planning.Plan(names, passes, b"") for passes, names in enumerate(counts, start=1)]
    assert counters.counted(fake(FakeHandle()), "GH100", plans, launches=2, call=int, empty=int) == (
        [{READ: 7.0}] * 2,
        3,
    )
    with pytest.raises(library.Refused, match=r"130001 gives no number .*: install another"):
        counters.counted(fake(FakeHandle()), "GH100", plans[1:], launches=2, call=int, empty=int)


def test_calls_that_are_counted_together_leave_out_their_flushes():
    found, functions = [{TIME: float(n)} for n in range(5)], [["a", "b"], ["c"]]
    told = [[(one["function"], one["counters"][TIME]) for one in own] for own in counters.by_call(found, functions)]
    assert told == [[("a", 1), ("b", 2)], [("c", 4)]]
    assert [one["function"] for one in counters.by_call(found[:2], [["a", "b"]])[0]] == ["a", "b"]


@pytest.mark.parametrize(("free", "together"), [(60, [[0, 1, 3], [2]]), (10, [[0], [1], [2], [3]])])
def test_cases_of_the_same_metrics_are_counted_together(tmp_path, monkeypatch, cuda, free, together):
    few, many = (SimpleNamespace(pipe="fp32", flops=n, bytes_read=50, bytes_written=50) for n in (1, 10_000))
    cases = [Case(f"k{n}", "triton", "forward", "8-fp32") for n in range(5)]
    specs = {
        case.kernel: SimpleNamespace(workload=str, cost=lambda *_, cost=cost: cost)
        for case, cost in zip(cases, (few, few, many, few, few), strict=True)
    }
    asked, broken = [], {"k3"}

    def launched(run, look):
        if run == "k4":
            raise NotApplicable("it launches nothing")
        return [run]

    def of_calls(runs, functions, metrics):
        asked.append([int(run[1:]) for run in runs])
        if broken.intersection(runs):
            raise library.CuptiError("2 launches were seen and 3 counted")
        return [{"launches": names} for names in functions]

    monkeypatch.setattr(counters.ncu, "warmed_up", lambda case, spec, settings: case.kernel)
    monkeypatch.setattr(counters, "launched", launched)
    monkeypatch.setattr(counters, "of_calls", of_calls)
    cuda({"mem_get_info": lambda: (free, 100)})
    found = dict(counters.capture_all(cases, specs.__getitem__, tmp_path, {}, lambda case, doing: None))
    alone = [[0], [1], [3]] if len(together) == 2 else []
    assert asked == [*together[:1], *alone, *together[1:]]
    assert {case.kernel: type(error).__name__ for case, error in found.items() if error} == {
        "k3": "CuptiError", "k4": "NotApplicable",
    }  # fmt: skip
    assert [json.loads((tmp_path / f"{case.slug}.json").read_text())["launches"] for case in cases[:3]] == [
        ["k0"], ["k1"], ["k2"],
    ]  # fmt: skip


def artefact(folder, **changed):
    """An artefact made up for the parser: two launches, of which the second lacks a counter."""
    launches = [
        {"function": "softmax_kernel", "counters": {READ: 4096.0, WRITTEN: 2048.0, TIME: 5000.0}},
        {"function": "other_kernel", "counters": {READ: 10.0, TIME: 1000.0}},
    ]
    about = {"chip": "GH100", "capability": "9.0", "cupti": "130001", "passes": 7, "flush_bytes": 1 << 28}
    path = folder / "a.json"
    path.write_text(json.dumps({**about, "launches": launches, **changed}))
    return path


def test_parse_has_rows_of_each_launch(tmp_path):
    table = schema.validate(counters.parse(artefact(tmp_path), SOFTMAX))
    assert set(table["source"]) == {"cupti"}
    found = {(row.metric, row.launch): (row.value, row.function) for row in table.itertuples()}
    assert found == {
        ("gpu_time", 0): (pytest.approx(5e-6), "softmax_kernel"), ("dram_bytes_read", 0): (4096, "softmax_kernel"),
        ("dram_bytes_written", 0): (2048, "softmax_kernel"), ("gpu_time", 1): (pytest.approx(1e-6), "other_kernel"),
        ("dram_bytes_read", 1): (10, "other_kernel"),
    }  # fmt: skip


def test_what_an_h100_counted_becomes_rows():
    """Artefacts of 2026-11-25: H100 80GB HBM3, driver 580.159.04, CUPTI 13.0."""
    case = Case("layer_norm", "triton", "backward", "16384x4096-bf16")
    table = schema.validate(counters.parse(FIXTURES / "cupti_layer_norm_backward_h100.json", case))
    assert table["function"].unique().tolist() == ["layer_norm_backward_kernel", "sum_partials_kernel"]
    first, second = (table[table["launch"] == n].set_index("metric")["value"] for n in (0, 1))
    assert first["dram_bytes_read"] == pytest.approx(2 * 16384 * 4096 * 2, rel=0.01)
    assert first["gpu_time"] == pytest.approx(135.9e-6, rel=1e-3)
    assert first["dram_throughput"] == pytest.approx(0.867, rel=1e-3)
    # What the first launch left in L2 the second found there.
    assert second["dram_bytes_read"] < 0.05 * second["l2_bytes"]
    product = Case("matmul", "triton", "forward", "1023x517x769-fp16")
    found = counters.parse(FIXTURES / "cupti_matmul_fp16_h100.json", product).set_index("metric")["value"]
    assert found["tensor_ops_bf16"] == 0
    assert found["tensor_ops_fp16"] >= 2 * 1023 * 517 * 769
    assert found["dram_bytes_written"] == 0
