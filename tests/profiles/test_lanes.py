"""Lanes: records in compiled code, the buffer that they fill, and what the trace says. Recordings are of an H200."""

import dataclasses
import json
import re
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from tilescope.collectors import compiler
from tilescope.collectors.lanes import buffer, collector, lowering, recording, records, sampling, trace
from tilescope.execution import execute, offline
from tilescope.execution.not_applicable import NotApplicable
from tilescope.hardware import device
from tilescope.models import lanes as model
from tilescope.table.case import Case
from triton.backends.nvidia import driver
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime import _allocation

REFUSED = collector.unserved(metadata.version("triton"))
RECORDS = pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures" / "lanes"
CASE = Case("small_matmul", "triton", "forward", "1024x1024x1024-fp16")
#: A plain kernel, one with a reduction, and one of Gluon with partitions, TMA and barriers.
KERNELS = {
    "plain": (f"{HERE / 'small_kernels.py'}:MATMUL", "512x512x512-fp16"),
    "reduction": ("softmax", "medium"),
    "partitions": ("matmul", "large"),
    "branches": (f"{HERE / 'lane_faults.py'}:ODD", "one"),
    "descriptors": (f"{HERE / 'lane_faults.py'}:DESCRIBED", "one"),
}


@pytest.fixture(scope="module", params=KERNELS, name="compiled")
def _compiled(request):
    """A kernel compiled with records for an H200: its name in ``KERNELS``, what was recorded, and the compiled kernel."""
    if REFUSED:
        pytest.skip(REFUSED)
    ref, workload = KERNELS[request.param]
    spec = execute.load_spec(ref)
    (launch,), _ = compiler.launches_of(Case(spec.name, "triton", "forward", workload), spec, "sm_90")
    if request.param == "partitions" and not isinstance(launch.function, GluonJITFunction):
        pytest.skip("the library has no kernels in Gluon for this Triton")
    with offline.targeting("sm_90"), recording.recording(records.KINDS) as made:
        kernel = offline.ask_compiler(launch)
    (found,) = made.compiled.values()
    return request.param, found, kernel


@pytest.fixture(scope="module", name="spans")
def _spans():
    return {name: trace.spans(trace.load(FIXTURES / f"{name}.trace.json.gz")) for name in ("product", "hopper")}


def test_records_are_balanced_and_name_their_line(compiled):
    name, found, kernel = compiled
    marks = [int(number) for number in re.findall(r"// tilescope (\d+)", found.text)]
    assert sorted(marks) == list(range(2 * len(found.scopes)))
    # A program with several returns has no scope of its own.
    assert (records.PROGRAM in found.scopes) == (name != "branches")
    assert ("partition0" in found.scopes) == (name == "partitions")
    assert all(one.line > 0 and f"line {one.line}" in one.scope for one in recording.operations([found]))
    assert kernel.metadata.profile_scratch_size > 0
    # Each read of the clock is of the records of one moment.
    assert "// tilescope" not in kernel.asm["ptx"]
    assert 0 < len(re.findall(r"%tsc\d+, %clock", kernel.asm["ptx"])) < len(marks)


@pytest.mark.parametrize("compiled", ["plain", "partitions", "descriptors"], indirect=True)
def test_a_wait_names_what_it_waits_for(compiled):
    name, found, _ = compiled
    operations = recording.operations([found])
    waits = {one.name: {what for what, _ in one.awaits} for one in operations if one.kind == records.WAIT}
    if name == "plain":
        assert waits == {"wait for copies": {"asynchronous copy"}, "wait for products": {"product"}}
    elif name == "descriptors":
        assert waits == {
            "wait on barrier": {"TMA load"}, "wait for products": {"product"}, "wait for stores": {"TMA store"},
        }  # fmt: skip
    else:
        assert waits["wait for stores"] == {"TMA store"}
        tiles = [one for one in operations if ("TMA load") in {what for what, _ in one.awaits}]
        places = [one for one in operations if "arrive at barrier" in {what for what, _ in one.awaits}]
        # Consumers wait for the loads of the producer's partition, and the producer for their arrivals.
        assert {one.partition for one in tiles} == {"", "partition0"}
        assert "partition1" in {one.partition for one in places}
        assert {one.barrier for one in tiles}.isdisjoint({one.barrier for one in places})


