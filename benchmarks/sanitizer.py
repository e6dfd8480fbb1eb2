"""NVIDIA's compute-sanitizer over every kernel of the library: ``python benchmarks/sanitizer.py [SPEC ...]``, on a GPU.

``memcheck`` looks for accesses outside of an allocation, ``racecheck`` for races in shared memory. A spec is a process of its own
under each tool, which calls what it declares, forward and backward, at their workloads; of large ones the first dimension is
cut. Printed are, a line a kernel, whether it is clean, or what was first said of it, and whether it ran at all. Every allocation is
the driver's own, so that the tool knows where it ends. Exits with 1 where anything was said, or a call failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tilescope_kernels
import torch
from tilescope_kernels.spec import FORWARD, KernelSpec, Workload
from triton.runtime import autotuner, driver, jit

TOOLS = ("memcheck", "racecheck")
#: Bytes and operations of the largest workload that is called as it is.
MOST_BYTES, MOST_OPERATIONS = 2**28, 2**37
#: More of them, for kernels that no workload comes to.
MORE = {
    "softmax": "70x20000-fp32 9x50257-bf16 8x100000-bf16",
    "fp8_tensor": "300x781-fp32 3x37-fp16",
    "layer_norm": "100x1024-bf16 70x9001-bf16 300x65536-bf16 7x100003-bf16 2001x520-bf16 30000x64-bf16",
    "rms_norm": "30000x64-bf16 70x9001-bf16 300x65536-bf16 7x100003-bf16 5000x128-bf16",
    "add_rms_norm": "300x20480-bf16 7x100003-bf16",
    "cross_entropy": "9x50257-bf16 130x128256-bf16",
    "linear_cross_entropy": "600x256x32000-bf16 1500x1536x20000-bf16",
    "attention": "1x8x4x1x8192x128-bf16 1x16x1x2048x2048x256-bf16 2x2x4x1024x1024x128-bf16 1x4x2x300x500x80-bf16"
    " 2x16x1x1024x1024x88-bf16 4x8x4x1x8192x128-fp16",
    "causal_attention": "1x4x2x300x500x88-bf16 1x4x4x512x512x128-bf16 2x16x1x2000x2000x64-bf16 1x16x1x2048x2048x256-bf16"
    " 2x16x1x1024x1024x80-bf16",
    "matmul": "1000x1001x1003-bf16 300x300x300-bf16 128x4096x4096-bf16 256x256x16384-bf16 3000x3000x3000-bf16"
    " 384x384x12288-bf16 1000x1000x4000-bf16 2000x1000x2000-bf16 5000x1000x5000-bf16",
    "fp8_matmul": "128x1000x4104-fp8 16x8192x8192-fp8",
    "int8_matmul": "1023x517x769-int8",
    "w8a16_matmul": "128x4096x4096-bf16 300x4096x4096-bf16 640x4096x4096-bf16 1000x1001x1003-fp16 70x517x400-fp32",
    "fp8_rows": "9x40000-bf16",
    "int8_rows": "3x70001-fp32",
    "conv2d": "1x2048x7x7x2048x3-bf16 4x128x56x56x130x3-bf16 2x7x20x21x9x5-fp32",
    "depthwise_conv2d": "3x73x37x29x9x2-fp32 2x144x56x56x5x1-bf16",
}
#: What a finding begins with: it says what and, in its next lines, in which kernel.
_FINDING = re.compile(r"^========= (?!    )(?!COMPUTE-SANITIZER|.* SUMMARY|Target application)(.+)$")


def _innermost(kernel: Any) -> Any:
    """What autotuners and heuristics are wrapped around."""
    while isinstance(kernel, (autotuner.Autotuner, autotuner.Heuristics)):
        kernel = kernel.fn
    return kernel


def kernels() -> dict[str, Any]:
    """The library's kernels that have been imported, by name."""
    found = {}
    for module in [module for name, module in sys.modules.items() if name.startswith("tilescope_kernels.")]:
        for kernel in map(_innermost, vars(module).values()):
            if isinstance(kernel, jit.JITFunction) and kernel.__name__.endswith("_kernel"):
                found[kernel.__name__] = kernel
    return found


def findings(text: str, names: Any) -> dict[str, list[str]]:
    """What a tool said, by the kernel of ``names`` that it said it of."""
    found: dict[str, list[str]] = {}
    said: list[str] = []
    for line in [*text.splitlines(), "========= end"]:
        if match := _FINDING.match(line):
            about = " ".join(said)
            whose = next((name for name in names if re.search(rf"\b{re.escape(name)}\b", about)), None)
            if whose:
                found.setdefault(whose, []).append(about)
            said = [match[1]]
        elif line.startswith("=========     ") and len(said) < 4:
            said.append(line[9:].strip())
    return found


def cut(spec: KernelSpec, workload: Workload) -> Workload:
    """The workload, or, where it is large, one with an odd part of its first dimension."""
    first, *_ = spec.dims
    whole = workload
    while workload.dims[first] > 1:
        cost = spec.cost(workload, FORWARD)
        if cost.bytes <= MOST_BYTES and cost.flops <= MOST_OPERATIONS:
            break
        half = (workload.dims[first] + 1) // 2
        workload = dataclasses.replace(whole, dims={**whole.dims, first: max(1, half - 1 + half % 2)})
    return workload


