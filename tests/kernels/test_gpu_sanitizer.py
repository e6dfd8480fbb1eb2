"""compute-sanitizer over every kernel: how its text is read and what is called, and, on a GPU, that it finds nothing."""

import shutil
from pathlib import Path

import pytest
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import FORWARD

from benchmarks import sanitizer

TEXTS = Path(__file__).parents[1] / "profiles" / "fixtures" / "texts"
TEXT = (TEXTS / "compute_sanitizer.txt").read_text()


def test_what_is_said_of_each_of_our_kernels():
    assert sanitizer.findings(TEXT, ["softmax_rows_kernel", "matmul_kernel", "row_kernel"]) == {
        "softmax_rows_kernel": [
            "Invalid __global__ read of size 2 bytes at softmax_rows_kernel+0x150 in softmax.py:12"
            " by thread (0,0,0) in block (3,0,0) Address 0x7f00 is out of bounds",
            "Error: Race reported between Read access at softmax_rows_kernel+0x140 in softmax.py:3"
            " and Write access at softmax_rows_kernel+0x10 in softmax.py:9 [16 hazards]",
        ]
    }
    told = {"ran": ["matmul_kernel"], "failed": {"matmul 1x1x1-bf16": "it broke"}, "left": ["matmul 9x9x9-bf16"]}
    assert list(sanitizer.lines("racecheck", told, {"row_kernel": ["a race", "another"]})) == [
        "racecheck  matmul_kernel: clean",
        "racecheck  row_kernel: 2 findings, first: a race",
        "racecheck  failed: matmul 1x1x1-bf16: it broke",
        "racecheck  not called for want of time: matmul 9x9x9-bf16",
    ]


def test_every_spec_is_called_at_sizes_that_a_tool_can_bear():
    for spec in CATALOG:
        for workload in (*spec.workloads, *map(spec.workload, sanitizer.MORE.get(spec.name, "").split())):
            cost = spec.cost(less := sanitizer.cut(spec, workload), FORWARD)
            assert cost.bytes <= sanitizer.MOST_BYTES or less.dims[spec.dims[0]] == 1
            assert list(less.dims.items())[1:] == list(workload.dims.items())[1:]
    assert sanitizer.MORE.keys() <= {spec.name for spec in CATALOG}


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer and an NVIDIA GPU")
@pytest.mark.parametrize("name", [spec.name for spec in CATALOG])
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_nothing_is_found(tool, name):
    told, said = sanitizer.checked(tool, name, 600.0)
    assert told["ran"] and not told["failed"] and not said
