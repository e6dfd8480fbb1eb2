"""Faults of a kernel's code: each is found with its line, and correct kernels that look alike stay silent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.language as tl
from tilescope import Capture, cli
from tilescope.collectors import code_values, fault_rules
from tilescope.execution import launches, offline
from tilescope.interpreter import interpret
from tilescope.interpreter.blocks import NeedsValues
from tilescope.table import kernel_faults
from triton.runtime.jit import KernelInterface

from tests.kernels.releases import NEWEST

from . import faulty_launches as faulty
from . import foreign_launches as foreign

pytestmark = pytest.mark.usefixtures("no_gpu")


def line_of(marked: str, kernel: Any) -> int:
    """The line of the kernel with the comment."""
    lines = kernel.src.splitlines()
    return kernel.starting_line_number + 1 + next(n for n, text in enumerate(lines) if f"# {marked}" in text)


def told(launch: Callable[[], object], *, wrong: bool = True, not_finite: bool = False) -> list[str]:
    """The faults of the launches."""
    with Capture("sm_90", not_finite=not_finite) as capture:
        launch()
    assert not capture.notes
    return list(kernel_faults.of_launches((record.data["counted"] for record in capture.records), wrong=wrong))


def cells(count: int, value: float = 0.0, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((count,), value, device="cuda", dtype=kind)


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(shape, device="cuda")


RACES = {
    "a load and a store": (lambda: faulty.total_kernel[(8,)](numbers(8192), cells(1), 8192, BLOCK=1024), "8 programs", "4 bytes of out_ptr"),
    "stores": (lambda: faulty.column_sums_kernel[(8,)](numbers(512, 128), cells(128), 512, 128, 64, 128), "8 programs", "512 bytes of out_ptr"),
    "stores that are equal by chance": (
        lambda: faulty.column_sums_kernel[(8,)](cells(512 * 128, 1.0), cells(128), 512, 128, 64, 128), "8 programs", "512 bytes of out_ptr",
    ),
    "a store to what another read": (lambda: faulty.shifted_in_place_kernel[(4,)](numbers(256), 256, 64), "4 programs", "12 bytes of x_ptr"),
    "an atomic beside a store": (lambda: faulty.zeroed_by_one_kernel[(4,)](numbers(256), cells(1), 64), "atomics", "4 bytes of out_ptr"),
    "sums of programs that may not have run": (
        lambda: faulty.shares_kernel[(8,)](numbers(1024), cells(8), cells(1024), 8, 128), "8 programs", "32 bytes of part_ptr",
    ),
    "a store after many loads": (lambda: faulty.last_clears_kernel[(8,)](cells(1, 1.0), cells(8)), "at least 2 programs", "4 bytes of x_ptr"),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_race_names_line_bytes_and_programs(name):
    launch, who, what = RACES[name]
    (said,) = told(launch)
    kernel = getattr(faulty, said.partition(",")[0])
    assert f"line {line_of('a race', kernel)}: " in said and who in said and what in said


PLACES = [*range(100), *range(28)]


def scattered(*, equal: bool) -> None:
    at = torch.tensor(PLACES, device="cuda", dtype=torch.int32)
    faulty.scattered_kernel[(1,)](numbers(128), at, cells(100), EQUAL=equal, BLOCK=128)


def counted(places: list[int]) -> None:
    at = torch.tensor(places, device="cuda", dtype=torch.int32)
    faulty.histogram_kernel[(1,)](at, cells(100), len(places), BLOCK=128)


@pytest.mark.parametrize(("launch", "what"), [
    (lambda: scattered(equal=False), "store different values to the same 112 bytes of out_ptr"),
    (lambda: counted(PLACES), "update the same 112 bytes of out_ptr"),
])  # fmt: skip
def test_lanes_of_one_store_that_share_addresses_are_a_fault(launch, what):
    (said,) = told(launch)
    kernel = getattr(faulty, said.partition(",")[0])
    assert f"line {line_of('a store of lanes', kernel)}: lanes of one store, in 1 program, {what}" in said


def test_violated_assert_statement_names_line_and_condition():
    said, wordless = told(
        lambda: faulty.asserted_kernel[(4,)](
            numbers(100) + 2 * (torch.arange(100, device="cuda") == 70), cells(100), 100, 32
        )
    )
    assert (
        f"line {line_of('an assertion', faulty.asserted_kernel)}: the assertion 'x < 1.5' does not hold in 1 of" in said
    )
    assert ": an assertion does not hold in 1 of" in wordless


def test_assertion_on_loaded_values_needs_them():
    def run(launch: launches.Launch) -> None:
        interpret.run(launch, meter=interpret.meter(launch), values=False)

    with launches.catch(run), pytest.raises(NeedsValues):
        faulty.asserted_kernel[(4,)](torch.zeros(100), torch.zeros(100), 100, 32)


def copied(out: torch.Tensor, programs: int, n: int = 1000) -> torch.Tensor:
    """Copies up to ``n`` numbers in blocks of 128."""
    faulty.copied_kernel[(programs,)](numbers(n), out, n, BLOCK=128)
    return out


def fresh(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="cuda")


def padded() -> torch.Tensor:
    """Partial sums in two blocks, of which the launches store the first 4 rows of 16."""
    blocks = fresh(2, 16, 125)
    for block in blocks:
        copied(block.view(-1), 4, 500)
    return blocks


HOLES = {
    "a short grid": (lambda: copied(fresh(1000), 7), "no program stores 416 bytes of out_ptr, which torch.empty leaves to chance: "),
    "a hole that is read": (lambda: torch.sum(copied(fresh(1000), 3)), "no program stores 2,464 bytes of out_ptr, which torch.empty leaves to chance, and sum reads it"),
    "a sum of holes that is read": (lambda: padded().sum(0).clone(), "no program stores 12,000 bytes of out_ptr, which torch.empty leaves to chance, and sum reads it"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOLES)
def test_output_with_a_hole_is_a_warning(name):
    launch, what = HOLES[name]
    (said,) = told(launch, wrong=False)
    assert what in said and kernel_faults.read(said) is not None


def halves() -> torch.Tensor:
    out = fresh(2000)
    copied(out[:1000], 8)
    copied(out[1000:], 8)
    return out.sum()


ORIGINS = {
    "a quotient": (lambda: faulty.mean_kernel[(4,)](numbers(4, 16) - 0.5, cells(4), cells(4), 16), "program (0, 0, 0) makes the first NaN that it stores, 0 / 0"),
    "a function": (lambda: faulty.exponential_kernel[(1,)](cells(16, 100.0), cells(16), 16), "makes the first infinity that it stores, exp(100)"),
    "a load": (lambda: faulty.exponential_kernel[(1,)](cells(16, float("nan")), cells(16), 16), "makes the first NaN that it stores, which memory holds"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORIGINS)
def test_first_nan_names_line_program_and_operands(name):
    launch, what = ORIGINS[name]
    (said,) = told(launch, wrong=False, not_finite=True)
    assert what in said and f"line {line_of('not finite', getattr(faulty, said.partition(',')[0]))}" in said
    assert told(launch, wrong=False) == []


def test_infinity_that_is_not_stored_is_no_origin():
    assert (
        told(
            lambda: faulty.guarded_mean_kernel[(4,)](numbers(4, 16), cells(4), cells(4), 16),
            not_finite=True,
            wrong=False,
        )
        == []
    )


def compiled(launch: Callable[[], object], *, wrong: bool) -> list[str]:
    """The faults that the compiler's text shows of a launch with tensors that have no data."""
    with launches.catch() as caught:
        launch()
    with offline.targeting("sm_90"):
        text = offline.compile_launch(caught[0]).asm["ttir"]
    subject = fault_rules.Subject(caught[0], code=code_values.Code.of_launch(caught[0], text))
    record = {"function": caught[0].name, **fault_rules.of_subject(subject)}
    return list(kernel_faults.of_launches([record], wrong=wrong))


