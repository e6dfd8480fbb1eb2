"""Launches with too many programs to interpret: figures come from a sample, or from programs that determine all others."""

import pytest
import torch
import triton
import triton.language as tl
from tilescope import Capture
from tilescope.collectors import interpreter
from tilescope.execution import execute, launches
from tilescope.execution.not_applicable import NotApplicable
from tilescope.interpreter import interpret
from tilescope.table.case import Case

PROGRAMS = 1 << 20


@triton.jit
def triangle_kernel(x_ptr, out_ptr, every: tl.constexpr):
    offsets = tl.arange(0, 16)
    total = tl.zeros((16,), tl.float32)
    for _ in range(1 + tl.program_id(0) // every):
        total += tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, total)


@triton.jit
def tiles_kernel(a_ptr, b_ptr, out_ptr, sizes, BLOCK: tl.constexpr):
    rows, columns, depth = sizes
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(depth):
        a = tl.load(a_ptr + i * depth + k, mask=i < rows, other=0.0)
        total += a[:, None] * tl.load(b_ptr + k * columns + j, mask=j < columns, other=0.0)[None, :]
    mask = (i < rows)[:, None] & (j < columns)[None, :]
    tl.store(out_ptr + i[:, None] * columns + j[None, :], total, mask=mask)


@triton.jit
def chained_kernel(next_ptr, x_ptr):
    # Each program finds where to write in what the one before it wrote.
    number = tl.program_id(0)
    place = tl.load(next_ptr + number)
    tl.store(x_ptr + place, 1.0)
    tl.store(next_ptr + number + 1, place)


@triton.jit
def beyond_kernel(x_ptr):
    tl.store(x_ptr + 64 + tl.program_id(0), 1.0)