def test_fewer_kinds_leave_the_others_unrecorded(compiled):
    _, found, _ = compiled
    operations = recording.operations([found])
    plain = "\n".join(line for line in found.text.splitlines() if "// tilescope" not in line)
    again = records.insert(plain, records.LEVELS[-1])
    fewer = recording.operations([again])
    # What a wait waits for is known without its record.
    awaited = [one.awaits for one in operations if one.kind == records.WAIT]
    assert [one.awaits for one in fewer if one.kind == records.WAIT] == awaited
    assert {one.kind for one in fewer} <= records.LEVELS[-1]
    assert (found.without, again.without) == ([], sorted({one.kind for one in operations} - records.LEVELS[-1]))
    whole = [one.scope for one in operations if one.kind in records.LEVELS[-1]]
    assert [one.scope for one in fewer] == whole


def test_a_function_that_is_not_inlined_is_refused():
    with pytest.raises(NotApplicable, match="take noinline off"):
        records.insert("tt.func public @a() {\n}\n tt.func private @b() {\n}")


def _recorded():
    """A recorded program's part of the buffer, and the stretches of its kernel."""
    kept = np.load(FIXTURES / "program.npz")
    words, stretches = kept["words"].copy(), json.loads(str(kept["stretches"]))
    # It was recorded before programs wrote the clock of their start and end: those of the first and the last record.
    warps = buffer.program(words, 8, stretches).warps
    words[6] = min(own[0, 2] for own in warps)
    words[lowering.HEAD + 1 : lowering.first(8) : lowering.WARP] = [own[-1, 2] for own in warps]
    return words, stretches


def test_recorded_buffer_is_decoded():
    program = buffer.program(words := _recorded()[0], 8, _recorded()[1])
    assert (program.number, program.sm, program.lost, program.cycles) == (3, 127, [0] * 8, 26462)
    spans = buffer.spans(program.warps[3])
    assert len(spans) == 171
    assert spans[0][0] == 0 and all(spans[0][1] <= start <= end <= spans[0][2] for _, start, end in spans)
    assert buffer.times(words[None, : lowering.first(8)]).rate == pytest.approx(1.64, abs=0.01)
    with pytest.raises(buffer.Damaged):
        buffer.program(np.zeros_like(words), 8, [])


def _launched(programs):
    """A launch whose programs all wrote what the recorded one did, each 20 us and 32,880 cycles after the one before, on two SMs in turn."""
    words, stretches = _recorded()
    room, clocks = int(words[3]) // 4, [6, *range(lowering.HEAD + 1, lowering.first(8), lowering.WARP)]
    for warp, count in enumerate(buffer.counts(words[None, : lowering.first(8)])[0]):
        at = begin = lowering.first(8) + warp * room // 8
        while at < begin + count:
            clocks += range(at + 1, at + 1 + len(stretches[words[at]]))
            at += lowering.words_of(stretches[words[at]])
    parts = []
    for number in range(programs):
        own = words.copy()
        own[1:3] = number, number % 2
        own[[4, *range(lowering.HEAD + 2, lowering.first(8), lowering.WARP)]] += np.uint32(number * 20_000)
        own[clocks] += np.uint32(number * 32_880)
        parts.append(own)
    scopes = [records.PROGRAM] + [records.Operation("load, line 3", records.ACCESS, "load", 3)] * 15
    tensor = torch.from_numpy(np.concatenate(parts).view(np.uint8))
    return recording.Launched("mm_kernel", "mm.py", (programs, 1, 1), 8, scopes, stretches, words.nbytes, tensor)


