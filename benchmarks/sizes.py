"""Kernels of the library beside the quickest of their peers at sizes that no recording has: ``python benchmarks/sizes.py [SPEC ...]``,
on a GPU.

Each size is profiled as ``tilescope profile`` does: results are checked, and times are the kernels' durations with a cold L2 and
rotated inputs. Printed is a Markdown table, worst first: microseconds of ours, the ratio to the quickest peer with right results and its 95 %
interval, and the share of the roof. Progress goes to standard error: the rows of each kernel as they come, and what failed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import tilescope
from tilescope.models import claims
from tilescope_kernels.spec import FORWARD

#: By spec, the peers that could be the quickest, and workloads: skinny, ragged, wide and tiny ones beside plain ones.
SIZES = {
    "softmax": ("aten liger compile", "2048x65536-bf16 3000x50257-bf16 256x4096-bf16 4000x12289-bf16"),
    "layer_norm": (
        "aten compile",
        "2048x65536-bf16 16384x5120-bf16 256x4096-bf16 1000x12289-bf16 20000x2051-bf16 4000x4097-bf16",
    ),
    "rms_norm": ("aten liger compile", "2048x65536-bf16 16384x5120-bf16 256x4096-bf16 1000x12289-bf16"),
    "add_rms_norm": ("liger compile", "2048x20480-bf16 16384x5120-bf16 256x4096-bf16"),
    "group_norm": ("aten", "4x32x20x1024-bf16 2x32x4x65536-bf16 32x32x8x784-bf16 3x5x7x1000-fp16"),
    "cross_entropy": ("aten liger", "8192x50257-bf16 4096x128256-bf16 300x32000-fp32 4096x32001-bf16"),
    "linear_cross_entropy": (
        "liger compile",
        "8192x4096x128256-bf16 4096x2048x50257-bf16 4096x2048x32001-fp16 4096x2048x50257-fp32",
    ),
    "matmul": (
        "eager compile",
        "4096x4096x4096-bf16 8192x8192x8192-bf16 16384x4096x14336-bf16 1024x1024x1024-bf16 128x4096x4096-bf16"
        " 16x8192x8192-bf16 4097x4099x4101-bf16 3000x3000x3000-bf16 1800x1800x1800-bf16 5000x1000x5000-bf16"
        " 2560x2560x2560-bf16 300x300x300-fp16 10000x1000x1000-bf16 2048x1000x2048-bf16 2200x3400x1704-bf16"
        " 1000x1000x1000-bf16 1504x1504x1504-bf16 1000x1000x4000-bf16 512x512x8192-bf16 384x384x12288-bf16"
        " 256x1000x10000-bf16 256x256x16384-bf16 4008x4008x4008-bf16",
    ),
    "fp8_matmul": (
        "cublas",
        "1024x1024x1024-fp8 2048x2048x2048-fp8 128x4096x4096-fp8 16x8192x8192-fp8 32x4096x4096-fp8 3072x3072x3072-fp8"
        " 4096x4096x4096-fp8",
    ),
    "fp8_matmul_blocks": (
        "cublas",
        "4096x4096x4096-fp8 1536x1536x1536-fp8 256x7168x2048-fp8 1280x1280x4096-fp8 1024x4096x4096-fp8",
    ),
    "int8_matmul": ("cublas", "128x4096x4096-int8 1023x520x776-int8 3072x3072x3072-int8"),
    "w8a16_matmul": (
        "cublas",
        "384x4096x4096-bf16 320x4096x4096-bf16 1024x14336x4096-bf16 16x8192x8192-bf16 1000x1001x1003-fp16 160x4096x4096-bf16"
        " 512x4096x4096-bf16 640x4096x4096-bf16 320x4096x14336-bf16 300x4104x3008-fp16",
    ),
    "lora_linear": (
        "eager compile",
        "4096x4096x4096x16-bf16 1000x1001x1003x24-fp16 37x1001x1003x24-fp16 513x4097x1025x64-bf16 16x8193x8193x16-bf16",
    ),
    "fp8_tensor": ("compile", "16384x4096-bf16 5000x1000-bf16 1823x781-fp32"),
    "attention": (
        "cudnn fa2",
        "8x16x1x2048x2048x64-bf16 8x16x1x2048x2048x128-bf16 2x8x4x1000x1000x128-bf16 32x8x4x1x8192x128-bf16"
        " 1x12x1x1024x1024x64-bf16 1x3x2x517x769x64-fp16 2x16x1x2048x2048x96-bf16 1x8x4x1000x1500x80-bf16"
        " 2x16x1x2048x2048x88-bf16",
    ),
    "causal_attention": (
        "cudnn fa2",
        "8x16x1x2048x2048x64-bf16 4x8x4x4096x4096x128-bf16 1x3x2x781x781x64-fp16 1x4x4x512x512x128-bf16"
        " 1x8x4x1000x1500x80-bf16 1x16x1x1024x1024x64-bf16",
    ),
    "ragged_attention": ("cudnn fa2", "16x16x1x4096x64-bf16 32x8x4x2048x128-bf16 100x16x1x333x96-fp16"),
    "paged_attention": ("aten compile", "64x8x8x1x4096x64x128-bf16 4x8x4x1x30000x16x64-bf16 8x2x3x2x517x24x96-fp16"),
    "conv2d": (
        "eager compile",
        "16x64x56x56x64x3-bf16 8x512x14x14x512x3-bf16 4x512x7x7x512x3-bf16 16x512x7x7x512x3-bf16 1x2048x7x7x2048x3-bf16 3x72x37x29x95x5-fp16",
    ),
    "depthwise_conv2d": (
        "eager compile",
        "32x32x112x112x3x1-bf16 32x144x56x56x3x2-bf16 16x1152x14x14x5x1-bf16 8x96x56x56x7x1-bf16 3x73x37x29x5x2-fp32",
    ),
    "rope": ("liger compile", "2x32x8x4096x128-bf16 3x7x3x781x80-fp32 2x12x4x777x96-bf16"),
    "swiglu": ("liger compile", "16384x11008-bf16 100x1000-bf16"),
    "geglu": ("liger compile", "16384x11008-bf16 100x1000-bf16"),
    "gelu": ("aten compile", "50000000-bf16 100000-bf16"),
}


def measured(name: str, runs: str) -> list[dict[str, Any]]:
    """A row for each of the spec's sizes and passes that all went well at: what ``claims.of_run`` says, and in ``peer`` the column of
    the quickest peer.
    """
    peers, workloads = SIZES[name]
    result = tilescope.profile_kernels(
        name,
        workloads=workloads.split(),
        implementations=["triton", *peers.split()],
        collectors=["check", "torch_profiler"],
        runs_dir=runs,
        repetitions=20,
        on_event=lambda event: None,
    )
    for failure in result.failures:
        print(f"{failure.case}, {failure.collector}: {failure.message}", file=sys.stderr)
    rows = claims.of_run(result)
    for row in rows:
        timed = [peer for peer in claims.OVER if row[f"over_{peer}"] > 0]
        row["peer"] = min(timed, key=lambda peer: row[f"over_{peer}"], default="")
    return [row for row in rows if row["peer"]]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Markdown, worst first."""
    lines = [
        "| kernel | size | ours, µs | peer | peer's time over ours | of roofline |",
        "|---|---|---:|---|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: float(row[f"over_{row['peer']}"])):
        name = row["kernel"] + ("" if row["pass"] == FORWARD else f", {row['pass']}")
        peer = row["peer"]
        ratio, low, high = (row[f"{what}_{peer}"] for what in ("over", "low", "high"))
        took, called = row["floor"] / row["of_roof"] * 1e6, row["library"] if peer == "library" else peer
        lines.append(
            f"| {name} | {row['workload']} | {took:.1f} | {called} | {ratio:.2f} ({low:.2f} to {high:.2f}) "
            f"| {row['of_roof']:.0%} {row['roof']} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", metavar="SPEC", help=f"default: all of {', '.join(SIZES)}")
    asked = parser.parse_args().specs or list(SIZES)
    if unknown := set(asked) - set(SIZES):
        parser.error(f"no sizes are given for {', '.join(sorted(unknown))}")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as runs, contextlib.suppress(KeyboardInterrupt):
        for name in asked:
            found += (rows := measured(name, runs))
            print(table(rows), file=sys.stderr, flush=True)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