@triton.jit
def last_beyond_kernel(x_ptr):
    number = tl.program_id(0)
    tl.store(x_ptr + 2 * number + number % 977 + number // (tl.num_programs(0) - 1) * 1048576, 1.0)


@pytest.fixture(autouse=True)
def quick(no_gpu, monkeypatch):
    monkeypatch.setattr(interpreter, "SAMPLE", 0.5)


def metered(kernel, grid, *arguments, seconds=0.0, sample=60.0):
    """A launch and its meter, interpreted without values in so many seconds; then some of its programs."""
    with launches.catch() as caught:
        kernel[grid](*arguments)
    meter = interpret.meter(caught[0])
    interpret.run(caught[0], meter=meter, values=False, allowance=interpret.Allowance(seconds), sample=sample)
    return caught[0], meter


def records(kernel, grid, *arguments):
    """The record of a launch whose programs are all counted, and that of one of which some are."""
    found = (metered(kernel, grid, *arguments, seconds=seconds) for seconds in (float("inf"), 0.0))
    return [meter.record(launch) for launch, meter in found]


def test_allowance_includes_seconds_spent_before():
    with launches.catch() as caught:
        triangle_kernel[(4000,)](torch.randn(16), torch.empty(16), 1)
    meter, allowance = interpret.meter(caught[0]), interpret.Allowance(6000, waited=6000)
    with pytest.raises(interpret.TooLong, match="6000 s") as raised:
        interpret.run(caught[0], meter=meter, values=False, allowance=allowance)
    assert not isinstance(raised.value, interpret.Unending)


@pytest.mark.parametrize("limit", [1.0, 60.0])
def test_work_does_not_depend_on_processors_or_load(limit, processors):
    with launches.catch() as caught:
        triangle_kernel[(4000,)](torch.randn(16), torch.empty(16), 100)
    found = []
    for count in (1, 3):
        processors(count)
        allowance, meter = interpret.Allowance(limit), interpret.meter(caught[0])
        interpret.run(caught[0], meter=meter, values=False, allowance=allowance, sample=0.5)
        found.append((meter.sampled, meter.by_rule, meter.counts))
        assert allowance.waited > 0
    assert found[0] == found[1]
    assert (found[0][0] is not None) == (limit == 1)


def test_sample_of_slow_programs_gets_the_time_left():
    """The rule fails at once, as addresses depend on integers."""
    packed, where, out = (
        torch.zeros(640, dtype=torch.int32), torch.arange(40).int(), torch.zeros(640, dtype=torch.int32),
    )  # fmt: skip
    whole = interpret.Allowance()
    with launches.catch() as caught:
        unpacked_kernel[(40,)](packed, where, out, True)
    interpret.run(caught[0], meter=interpret.meter(caught[0]), values=False, allowance=whole)
    _, meter = metered(unpacked_kernel, (40,), packed, where, out, True, sample=interpret.FEWEST * whole.waited / 40)
    assert meter.sampled == (interpret.FEWEST, 40)


def collected(kernel, arguments, tmp_path, lines=False):
    """What the interpreter's collector finds of a launch in far less time than it needs, and its remark."""
    with Capture("sm_90", limit=0) as capture:
        kernel[(PROGRAMS,)](*arguments)
    (reference,) = capture.write(tmp_path)
    spec = execute.load_spec(reference)
    case = Case(reference, "triton", "forward", spec.workloads[0].id)
    artefact = tmp_path / "counted.json.gz"
    interpreter.capture(case, spec, artefact, {"interpreter_limit": 1})
    assert interpreter.parse_lines(artefact, case)[0].empty != lines
    found = interpreter.parse(artefact, case).set_index("metric")["value"].to_dict()
    return found, interpreter.remark(artefact)


def test_sample_is_scaled_and_marked(tmp_path):
    every = 300_001
    found, said = collected(triangle_kernel, (torch.randn(16), torch.empty(16), every), tmp_path)
    # So many programs each read once, twice and three times, and the rest four times: the spread finds the mean.
    reads = every * (1 + 2 + 3) + (PROGRAMS - 3 * every) * 4
    assert found["sampled_bytes_read"] == pytest.approx(64 * reads, rel=0.15)
    assert found["sampled_bytes_written"] == 64 * PROGRAMS
    assert found["programs"] == PROGRAMS
    assert set(found) == {
        *(f"sampled_{what}" for what in ("bytes_read", "bytes_written", "flops", "programs")),
        "programs",
    }
    assert "of 1,048,576 programs, spread evenly, were interpreted" in said


@pytest.mark.parametrize(("rows", "columns", "depth"), [(37, 53, 5), (32, 64, 3)])
def test_rule_gives_counts_of_all_programs(rows, columns, depth):
    a, b, out = torch.randn(rows, depth), torch.randn(depth, columns), torch.empty(rows, columns)
    grid = triton.cdiv(rows, 8), triton.cdiv(columns, 8)
    whole, followed = records(tiles_kernel, grid, a, b, out, (rows, columns, depth), 8)
    counted, programs = followed.pop("programs_by_rule"), followed.pop("programs")
    assert programs == triton.cdiv(rows, 8) * triton.cdiv(columns, 8) and counted <= programs
    assert whole["unique_bytes_read"] == a.nbytes + b.nbytes and whole["unique_bytes_written"] == out.nbytes
    # Sectors depend on where a tile begins.
    for name in whole.keys() - {"lines", "sector_efficiency_read", "sector_efficiency_written"}:
        assert followed[name] == whole[name], name
    assert followed["sector_efficiency_read"] in (whole["sector_efficiency_read"], None)
    assert followed["lines"].keys() == whole["lines"].keys()


@triton.jit
def grouped_kernel(x_ptr, table_ptr, out_ptr, sizes, GROUP: tl.constexpr):
    columns, period = sizes
    # Row after row of a period, and within it columns of tiles of a group of rows, as products have them.
    number = tl.program_id(0)
    place, member, column = number // period, number % GROUP, (number % period) // GROUP
    rows = period * GROUP // columns
    offsets = tl.arange(0, 8) + 8 * (number % period)
    tile = tl.arange(0, 8) + 8 * (column + member * columns + place * rows)
    tl.store(out_ptr + tile, tl.load(x_ptr + tile) + tl.load(table_ptr + offsets))


@pytest.mark.parametrize(("programs", "period", "columns"), [(96, 24, 6), (90, 12, 3)])
def test_rule_of_rows_gives_counts_of_all_programs(programs, period, columns):
    x, table, out = torch.randn(4096), torch.randn(8 * period), torch.empty(4096)
    whole, followed = records(grouped_kernel, (programs,), x, table, out, (columns, period), 4)
    if programs % period:
        assert followed["sampled_programs"] == programs
        return
    assert followed["programs_by_rule"] < programs
    for name in ("unique_bytes_read", "unique_bytes_written", "requested_bytes_read", "requested_bytes_written"):
        assert followed[name] == whole[name], name


@triton.jit
def odd_one_kernel(x_ptr, out_ptr, odd):
    number = tl.program_id(0)
    offsets = tl.arange(0, 16) + tl.where(number == odd, 0, number) * 16
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))


