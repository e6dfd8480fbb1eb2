"""Theoretical occupancy against recorded launches and against NVIDIA's own calculator."""

import importlib.util
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilescope.hardware import occupancy

TARGETS = sorted(occupancy.LIMITS)
#: Newer than the calculator in Triton 3.6's wheel, which answers "unknown device".
NEWER = {"sm_103": "sm_100", "sm_121": "sm_120"}


def test_the_recorded_softmax() -> None:
    """ncu on an H200: 32 registers, 32 bytes, 256 threads, a carve-out of 32 KiB."""
    found = occupancy.blocks("sm_90", 32, 32, 256, configured=32768)
    assert found.limits == {"registers": 8, "shared_memory": 28, "warps": 8, "blocks": 32, "barriers": 32}
    assert (found.blocks, found.ratio, found.limiters) == (8, 1.0, ("registers", "warps"))


def test_the_recorded_matmul() -> None:
    found = occupancy.blocks("sm_90a", 193, 147456, 256, configured=233472)
    assert found.limits == {"registers": 1, "shared_memory": 1, "warps": 8, "blocks": 32, "barriers": 32}
    assert (found.ratio, found.limiters) == (0.125, ("registers", "shared_memory"))


def test_registers_are_shared_out_by_sub_partition() -> None:
    """96 registers: 5 warps in each of 4 sub-partitions. Over the whole multiprocessor 21 would seem to fit."""
    assert occupancy.blocks("sm_80", 96, 0, 32).limits["registers"] == 20


def test_what_cannot_run_has_no_occupancy() -> None:
    assert occupancy.blocks("sm_90", 32, 227 * 1024, 128).blocks == 1
    assert occupancy.blocks("sm_90", 32, 227 * 1024 + 1, 128).limiters == ("shared_memory",)
    assert occupancy.blocks("sm_90", 256, 0, 128).ratio == 0
    assert occupancy.blocks("sm_90", 32, 0, 1056).ratio == 0


@pytest.mark.parametrize(("target", "alike"), NEWER.items())
def test_newer_chips_are_like_their_family(target: str, alike: str) -> None:
    assert occupancy.blocks(target, 80, 50_000, 192, 3) == occupancy.blocks(alike, 80, 50_000, 192, 3)


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(ValueError, match="unknown target 'sm_42': use one of sm_80"):
        occupancy.limits("sm_42")


@given(st.sampled_from(TARGETS), st.integers(1, 255), st.integers(0, 230_000), st.integers(1, 1024), st.integers(0, 16))
def test_more_of_anything_never_raises_occupancy(
    target: str, registers: int, shared: int, threads: int, barriers: int
) -> None:
    found = occupancy.blocks(target, registers, shared, threads, barriers)
    assert 0 <= found.ratio <= 1
    assert found.limiters
    assert found.blocks == min(found.limits.values())
    for more in (
        occupancy.blocks(target, registers + 1, shared, threads, barriers),
        occupancy.blocks(target, registers, shared + 1, threads, barriers),
        occupancy.blocks(target, registers, shared, threads, barriers + 1),
        occupancy.blocks(target, registers, shared, threads + 32, barriers),
    ):
        assert more.blocks <= found.blocks


ORACLE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda_occupancy.h"
int main(void) {
    int major, minor, registers, threads, barriers, warps, sm_shared, block_shared, shared;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &registers, &shared, &threads, &barriers, &warps,
                 &sm_shared, &block_shared) == 9) {
        cudaOccDeviceProp chip; memset(&chip, 0, sizeof chip);
        cudaOccFuncAttributes kernel; memset(&kernel, 0, sizeof kernel);
        cudaOccDeviceState state; memset(&state, 0, sizeof state);
        cudaOccResult result;
        chip.computeMajor = major; chip.computeMinor = minor; chip.maxThreadsPerBlock = 1024;
        chip.maxThreadsPerMultiprocessor = warps * 32; chip.regsPerBlock = 65536; chip.regsPerMultiprocessor = 65536;
        chip.warpSize = 32; chip.sharedMemPerBlock = 49152; chip.sharedMemPerMultiprocessor = sm_shared;
        chip.numSms = 100; chip.sharedMemPerBlockOptin = block_shared; chip.reservedSharedMemPerBlock = 1024;
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = registers; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = block_shared; kernel.numBlockBarriers = barriers;
        state.carveoutConfig = 100;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &chip, &kernel, &state, threads, shared);
        printf("%d %d %d %d %d %d %d\\n", status, result.activeBlocksPerMultiprocessor, result.blockLimitRegs,
               result.blockLimitSharedMem, result.blockLimitWarps, result.blockLimitBlocks, result.blockLimitBarriers);
    }
    return 0;
}
"""


def header() -> Path | None:
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "backends/nvidia/include"
    return folder if (folder / "cuda_occupancy.h").exists() else None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.skipif(header() is None, reason="needs the cuda_occupancy.h of Triton's wheel")
def test_the_formula_is_nvidias(tmp_path: Path) -> None:
    source, binary = tmp_path / "oracle.c", tmp_path / "oracle"
    source.write_text(ORACLE)
    subprocess.run(["gcc", "-w", f"-I{header()}", str(source), "-o", str(binary)], check=True)
    draw = random.Random(7)  # noqa: S311 (not a secret)
    cases = []
    for _ in range(20000):
        chip = occupancy.LIMITS[draw.choice([target for target in TARGETS if target not in NEWER])]
        shared = draw.choice([0, draw.randint(0, 4096), draw.randint(0, chip.block_shared_memory)])
        cases.append((chip, draw.randint(1, 255), shared, draw.randint(1, 1024), draw.randint(1, 16)))
    lines = []
    for chip, registers, shared, threads, barriers in cases:
        number = chip.target.removeprefix("sm_")
        lines.append(
            f"{number[:-1]} {number[-1]} {registers} {shared} {threads} {barriers} {chip.warps} "
            f"{chip.shared_memory} {chip.block_shared_memory}"
        )
    answer = subprocess.run([str(binary)], input="\n".join(lines), capture_output=True, text=True, check=True)
    answers = answer.stdout.splitlines()
    assert len(answers) == len(cases)
    for (chip, registers, shared, threads, barriers), line in zip(cases, answers, strict=True):
        status, active, *theirs = (int(number) for number in line.split())
        assert status == 0, (chip.target, registers, shared, threads, barriers)
        found = occupancy.blocks(chip.target, registers, shared, threads, barriers)
        names = ("registers", "shared_memory", "warps", "blocks", "barriers")
        ours = [found.limits.get(name, chip.blocks) for name in names]
        assert found.blocks == active, (chip.target, registers, shared, threads, barriers)
        # NVIDIA's header does not bound the barriers' term by the block slots; ncu does.
        assert ours == [*theirs[:4], min(theirs[4], chip.blocks)], (chip.target, registers, shared, threads, barriers)