class OneCall:
    """A call of softmax on a GPU of which only the memory is there: programs write ``words`` words of records a warp."""

    def __init__(self, programs, words, slowdowns=(1.1,), kernel="reduction"):
        ref, workload = KERNELS[kernel]
        self.function = {"reduction": "softmax_rows_kernel", "plain": "mm_kernel"}[kernel]
        spec = execute.load_spec(ref)
        (self.launch,), _ = compiler.launches_of(Case(spec.name, "triton", "forward", workload), spec, "sm_90")
        self.programs, self.words, self.slowdowns = programs, words, [1.0, *slowdowns]
        self.sizes = []

    def __call__(self):
        with mock.patch.object(torch, "empty", lambda size, **_: torch.zeros(size, dtype=torch.uint8)):
            driver.CudaLauncher(None, offline.ask_compiler(self.launch).metadata)(self.programs, 1, 1, 0, 0)

    def timed(self, _call):
        return {self.function: [self.slowdowns.pop(0) * 1e-5]}

    def flush(self):
        """The memory that is there has no L2."""

    def clock(self):
        return 1.5e9

    def recorded(self):
        def created(launcher, _source, metadata):
            launcher.warps, launcher.profile_scratch_size = metadata.num_warps, metadata.profile_scratch_size

        def launched(launcher, x, *_):
            self.sizes.append(size := launcher.profile_scratch_size)
            own = _allocation._profile_allocator.get()(x * size, 128, 0).view(-1, size).numpy().view(np.uint32)
            own[:, 0], own[:, 3] = lowering.MARK, launcher.warps << int(np.log2(size / launcher.warps))
            own[:, 1] = np.arange(x)
            own[:, 2] = np.arange(x) % 132
            own[:, lowering.HEAD : lowering.first(launcher.warps) : lowering.WARP] = self.words
            own[:, 6] = own[:, lowering.HEAD + 1] = np.arange(x) * 2
            own[:, lowering.HEAD + 2] = np.arange(x)

        with (
            mock.patch.object(driver.CudaLauncher, "__init__", created),
            mock.patch.object(driver.CudaLauncher, "__call__", launched),
            mock.patch.object(torch.cuda, "synchronize"),
            offline.targeting("sm_90"),
        ):
            return collector.recorded(self, "softmax", self)["tilescope"]["launches"][0]


@RECORDS
def test_lost_records_get_more_room():
    call = OneCall(programs=3, words=6000)
    told = call.recorded()
    assert (told["plain"], told["recorded"], told["lost"]) == (1e-5, pytest.approx(1.1e-5), 0)
    # 4,096 words a warp do not hold them, 8,192 do.
    assert [size >> 14 for size in call.sizes] == [1, 2, 2]


@RECORDS
def test_records_of_many_programs_get_less_room():
    call = OneCall(programs=75_000, words=30)
    told = call.recorded()
    assert told["lost"] == 0 and len(told["programs"]) == 8
    # The launch that is kept has twice the room that its records need, 128 bytes a warp.
    assert call.sizes[-1] == 256 + 48
    assert call.sizes[0] * 75_000 > 9 << 27 > call.sizes[-1] * 75_000


@RECORDS
def test_a_call_without_a_triton_kernel_does_not_apply():
    with (
        pytest.raises(NotApplicable, match="eager launches no Triton kernel"),
        mock.patch.object(torch.cuda, "synchronize"),
    ):
        collector.recorded(lambda: None, "eager", mock.Mock(timed=lambda _: {}))


@RECORDS
def test_a_kernel_that_records_slow_down_gets_fewer_then_none():
    # The kernel has nothing that the second level leaves out.
    told = OneCall(3, 10, slowdowns=(1.3, 1.1), kernel="plain").recorded()
    assert (told["kinds"], told["without"]) == (sorted(records.LEVELS[2]), ["copy"])
    assert OneCall(3, 10, slowdowns=(2.5, 1.4, 1.2), kernel="plain").recorded()["kinds"] == sorted(records.LEVELS[3])
    # One without waits and products keeps its accesses.
    assert OneCall(3, 10, slowdowns=(1.3, 1.9)).recorded()["kinds"] == sorted(records.LEVELS[1])
    for kernel, slowdowns in (("plain", (4, 3, 2.1)), ("reduction", (3, 2.1))):
        with pytest.raises(
            NotApplicable, match=r"slow softmax down 2\.1×, .* profile a problem whose programs do more"
        ):
            OneCall(3, 10, slowdowns, kernel).recorded()


def test_sampled_programs_are_spread_over_the_launch():
    found = sampling.trace([_launched(32)], {"mm_kernel": [1e-5] * 3}, {"mm_kernel": [1.5e-5] * 3}, ["access"])
    told = found["tilescope"]["launches"][0]
    assert told["programs"] == [0, 4, 9, 13, 18, 22, 27, 31]
    assert (told["plain"], told["recorded"], told["lost"], told["resident"]) == (1e-5, 1.5e-5, 0, 1)
    assert told["spent"] == pytest.approx([16.096e-6] * 8, rel=1e-4)
    # Each SM ran from its first program's start to its last one's end.
    assert told["longest"] == pytest.approx(616.096e-6, rel=1e-4)
    # One of the two SMs ends 20 us before the other, 31 * 20 + 16.096 us after the first program began.
    assert told["tail"] == pytest.approx(10 / 636.1, rel=0.01)
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 8 * 8 * 171
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(31 * 20 + 16.1, rel=0.01)
    assert {event["name"] for event in spans} == {"program", "load, line 3"}


