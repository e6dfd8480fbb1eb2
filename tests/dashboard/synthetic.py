"""Made-up runs for the dashboard's tests. No number here was measured anywhere; the device does not exist."""

from pathlib import Path

import pandas as pd
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Failure, Run

INJECTED = "<script>document.title='injected'</script>"

DEVICE = Device(
    "Synthetic GPU", "sm_90", 100, 50_000_000, 100_000_000_000, True,
    (
        Ceiling("hbm", 4.0e12, "byte/second", "measured", "made up"),
        Ceiling("hbm", 4.8e12, "byte/second", "datasheet", "made up"),
        Ceiling("hbm_read", 4.2e12, "byte/second", "measured", "made up"),
        Ceiling("l2", 1.1e13, "byte/second", "measured", "made up"),
        Ceiling("l1", 3.3e13, "byte/second", "measured", "made up"),
        Ceiling("fp32", 5.0e13, "flop/second", "measured", "made up"),
        Ceiling("fp32", 6.7e13, "flop/second", "datasheet", "made up"),
        Ceiling("bf16", 7.0e14, "flop/second", "measured", "made up"),
        Ceiling("bf16", 9.9e14, "flop/second", "datasheet", "made up"),
    ),
)  # fmt: skip

#: Implementation to how many launches it makes, bytes over the floor, and share of the bandwidth it reaches.
_IMPLS = {"triton": (1, 1.02, 0.9), "eager": (4, 3.6, 0.75), "compile": (2, 1.6, 0.8)}


