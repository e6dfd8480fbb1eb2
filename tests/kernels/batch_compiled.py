"""Kernels, by name, compiled for GPUs that are not there. Prints one JSON object, launch by launch."""

import json
import re
import sys

from tilescope.collectors import compiler
from tilescope.execution import offline
from tilescope.execution.not_applicable import NotApplicable
from tilescope.table.case import Case
from tilescope_kernels import CATALOG

#: A workload more where the GPU decides which kernel it gets, or rows are ragged.
MORE = {
    "layer_norm": ["wide"], "attention": ["grouped"], "causal_attention": ["grouped"], "softmax": ["ragged"], "matmul": ["ragged"],
}  # fmt: skip


def launches(spec, workload, target):
    """(function, compiled kernel) of every launch of the Triton implementation, forward and back."""
    seen = []
    for direction in spec.passes:
        case = Case(spec.name, "triton", direction, spec.workload(workload).id)
        try:
            made, _ = compiler.launches_of(case, spec, target)
        except NotApplicable:  # a pass or size of which nothing is launched
            continue
        with offline.targeting(target):
            seen += [(launch.name, offline.compile_launch(launch)) for launch in made]
    return seen


def main():
    rows = []
    for spec in [spec for spec in CATALOG if not sys.argv[1:] or spec.name in sys.argv[1:]]:
        more, first = MORE.get(spec.name, ()), len(rows)
        for target in (90, 80, 120, 100):
            # On sm_100 a kernel without a product is compiled as on sm_90.
            if f"sm_{target}" not in spec.targets or (target == 100 and not any(r["tensor"] for r in rows[first:])):
                continue
            for workload in ("large" if target == 90 else "small", *more):
                for function, kernel in launches(spec, workload, f"sm_{target}"):
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
