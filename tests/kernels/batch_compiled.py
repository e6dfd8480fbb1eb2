"""Kernels, by name, compiled for GPUs that are not there. Run by test_compiled; prints one JSON object, launch by launch."""

from __future__ import annotations

import json
import re
import sys

import torch
import triton
from tilescope.execution.launches import ThroughCustomOps
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import FORWARD, KernelSpec
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import jit


class Absent(DriverBase):
    """Enough of a driver to compile for a GPU of that compute capability."""

    capability = 90

    def __init__(self): ...

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self):
        return torch.device("meta")

    def get_benchmarker(self):
        raise AssertionError("nothing can be timed here")

    def get_current_device(self):
        return self.capability  # Triton keeps compiled kernels by device: one "device" a target.

    def get_current_stream(self, device):
        return 0


def launches(spec: KernelSpec, workload: str) -> list:
    """(function, options, compiled kernel) of every launch of the Triton implementation, on meta tensors."""
    seen = []
    run = jit.JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        seen.append((self.fn.__name__, kernel.result() if hasattr(kernel, "result") else kernel))

    jit.JITFunction.run = compile_only
    try:
        inputs = spec.inputs(spec.workload(workload), "meta")
        with ThroughCustomOps():
            outputs = spec.implementations["triton"].call(**inputs)
            if spec.passes != (FORWARD,):
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                leaves = [value for value in inputs.values() if torch.is_tensor(value) and value.requires_grad]
                torch.autograd.grad(outputs, leaves, [torch.empty_like(out) for out in outputs])
    finally:
        jit.JITFunction.run = run
    return seen


def main() -> None:
    driver = Absent()
    triton.runtime.driver.set_active(driver)
    rows = []
    for spec in [spec for spec in CATALOG if not sys.argv[1:] or spec.name in sys.argv[1:]]:
        # Those for which the kernel is chosen by the GPU are compiled for every one.
        chosen = [workload.label for workload in spec.workloads if workload.label in ("wide", "grouped")]
        others = ("small", *chosen)
        for target, workloads in ((90, ("large", "ragged", *chosen)), (80, others), (100, others), (120, others)):
            if f"sm_{target}" not in spec.targets:
                continue
            driver.capability = target
            for workload in workloads:
                for function, kernel in launches(spec, workload):
                    ptx = kernel.asm["ptx"]
                    rows.append(
                        {
                            "kernel": spec.name, "target": target, "workload": workload, "function": function,
                            "shared": kernel.metadata.shared,
                            "wide": bool(re.search(r"ld\.global[\w.:]*\.(v4\.b32|v2\.b64)|cp\.async\.(cg|bulk)", ptx)),
                            "tensor": "wgmma" in ptx or "mma.sync" in ptx or "tcgen05.mma" in ptx,
                        }
                    )  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