def case_rows(case: Case, elements: int, measured: bool = True, flops_each: int = 5) -> list[dict]:
    """Every kind of row for one case of a memory-bound kernel over ``elements`` of two bytes."""
    launches, excess, share = _IMPLS[case.impl]
    floor = 2 * elements
    rows = [
        case.row("algorithm_flops", flops_each * elements, "model"),
        case.row("algorithm_bytes_read", floor, "model"),
        case.row("algorithm_bytes_written", floor, "model"),
    ]
    starts = [0.0] * 5
    for launch in range(launches):
        at = {"launch": launch, "function": f"{case.name}_{case.impl}_{launch}"}
        bytes_each = floor * excess / launches
        rows += [
            case.row("unique_bytes_read", int(bytes_each), "interpreter", **at),
            case.row("unique_bytes_written", int(bytes_each), "interpreter", **at),
            case.row("requested_bytes_read", int(bytes_each * 1.1), "interpreter", **at),
            case.row("requested_bytes_written", int(bytes_each), "interpreter", **at),
            case.row("requested_flops", flops_each * elements // launches, "interpreter", **at),
            case.row("registers", 32 + 24 * launch, "compiler", **at),
            case.row("shared_memory", 1024 * launch, "compiler", **at),
            case.row("block_threads", 256, "compiler", **at),
            case.row("barriers", 1, "compiler", **at),
            case.row("theoretical_occupancy", 1 - 0.1 * launch, "compiler", **at),
            case.row("occupancy_limit_registers", 8 - launch, "compiler", **at),
            case.row("occupancy_limit_warps", 8, "compiler", **at),
        ]
        if not measured:
            continue
        seconds = 2 * bytes_each / (4e12 * share) + 1e-6
        rows += [
            case.row("gpu_time", seconds * (1 + 0.01 * sample), "torch_profiler", sample=sample, **at)
            for sample in range(5)
        ]
        for sample, start in enumerate(starts):
            # The last of several launches is called 6 us after the one before it ended, the others in time.
            call = start - 2e-6 if launch and launch == launches - 1 else start - 10e-6
            rows += [
                case.row("launch_start", start, "torch_profiler", sample=sample, **at),
                case.row("launch_call", call, "torch_profiler", sample=sample, **at),
            ]
            pause = 8e-6 if launch == launches - 2 else 1e-6
            starts[sample] = start + seconds * (1 + 0.01 * sample) + pause
        rows += [
            case.row("dram_bytes_read", bytes_each, "ncu", **at),
            case.row("dram_bytes_written", bytes_each * 0.9, "ncu", **at),
            case.row("l2_bytes", bytes_each * 2.2, "ncu", **at), case.row("l1_bytes", bytes_each * 2.4, "ncu", **at),
            case.row("flops_fp32", flops_each * elements / launches * 1.2, "ncu", **at),
            case.row("gpu_time", seconds * 1.02, "ncu", **at), case.row("registers", 32 + 24 * launch, "ncu", **at),
            case.row("shared_memory", 1024 * launch, "ncu", **at), case.row("block_threads", 256, "ncu", **at),
            case.row("theoretical_occupancy", 1 - 0.1 * launch, "ncu", **at),
            case.row("achieved_occupancy", 0.88 - 0.1 * launch, "ncu", **at),
        ]  # fmt: skip
    if measured:
        # A call takes no less than the launches in it, or its measurement is called impossible.
        rows += [
            case.row("interval", max(60e-6 * launches, end), "events", sample=sample)
            for sample, end in enumerate(starts)
        ]
    return rows


def sweep_rows() -> tuple[list[dict], list[Failure]]:
    """A sweep of a made-up matmul over four parameters; the largest blocks fail."""
    rows, failures = [], []
    for m in (32, 64, 128, 256):
        for n in (32, 64, 128, 256):
            for warps in (4, 8):
                case = Case(
                    "matmul", "triton", "forward", "4096x4096x4096-bf16", f"BLOCK_M={m},BLOCK_N={n},num_warps={warps}"
                )
                if m * n * 4 > 227 * 1024:
                    failures.append(
                        Failure(case.id, "compiler", f"needs {m * n * 4:,} bytes of shared memory, sm_90 has 232,448")
                    )
                    continue
                at = {"launch": 0, "function": "matmul_kernel"}
                rows += [
                    case.row("registers", min(255, 24 + m * n // (64 * warps)), "compiler", **at),
                    case.row("shared_memory", m * n * 4, "compiler", **at),
                    case.row("block_threads", warps * 32, "compiler", **at),
                    case.row("spill_bytes_stored", max(0, m * n // (64 * warps) - 231), "compiler", **at),
                    case.row("spill_bytes_loaded", 0, "compiler", **at),
                    case.row("theoretical_occupancy", min(1, 16384 / (m * n)), "compiler", **at),
                    case.row("gpu_time", 2e-4 * (1 + abs(m - 128) / 128 + abs(n - 128) / 128 + 0.1 * (warps == 4)),
                             "torch_profiler", sample=0, **at),
                ]  # fmt: skip
    return rows, failures


def facts(name: str) -> dict:
    """What a run notes about a kernel."""
    return {
        "summary": f"A made-up {name} for the tests.", "file": f"nowhere/{name}.py", "sha256": "0" * 64, "dims": ["M", "N"],
        "passes": ["forward", "backward"], "implementations": {i: {"configs": [], "available": True} for i in _IMPLS},
        "tolerance": {}, "cost": {}, "workloads": [],
    }  # fmt: skip


def frame(measured: bool = True, kernels: tuple[str, ...] = ("softmax", "layer_norm")) -> pd.DataFrame:
    """A table of two kernels in both directions on two workloads."""
    rows = []
    for kernel in kernels:
        for workload, elements in (("16384x4096-bf16", 16384 * 4096), ("1823x781-bf16", 1823 * 781)):
            for direction in ("forward", "backward"):
                for impl in _IMPLS:
                    rows += case_rows(Case(kernel, impl, direction, workload), elements, measured)
    return schema.frame(rows)


def write_run(
    folder: Path, identity: str, kernels: tuple[str, ...] = ("softmax", "layer_norm"), measured: bool = True
) -> Path:
    """A whole run on disk, with a sweep and its failures."""
    swept, failures = sweep_rows() if measured else ([], [])
    run = Run(
        id=identity, started="2026-01-02T03:04:05+00:00", device=DEVICE, versions={"torch": "0", "triton": "0"},
        kernels={name: facts(name) for name in (*kernels, *(("matmul",) if measured else ()))},
        settings={"target": "sm_90"}, title="synthetic " + ("run" if measured else "prediction"),
    )  # fmt: skip
    writer = store.RunWriter(folder, run)
    table = schema.frame([*frame(measured, kernels).drop(columns="unit").to_dict("records"), *swept])
    writer.append(table.assign(run_id=""))
    for failure in failures:
        writer.fail(failure)
    return writer.finish()