@triton.jit
def unpacked_kernel(packed_ptr, where_ptr, out_ptr, FOLLOWS: tl.constexpr):
    number = tl.program_id(0)
    packed = tl.load(packed_ptr + number * 16 + tl.arange(0, 16))
    place = tl.load(where_ptr + number)
    tl.store(out_ptr + (place if FOLLOWS else number) * 16 + tl.arange(0, 16), (packed >> 4) & place)


@pytest.mark.parametrize("follows", [False, True])
def test_rule_fails_where_addresses_depend_on_integers(follows):
    packed, where, out = (torch.zeros(size, dtype=torch.int32) for size in (640, 40, 640))
    # As regular as can be: what matters is that it need not be.
    where.copy_(torch.arange(40))
    _, meter = metered(unpacked_kernel, (40,), packed, where, out, follows)
    assert (meter.by_rule is None) == follows
    assert follows or (meter.read.bytes, meter.written.bytes) == (packed.nbytes + where.nbytes, out.nbytes)


@pytest.mark.parametrize("odd", [1, 8, 9])
def test_rule_fails_for_an_irregular_program(odd):
    x, out = torch.randn(160), torch.empty(160)
    _, meter = metered(odd_one_kernel, (10,), x, out, odd)
    # The last one stands by itself.
    assert (meter.by_rule is None) == (odd != 9)
    if odd == 9:
        assert meter.read.bytes == 9 * 64
    else:
        assert meter.sampled == (10, 10)


def test_rule_of_different_quarters_is_by_quarter(tmp_path):
    found, said = collected(triangle_kernel, (torch.randn(16), torch.empty(16), PROGRAMS // 4), tmp_path, lines=True)
    assert (found["requested_bytes_read"], found["unique_bytes_read"]) == (2.5 * 64 * PROGRAMS, 64)
    assert "of which each touches" in said


def test_sample_and_errors(tmp_path):
    following = torch.full((PROGRAMS + 1,), 1 << 40)
    following[0] = 5
    with pytest.raises(NotApplicable, match="would take longer to interpret"):
        collected(chained_kernel, (following, torch.zeros(16)), tmp_path)
    with pytest.raises(interpret.InterpretationFailed, match="the end of x_ptr"):
        collected(beyond_kernel, (torch.zeros(70),), tmp_path)
    with pytest.raises(interpret.InterpretationFailed, match="the end of x_ptr"):
        collected(last_beyond_kernel, (torch.zeros(3 * PROGRAMS - 1),), tmp_path)


@pytest.mark.parametrize("count", [1, 6, 97])
def test_sample_is_spread_evenly(count):
    numbers = list(interpret.spread(count))
    assert sorted(numbers) == list(range(count))
    # No gap between the first few is much wider than if they were placed evenly.
    first = sorted(numbers[: max(1, count // 4)])
    gaps = [after - before for before, after in zip(first, [*first[1:], first[0] + count], strict=True)]
    assert max(gaps) <= 3 * count / len(first) + 1