def shaped(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=kind)


LARGE = shaped(70_000, 32_768, kind=torch.int8)
WRAPS = {
    "rows": (
        lambda: faulty.narrow_rows_kernel[(70_000,)](LARGE, torch.empty_like(LARGE), 32_768, 32_000, BLOCK=32_768),
        "offsets into x_ptr and y_ptr are computed in 32 bits and reach 2,293,727,232, more than 2,147,483,647, from "
        "program_id(0) = 65,536 on",
    ),
    "a loop with a condition": (lambda: faulty.narrow_while_kernel[(132,)](LARGE, 70_000, 32_768, 128), "from the first program on"),
    "a loop": (lambda: faulty.narrow_loop_kernel[(132,)](LARGE, 70_000, 32_768, 128), "from the first program on"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPS)
def test_wrapping_offset_names_line_and_first_program(name):
    launch, what = WRAPS[name]
    (said,) = compiled(launch, wrong=True)
    kernel = getattr(faulty, said.partition(",")[0])
    assert f"line {line_of('a wrap', kernel)}: " in said and what in said


def rearranged(way: str, *, other: bool = False) -> Callable[[], object]:
    return lambda: faulty.rearranged_kernel[(1,)](shaped(96), shaped(128), 96, way, other, BLOCK=128)


def bounded(way: str) -> Callable[[], object]:
    return lambda: faulty.bounded_product_kernel[(1,)](*(shaped(32, 32) for _ in range(3)), 20, way, 32)


DOUBTFUL = {
    **{way: (rearranged(way), "without other") for way in ("sort", "topk", "histogram", "interleave", "columns", "atomic")},
    **{f"a {way} of a block pointer": (bounded(way), "without other") for way in ("max", "sum of more") if not NEWEST},
    "a reduction": (lambda: faulty.row_max_kernel[(64,)](shaped(64, 1000), shaped(64), 1000, BLOCK=1024), "without other"),
    "a loop": (lambda: faulty.added_up_kernel[(1,)](shaped(1000), shaped(1), 1000, BLOCK=256), "without other"),
    "a sum of a scan": (lambda: faulty.scanned_kernel[(1,)](shaped(1000), shaped(1), 1000, BLOCK=1024), "without other"),
    "a part of a block": (lambda: faulty.row_sums_kernel[(1,)](shaped(20, 100), shaped(20), 20, 100, BLOCK=32), "without other"),
    "zeros in other lanes": (lambda: faulty.tail_product_kernel[(1,)](shaped(32, 32), shaped(32, 32), 20, "columns", 32), "without other"),
    "a product": (lambda: faulty.product_kernel[(1,)](shaped(32, 32), shaped(32, 32), shaped(32, 32), "default", 32), "as TF32"),
    "a product with one operand of half precision": (
        lambda: faulty.product_kernel[(1,)](shaped(32, 32, kind=torch.float16), shaped(32, 32), shaped(32, 32), "default", 32), "as TF32",
    ),
    "a product in a helper": (lambda: faulty.product_in_helper_kernel[(1,)](shaped(32, 32), shaped(32, 32), shaped(32, 32), 32), "as TF32"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTFUL)
def test_doubtful_code_is_a_warning_with_its_line(name):
    launch, marked = DOUBTFUL[name]
    (said,) = compiled(launch, wrong=False)
    kernel = faulty.multiplied if "helper" in name else getattr(faulty, said.partition(",")[0])
    assert f"line {line_of(marked, kernel)}: " in said and kernel_faults.read(said) is not None


SILENT_CODE = {
    "a loop with a condition": lambda: faulty.narrow_while_kernel[(132,)](LARGE, 65_536, 32_768, 128),
    "a cast factor": lambda: faulty.wide_rows_kernel[(70_000,)](LARGE, torch.empty_like(LARGE), 32_768, 32_000, BLOCK=32_768),
    "few programs": lambda: faulty.narrow_rows_kernel[(65_536,)](LARGE, torch.empty_like(LARGE), 32_768, 32_000, BLOCK=32_768),
    "a small tensor": lambda: faulty.narrow_rows_kernel[(70_000,)](shaped(9), shaped(9), 32_768, 32_000, BLOCK=32_768),
    "a moving pointer": lambda: faulty.walking_kernel[(4,)](LARGE, 17_500, 32_768, BLOCK=128),
    "grouped tiles": lambda: faulty.grouped_tiles_kernel[(547 * 256,)](LARGE, 70_000, 32_768, 8, 128, 128),
    **{f"{way} of all lanes": rearranged(way, other=True) for way in ("sort", "topk")},
    **{way: rearranged(way) for way in ("rows", "flip", "masked atomic")},
    **{f"a {way} of a block pointer": bounded(way) for way in ("product", "sum", "scan") if not NEWEST},
    "whole rows": lambda: faulty.row_max_kernel[(64,)](shaped(64, 1024), shaped(64), 1024, BLOCK=1024),
    "a value in place of lanes": lambda: faulty.replaced_kernel[(64,)](shaped(64, 1000), shaped(64), 1000, BLOCK=1024),
    "a product with zeros": lambda: faulty.tail_product_kernel[(1,)](shaped(32, 32), shaped(32, 32), 20, "rows", 32),
    "a product with selected zeros": lambda: faulty.tail_product_kernel[(1,)](
        shaped(32, 32), shaped(32, 32), 20, "selected rows", 32
    ),
    "whole blocks of some rows": lambda: faulty.row_sums_kernel[(1,)](shaped(20, 128), shaped(20), 20, 128, BLOCK=32),
    "a weight of zero": lambda: faulty.weighted_sum_kernel[(1,)](shaped(1000), shaped(1000), shaped(1), 1000, BLOCK=1024),
    "unused columns": lambda: faulty.masked_columns_kernel[(1,)](shaped(16, 100), shaped(100), 100, 16, 128),
    "a scan": lambda: faulty.running_sum_kernel[(1,)](shaped(1000), shaped(1000), 1000, BLOCK=1024),
    "no reduction": lambda: faulty.copied_kernel[(4,)](shaped(1000), shaped(1000), 1000, BLOCK=256),
    "a named precision": lambda: faulty.product_kernel[(1,)](shaped(32, 32), shaped(32, 32), shaped(32, 32), "tf32", 32),
    "half precision as fp32": lambda: faulty.product_kernel[(1,)](
        *(shaped(32, 32, kind=kind) for kind in (torch.float16, torch.bfloat16, torch.float32)), "default", 32
    ),
    "half precision": lambda: faulty.product_kernel[(1,)](
        *(shaped(32, 32, kind=torch.float16) for _ in range(3)), "default", 32
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT_CODE)
@pytest.mark.parametrize("wrong", [True, False])
def test_code_without_a_fault_is_silent(name, wrong):
    assert compiled(SILENT_CODE[name], wrong=wrong) == []


def test_precision_of_the_environment_has_no_warning(monkeypatch):
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")
    launch, _ = DOUBTFUL["a product"]
    assert compiled(launch, wrong=False) == []


def tuned(kernel: Any, *arguments: Any, **options: Any) -> None:
    """Launches the kernel with an autotuner."""
    faulty.tuned(**options)(kernel)[lambda given: (2,)](*arguments)


def quotients(zeros: int, *, guard: bool = False) -> None:
    by = torch.arange(100, device="cuda") % 8 + (zeros == 0)
    faulty.quotient_kernel[(1,)](
        torch.arange(100, device="cuda"), by, cells(101, 0, torch.int64), 100, guard, BLOCK=128
    )


def turned(*, turn: bool = True, barrier: bool = False, **options: int) -> None:
    faulty.turned_kernel[(1,)](numbers(128), cells(128), turn, barrier, BLOCK=128, **options)


HALF = torch.bfloat16
UNLIKELY = {
    "a quotient by zero": (lambda: quotients(13), "an integer divided by zero, which has no defined value on a GPU, is stored in 1 program"),
    "another thread's element": (turned, "threads of 1 program access 512 bytes of out_ptr that another thread"),
    "tuning in place": (lambda: tuned(faulty.in_place_kernel, numbers(100), 100), "the autotuner tries 2 configs on x_ptr"),
    "tuning a sum": (
        lambda: tuned(faulty.atomic_total_kernel, numbers(100), cells(1), 100), "the autotuner tries 2 configs on out_ptr",
    ),
    "a key": (lambda: tuned(faulty.out_of_place_kernel, numbers(100), cells(100), 100, key=["n", "m"]), "key= names m, which"),
    "atomics": (lambda: faulty.many_atomics_kernel[(1024,)](numbers(1), cells(1), ONE=True), "1,024 atomics on the same 4 bytes"),
    "a sum": (lambda: faulty.half_sum_kernel[(1,)](cells(400 * 16, 1.0, HALF), cells(16, 0, HALF), 400, tl.bfloat16), "a sum in bf16 no longer grows"),
    "a sum of rounded sums": (lambda: faulty.rounded_sum_kernel[(1,)](cells(400 * 16, 1.0, HALF), cells(16, 0, HALF), 400, DECAY=False), "a sum in bf16 no longer grows"),
    "a sum in memory": (lambda: faulty.sum_in_memory_kernel[(1,)](cells(400 * 16, 1.0, HALF), cells(16, 0, HALF), 400), "a sum in bf16 no longer grows"),
    "a sum by atomics": (lambda: faulty.many_atomics_kernel[(100,)](cells(1, 1, torch.float16), cells(1, 2048, torch.float16), ONE=True), "a sum in fp16 no longer grows"),
}  # fmt: skip


if NEWEST:  # Triton refuses it
    del UNLIKELY["a key"]


@pytest.mark.parametrize("name", UNLIKELY)
def test_unlikely_code_is_a_warning(name):
    launch, what = UNLIKELY[name]
    (said,) = told(launch, wrong=False)
    assert what in said and kernel_faults.read(said) is not None


SILENT = {
    "equal values of lanes": lambda: scattered(equal=True),
    "lanes of other bins": lambda: counted(list(range(100))),
    "an update by equal lanes": lambda: faulty.broadcast_update_kernel[(1,)](numbers(8, 4), cells(8), 8, 4),
    "atomics": lambda: faulty.atomic_total_kernel[(8,)](numbers(8192), cells(1), 8192, BLOCK=1024),
    "one program": lambda: faulty.total_kernel[(1,)](numbers(1024), cells(1), 1024, BLOCK=1024),
    "equal values": lambda: faulty.flagged_kernel[(4,)](numbers(256), cells(256), cells(2), numbers(1), 64),
    "the same program": lambda: faulty.twice_kernel[(4,)](numbers(256), cells(256), 64),
    "a lock": lambda: faulty.locked_kernel[(4,)](numbers(256), cells(1), cells(1, 0, torch.int32), 64),
    "the last one adds": lambda: faulty.last_one_adds_kernel[(4,)](
        numbers(256), cells(4), cells(1, 0, torch.int32), cells(1), 64, 4
    ),
    "a load before an atomic": lambda: faulty.largest_kernel[(4,)](numbers(256), cells(1), 64),
    "all": lambda: torch.sum(copied(fresh(1000), 8)),
    "zeros": lambda: copied(cells(1000), 7).sum(),
    "filled afterwards": lambda: torch.zero_(copied(fresh(1000), 7)[896:]),
    "two launches": halves,
    "a part that is read": lambda: torch.sum(copied(fresh(2000), 8)[:1000]),
    "a part of a sum": lambda: torch.exp(padded().sum(0)[:4]),
    "a chosen part": lambda: torch.gather(copied(fresh(2000), 8), 0, torch.arange(1000, device="cuda")),
    "a workspace": lambda: copied(fresh(4096), 8),
    "padded rows": lambda: torch.sum(copied(fresh(8, 160)[0, :128], 1, 128)),
    "places from memory": lambda: faulty.compacted_kernel[(1,)](numbers(100), fresh(100), cells(1, 0, torch.int32), 100, 128),
    "atomics of many programs": lambda: faulty.many_atomics_kernel[(100,)](numbers(1), fresh(2), ONE=True),
    "in place": lambda: faulty.in_place_kernel[(1,)](fresh(100), 99, BLOCK=128),
    "a quotient by one": lambda: quotients(0),
    "a guarded quotient": lambda: quotients(13, guard=True),
    "the same thread's element": lambda: turned(turn=False),
    "another thread's element behind a barrier": lambda: turned(barrier=True),
    "another thread's element in one warp": lambda: turned(num_warps=1),
    "restored": lambda: tuned(faulty.in_place_kernel, numbers(100), 100, restore_value=["x_ptr"]),
    "set to zero": lambda: tuned(faulty.atomic_total_kernel, numbers(100), cells(1), 100, reset_to_zero=["out_ptr"]),
    "stored before it is read": lambda: tuned(faulty.out_of_place_kernel, numbers(100), cells(100), 100),
    "tickets": lambda: tuned(faulty.ticket_kernel, cells(2), cells(1, 0, torch.int32), 100),
    "a library's own autotuner": lambda: foreign.tuned_by_itself(KernelInterface)[(1,)](numbers(32)),
    "one launch in place": lambda: faulty.in_place_kernel[(2,)](numbers(100), 100, BLOCK=64),
    "spread atomics": lambda: faulty.many_atomics_kernel[(1024,)](numbers(1), cells(64), ONE=False),
    "few atomics": lambda: faulty.many_atomics_kernel[(100,)](numbers(1), cells(1), ONE=True),
    "a counter": lambda: faulty.counting_programs_kernel[(2048,)](cells(1, 0, torch.int32)),
    "a sum of zeros": lambda: faulty.rounded_sum_kernel[(1,)](
        cells(400 * 16, 0, HALF), cells(16, 0, HALF), 400, DECAY=False
    ),
    "a mean that decays": lambda: faulty.rounded_sum_kernel[(1,)](
        cells(400 * 16, 1.0, HALF), cells(16, 0, HALF), 400, DECAY=True
    ),
    "half-precision atomics": lambda: faulty.many_atomics_kernel[(100,)](
        cells(1, 1, torch.float16), cells(1, 0, torch.float16), ONE=True
    ),
    "a short sum": lambda: faulty.half_sum_kernel[(1,)](
        cells(200 * 16, 1.0, HALF), cells(16, 0, HALF), 200, tl.bfloat16
    ),
    "a sum in memory in fp32": lambda: faulty.sum_in_memory_kernel[(1,)](cells(400 * 16, 1.0, HALF), cells(16), 400),
    "a sum in fp32": lambda: faulty.half_sum_kernel[(1,)](cells(400 * 16, 1.0, HALF), cells(16), 400, tl.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("wrong", [True, False])
def test_launch_without_a_fault_is_silent(name, wrong):
    assert told(SILENT[name], wrong=wrong) == []


@pytest.mark.parametrize(
    ("constants", "many"),
    [
        (range(1, 25), True),
        ([n / 7 for n in range(1, 25)], True),
        ((1 << n for n in range(10)), False),
        ((3.5,), False),
    ],
)
def test_many_values_of_a_constant_are_a_warning(constants, many, tmp_path):
    with Capture("sm_90") as capture:
        for times in constants:
            faulty.times_kernel[(1,)](cells(16, 1.0), cells(16), 16, TIMES=times, BLOCK=16)
    warned = [warning.message for warning in capture.job(runs_dir=tmp_path).warnings]
    assert len(warned) == many
    if many:
        assert "24 variants are compiled for calls at" in warned[0] and "one for each value of TIMES" in warned[0]


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import torch
from faulty_launches import total_kernel
total_kernel[(8,)](torch.ones(8192, device="cuda"), torch.zeros(1, device="cuda"), 8192, BLOCK=1024)
"""


def test_race_fails_the_case_and_leads_its_advice(forked, tmp_path, capsys):
    script = tmp_path / "race.py"
    script.write_text(SCRIPT.format(folder=str(Path(faulty.__file__).parent)))
    assert cli.main(["profile", "--runs", str(tmp_path / "runs"), "--collect", "interpreter", str(script)]) == 1
    line = line_of("a race", faulty.total_kernel)
    race = f"total_kernel, line {line}: 8 programs store to the same 4 bytes of out_ptr"
    assert race in " ".join(capsys.readouterr().out.split())
    (run,) = (tmp_path / "runs").glob("2*")
    cli.main(["advise", str(run)])
    said = " ".join(capsys.readouterr().out.split())
    assert f"1. {race}" in said and "do: Add with tl.atomic_add" in said and "2." not in said