@pytest.mark.parametrize(
    ("left", "without", "said"),
    [
        (0, [], ""),
        (3, [], "lanes: the call's first 1 launches have them, 3 do not: memory is full"),
        (0, ["copy", "reduction"], "lanes: no records of copy, reduction, which slow the kernel down too much"),
    ],
)
def test_what_has_no_lanes_or_records_is_remarked(tmp_path, left, without, said):
    artefact = tmp_path / f"{CASE.slug}{collector.SUFFIX}"
    launched = dataclasses.replace(_launched(2), without=without)
    artefact.write_text(json.dumps(sampling.trace([launched], {}, {}, [], left_out=left)))
    assert collector.remark(artefact).startswith(said) and bool(collector.remark(artefact)) == bool(said)


def test_a_long_launch_keeps_its_first_records():
    launched = _launched(1)
    whole = len(sampling.trace([launched], {}, {}, [])["traceEvents"])
    kept = [e for e in sampling.trace([launched], {}, {}, [], most=200)["traceEvents"] if e["ph"] == "X"]
    assert len(kept) == pytest.approx(200, abs=8) and len(kept) < whole
    programs = [event for event in kept if event["name"] == "program"]
    assert len(programs) == 8
    assert max(e["ts"] + e["dur"] for e in programs) == pytest.approx(max(e["ts"] for e in kept), abs=0.001)


@pytest.mark.parametrize("name", ["product", "hopper"])
def test_a_lane_has_no_gap_without_a_name(spans, name):
    found = spans[name]
    for _, lane in found.groupby(["program", "warp"]):
        assert lane["start"].to_numpy()[1:] == pytest.approx(lane["end"].to_numpy()[:-1], abs=1e-12)
    assert (found["name"] != "").all()
    assert set(found["kind"]) <= set(trace.KINDS)


def test_arrows_lead_from_the_copying_warp_to_the_waiting_ones(spans):
    found = model.arrows(model.program(spans["hopper"], 0, 6))
    ready = found[found["barrier"] == "%ready"]
    assert set(ready["from_warp"]) == {10}
    assert set(ready["to_warp"]) <= set(range(8))
    assert (found["from_time"] <= found["to_time"]).all()
    assert set(found.loc[found["barrier"] == "%free", "to_warp"]) <= {10}


def test_rows_and_lines_are_of_the_schema():
    artefact = FIXTURES / "product.trace.json.gz"
    rows = collector.parse(artefact, CASE)
    assert {"lanes_slowdown", "lane_wait_share", "lane_product_share"} <= set(rows["metric"])
    assert set(rows["source"]) == {"lanes"}
    assert rows.set_index("metric")["value"]["lane_tile_wait_line"] == 34
    lines, _ = collector.parse_lines(artefact, CASE)
    assert {34, 37} <= set(lines["line"])
    waits = lines.pivot_table(index="line", columns="metric", values="value")
    assert (waits["lane_wait"] <= waits["lane_time"]).all()


@pytest.mark.gpu
@pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))
@pytest.mark.parametrize("name", sorted(KERNELS.keys() - {"branches"}))
def test_lanes_on_a_gpu(name, tmp_path):
    ref, workload = KERNELS[name]
    spec = execute.load_spec(ref)
    case = Case(spec.name, "triton", "forward", workload)
    artefact = tmp_path / f"{case.slug}{collector.SUFFIX}"
    collector.capture(case, spec, artefact, {})
    data = trace.load(artefact)
    told = data.launches[0]
    assert told["lost"] == 0
    assert 0.9 < told["recorded"] / told["plain"] <= collector.SLOWDOWN
    spans = trace.spans(data)
    assert spans["program"].nunique() == len(told["programs"])
    for number, spent in zip(told["programs"], told["spent"], strict=True):
        own = model.program(spans, 0, number)
        assert own["end"].max() == pytest.approx(spent, rel=0.1)
        for _, lane in own.groupby("warp"):
            assert lane["start"].to_numpy()[1:] == pytest.approx(lane["end"].to_numpy()[:-1], abs=1e-10)
    assert set(collector.parse(artefact, case)["metric"]) >= {"lane_wait_share"}