def call(spec: KernelSpec, workload: Workload) -> None:
    """Call what the spec has of ours: without a gradient and, where there are gradients, forward and backward."""
    for name, implementation in spec.implementations.items():
        if name != "triton" and not implementation.configs:
            continue
        inputs = spec.inputs(workload, "cuda")
        with torch.no_grad():
            implementation.call(**inputs)
        result = implementation.call(**inputs)
        outputs = [out for out in (result if isinstance(result, tuple) else (result,)) if out.requires_grad]
        leaves = [value for value in inputs.values() if torch.is_tensor(value) and value.requires_grad]
        if leaves and outputs and spec.passes != (FORWARD,):
            torch.autograd.grad(outputs, leaves, [torch.randn_like(out) for out in outputs])
        torch.cuda.synchronize()


def _grouped() -> None:
    """A convolution in groups, which no workload has."""
    x = torch.randn(3, 72, 29, 37, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(96, 24, 3, 3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    tilescope_kernels.conv2d(x, weight, stride=2, padding=1, groups=3).sum().backward()
    torch.cuda.synchronize()


#: Calls beside those of workloads, by spec and name.
BESIDE: Mapping[str, Mapping[str, Callable[[], None]]] = {"conv2d": {"groups": _grouped}}


def without_timings() -> None:
    """Have each config that would be timed run once, and nothing be kept of it."""
    driver.active.get_benchmarker = lambda: lambda once, **_: [once() or 1.0] * 3
    autotuner.Autotuner.check_disk_cache = lambda tuner, key, configs, bench: bool(bench())


def run(spec: KernelSpec, seconds: float) -> None:
    """Call a kernel under whatever tool this process runs, and print what has been called, after each call, as JSON."""
    began = time.monotonic()
    without_timings()
    workloads = [cut(spec, known) for known in (*spec.workloads, *map(spec.workload, MORE.get(spec.name, "").split()))]
    workloads.sort(key=lambda known: spec.cost(known, FORWARD).flops)
    calls: dict[str, Callable[[], None]] = {known.id: functools.partial(call, spec, known) for known in workloads}
    calls.update(BESIDE.get(spec.name, {}))
    told: dict[str, Any] = {"called": [], "left": [*calls], "failed": {}, "ran": []}
    for name, once in calls.items():
        if time.monotonic() - began > seconds:
            break
        try:
            once()
            told["called"].append(name)
        except Exception as error:  # told, and the others are called
            told["failed"][name] = f"{type(error).__name__}: {str(error)[:300]}"
        told["left"].remove(name)
        told["ran"] = [
            name for name, kernel in kernels().items() if any(cache[0] for cache in kernel.device_caches.values())
        ]
        print(json.dumps(told), flush=True)


def checked(tool: str, name: str, seconds: float) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What the process of the spec of that name told, and the tool said."""
    command = [
        "compute-sanitizer", "--tool", tool, "--target-processes", "application-only", "--print-limit", "1000",
        sys.executable, __file__, "--run", name, "--seconds", str(seconds),
    ]  # fmt: skip
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1.5 * seconds + 60,
            check=False,
        )  # fmt: skip
        text = done.stdout
    except subprocess.TimeoutExpired as late:
        text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    told = next((json.loads(line) for line in reversed(text.splitlines()) if line.startswith('{"called"')), None)
    if told is None:
        told = {"called": [], "left": [], "ran": [], "failed": {name: f"its process ended: {text[-600:]}"}}
    return told, findings(text, sorted(kernels(), key=len, reverse=True))


def lines(tool: str, told: Mapping[str, Any], said: Mapping[str, list[str]]) -> Iterator[str]:
    """The report of one spec under one tool."""
    for name in sorted({*told["ran"], *said}):
        about = said.get(name, [])
        yield f"{tool}  {name}: " + (f"{len(about)} findings, first: {about[0]}" if about else "clean")
    for name, error in told["failed"].items():
        yield f"{tool}  failed: {name}: {error}"
    if told["left"]:
        yield f"{tool}  not called for want of time: {', '.join(told['left'])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", help="names of specs of the catalog (default: all)")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="default: both")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a process calls no more")
    parser.add_argument("--processes", type=int, default=1, help="specs at a time")
    parser.add_argument("--run", metavar="SPEC", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    known = {spec.name: spec for spec in tilescope_kernels.CATALOG}
    if asked.run:
        run(known[asked.run], asked.seconds)
        return 0
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(asked.processes) as pool:
        for tool in asked.tool or TOOLS:
            ran: set[str] = set()
            jobs = {pool.submit(checked, tool, name, asked.seconds): name for name in asked.specs or known}
            for job in concurrent.futures.as_completed(jobs):
                told, said = job.result()
                print(
                    f"{tool}, {jobs[job]}: {len(told['called'])} workloads",
                    *lines(tool, told, said),
                    sep="\n",
                    flush=True,
                )
                ran |= {*told["ran"]}
                wrong += bool(said or told["failed"])
            print(f"{tool}, not run:", ", ".join(sorted({*kernels()} - ran)) or "none", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
