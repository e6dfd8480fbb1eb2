"""What a GPU would refuse is a fault of its case, and launches that look alike stay silent."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from tilescope import Capture, cli
from tilescope.execution import launch_limits
from tilescope.models import advice
from tilescope.table import kernel_faults

pytestmark = pytest.mark.usefixtures("no_gpu")


@triton.jit
def touch_kernel(x, n, AXIS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(AXIS) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def tile_kernel(x, y, M, N, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [B, B])
    target = tl.make_tensor_descriptor(y, [M, N], [N, 1], [B, B])
    target.store([tl.program_id(0) * B, 0], source.load([tl.program_id(0) * B, 0]))


@triton.jit
def asserting_kernel(x, y, n, limit, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.device_assert(value < limit, "too: large", mask=at < n)  # an assertion
    tl.device_print("sum", tl.sum(value, 0))
    print("shown", n)
    tl.store(y + at, value, mask=at < n)


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), device="cuda", dtype=torch.float32).view(shape)


def touched(grid: tuple[int, ...], axis: int = 0, warps: int = 1) -> None:
    touch_kernel[grid](numbers(64), 64, AXIS=axis, BLOCK=32, num_warps=warps)


def tiles(there: bool) -> None:
    launch_limits.set_allocator(there)
    try:
        tile_kernel[(4,)](numbers(64, 16), numbers(64, 16), 64, 16, B=16)
    finally:
        launch_limits.set_allocator(False)


REFUSED: dict[str, tuple[Callable[[], None], str, str]] = {
    "y": (lambda: touched((1, 65_536), 1), "65,536 blocks in y, and CUDA allows 65,535", "Use the grid's first dimension for it."),
    "z": (lambda: touched((1, 1, 70_000), 2), "70,000 blocks in z", "Use the grid's first dimension for it."),
    "allocator": (lambda: tiles(there=False), "no allocator was set", "Use triton.set_allocator before the launch."),
}  # fmt: skip
FINE: dict[str, Callable[[], None]] = {
    "x": lambda: touched((65_536,)), "y": lambda: touched((1, 65_535), 1), "warps": lambda: touched((2,), warps=8),
    "allocator": lambda: tiles(there=True),
}  # fmt: skip


def profiled(launches: Iterable[Callable[[], None]], runs: Path) -> tuple[list[advice.Finding], int]:
    """The faults of the launches, which are compiled in a worker, and how many cases they are."""
    with Capture("sm_90", limit=1) as capture:
        for launch in launches:
            launch()
    loaded = capture.profile(["compiler"], runs_dir=runs, on_event=lambda event: None)
    return [finding for finding in advice.of_run(loaded, loaded.table) if finding.fault], len(capture.records)


def test_refused_launches_are_the_first_findings(tmp_path):
    faults, launched = profiled([launch for launch, *_ in REFUSED.values()], tmp_path)
    assert launched == len(faults) == len(REFUSED)
    for _, said, cure in REFUSED.values():
        (fault,) = (fault for fault in faults if said in fault.title)
        assert fault.rule == "cannot-launch" and fault.remedy == cure


def test_refused_grid_is_not_interpreted():
    with Capture("sm_90") as capture:
        touched((1, 65_536), 1)
    assert "counted" not in capture.records[0].data
    assert capture.notes[0].endswith(
        "65,536 blocks in y, and CUDA allows 65,535: use the grid's first dimension for it"
    )


def test_launches_within_the_limits_have_no_fault(tmp_path):
    assert profiled(FINE.values(), tmp_path) == ([], len(FINE))


def test_launch_limits_count_clusters_and_threads():
    class Metadata:
        num_ctas, global_scratch_size = 2, 0

    assert "4,294,967,294 blocks in x" in launch_limits.refusal((2**31 - 1, 1, 1), 128, Metadata)
    assert launch_limits.refusal((2**30 - 1, 65_535, 65_535), 1024, Metadata) == ""
    assert launch_limits.refusal((1, 1, 1), 2048, Metadata).endswith("1,024: use fewer num_warps")


SECOND = {
    "factory": lambda: torch.zeros(4, device="cuda:1"),
    "to": lambda: torch.zeros(4).to("cuda:1"), "cuda": lambda: torch.zeros(4).cuda(1),
    "set_device": lambda: torch.cuda.set_device(1), "device": lambda: torch.cuda.device(1).__enter__(),
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
def test_second_gpu_is_refused_as_invalid(name):
    with Capture("sm_90"), pytest.raises(RuntimeError, match="cuda:1 is an invalid device: one GPU is assumed"):
        SECOND[name]()


def test_first_gpu_has_every_name():
    with Capture("sm_90"), torch.cuda.device(0):
        made = [torch.zeros(2, device=name) for name in ("cuda", "cuda:0", torch.device("cuda", 0))]
        assert {str(tensor.to("cuda:0").device) for tensor in made} == {"cuda:0"}
        torch.cuda.set_device("cuda:0")


def of_launch(limit: float) -> list[str]:
    with Capture("sm_90") as capture:
        x, y = numbers(100), torch.empty(100, device="cuda")
        asserting_kernel[(4,)](x, y, 100, limit, BLOCK=32)
        assert torch.equal(x, y)  # a GPU goes on, too
    (record,) = capture.records
    return list(kernel_faults.of_launches([record.data["counted"]], wrong=True))


def test_violated_assertion_names_its_line_and_programs(capsys):
    (said,) = of_launch(limit=70)
    line = (
        asserting_kernel.starting_line_number
        + 1
        + next(number for number, text in enumerate(asserting_kernel.src.splitlines()) if "# an assertion" in text)
    )
    assert said.startswith(
        f"asserting_kernel, line {line}: the assertion 'too, large' does not hold in 2 of the programs: "
    )
    # Lanes that the mask leaves out do not count, nor does an assertion that holds.
    assert of_launch(limit=100) == []
    assert capsys.readouterr().err.count("sum") == 8


def test_prints_of_a_launch_are_limited(capsys):
    with Capture("sm_90"):
        x = numbers(640)
        asserting_kernel[(20,)](x, torch.empty_like(x), 640, 1e9, BLOCK=32)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21 and lines[0].startswith("(0, 0, 0)  sum: ") and "shown" in lines[1]
    assert lines[-1] == "more than 20 lines of device_print: the others are left out"


def test_script_on_a_second_gpu_ends_in_a_line(forked, tmp_path, capsys):
    script = tmp_path / "two.py"
    script.write_text("import torch\ntorch.zeros(4, device='cuda:1')\n")
    assert cli.main(["profile", "--runs", str(tmp_path), str(script)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "cuda:1 is an invalid device" in said and ", line 2 of two.py, before" in said
    script.write_text("x = 3\nassert x == 4\n")
    assert cli.main(["profile", "--runs", str(tmp_path), str(script)]) == 2
    assert "AssertionError: assert x == 4, line 2 of two.py, before" in capsys.readouterr().err.splitlines()[-1]
