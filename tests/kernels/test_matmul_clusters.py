"""Products whose tiles a cluster shares along K: what their PTX rests on, in code compiled for sm_90, and when they are chosen."""

from __future__ import annotations

import re

import pytest
import torch
import triton
from tilescope_kernels.matrix_products import hopper_pairs, matmul_clusters, matmul_hopper, matmul_plans
from tilescope_kernels.matrix_products.matmul_clusters_tilings import CLUSTERS, Clusters, small_time
from tilescope_kernels.matrix_products.matmul_tilings import Product
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource


def compiled(tiling):
    """The kernel for row-major operands."""
    layout = matmul_clusters._layout(tiling.parts)
    types = [f"tensordesc<bf16[{rows},64],{layout!r}>" for rows in (tiling.rows, 64)]
    constants = {
        "A_COLUMNS": False, "B_COLUMNS": False, "GROUPS": tiling.groups, "ROWS": tiling.rows, "WIDE": tiling.wide, "STAGES": tiling.stages,
        "PARTS": tiling.parts, "ALIGNED": True,
    }  # fmt: skip
    names = matmul_clusters.matmul_clusters_kernel.arg_names
    signature = dict(zip(names, [*types, "*bf16", *4 * ["i32"]], strict=False)) | dict.fromkeys(constants, "constexpr")
    places = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(
        matmul_clusters.matmul_clusters_kernel, signature, places, attrs={(2,): [["tt.divisibility", 16]]}
    )
    options = {"num_warps": 4, "num_ctas": tiling.parts}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(("groups", "wide", "parts"), [(1, 64, 2), (1, 128, 4), (2, 128, 2)])
def test_ptx_addresses_what_gluon_allocates(groups, wide, parts):
    tiling = next(each for each in CLUSTERS if (each.groups, each.wide, each.parts) == (groups, wide, parts))
    kernel = compiled(tiling)
    ptx, llir = kernel.asm["ptx"], kernel.asm["llir"]
    assert f".reqnctapercluster {parts}" in ptx
    # The rings are at the start of shared memory, as their mbarriers follow them there.
    size = tiling.stages * (groups * 64 + wide) * 128
    assert "getelementptr i64, ptr addrspace(3) @global_smem, i32 %" in llir
    assert re.search(rf"getelementptr i8, ptr addrspace\(3\) %\d+, i32 {size},", llir)
    for descriptor in range(2):
        assert f".b8 matmul_clusters_kernel_param_{5 * descriptor}[128]" in ptx
        assert f"mov.b64 tiles, matmul_clusters_kernel_param_{5 * descriptor};" in ptx
    # The first thread fills the ring before the first warp meets another.
    start = ptx[: ptx.index("barrier.sync")]
    assert start.count("mov.u32 lane, %tid.x;") == groups + wide // 64 and "bar.sync" not in start
    # Of what all programs have, for all that Triton knows, it would let that of rank 0 store alone.
    assert "sreg.cluster.ctarank" not in llir and "st.global" in ptx
    # Every program reads four sums at once from each of the others.
    reads = ptx.count("ld.shared::cluster.v4.f32")
    assert reads and reads % parts == 0


def test_rings_fit_shared_memory_and_hold_the_sums():
    for tiling in CLUSTERS:
        rows = tiling.groups * tiling.rows
        assert 4 * rows * tiling.wide <= tiling.stages * (rows + tiling.wide) * 128 <= 226 * 1024
        assert tiling.stages * tiling.wide % tiling.rows == 0


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ((384, 384, 12288), (128, 64, 4)),
        ((1000, 1000, 4000), None),  # pairs of SMs are quicker
        ((512, 512, 8192), (128, 128, 4)),
        # Others are as quick: small tiles, with a split K or without, and pairs in parts.
        ((128, 1024, 8192), None),
        ((64, 2048, 8192), None),
        ((256, 256, 16384), None),
        ((256, 1000, 10000), None),
        ((300, 1000, 8000), None),
        ((1024, 1024, 1024), None),
        ((1000, 1000, 1000), None),
        ((4096, 4096, 4096), None),
        # Not timed: copied operands, results that TMA cannot write.
        ((384, 384, 12290), None),
        ((384, 388, 12288), None),
    ],
)
def test_clusters_are_chosen_for_few_tiles_and_a_long_k(monkeypatch, extents, expected):
    for module in (matmul_hopper, hopper_pairs):
        monkeypatch.setattr(module, "capability", lambda _: 90)
    m, n, k = extents
    a, b = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((m, k), (k, n)))
    chosen = matmul_plans.plan(a, b)
    found = (chosen.height, chosen.wide, chosen.parts) if isinstance(chosen, Clusters) else None
    assert found == expected


@pytest.mark.parametrize(
    ("extents", "askew", "tile", "measured"),
    [
        ((256, 1000, 10000), (False, True), (2, 128, 4), 21.8),
        ((512, 512, 8192), (False, False), (2, 128, 4), 15.9),
        ((512, 512, 8192), (False, False), (1, 64, 2), 17.5),
        ((128, 1024, 8192), (False, False), (2, 64, 4), 11.2),
        ((384, 384, 12288), (False, False), (2, 64, 4), 16.6),
        ((1000, 1000, 4000), (False, True), (2, 128, 2), 21.8),
        ((64, 2048, 8192), (False, False), (1, 128, 4), 12.6),
        ((1000, 1000, 10000), (False, False), (2, 128, 4), 62.0),
        ((512, 512, 8192), (False, False), None, 16.9),
        ((384, 384, 12288), (False, False), None, 24.3),
        ((1000, 1000, 4000), (False, True), None, 27.0),
        ((1024, 1024, 1024), (False, False), None, 6.0),
        ((256, 4096, 4096), (False, False), None, 15.4),
    ],
)
def test_estimates_are_near_what_was_measured(extents, askew, tile, measured):
    product = Product(*extents, 132, askew)
    found = small_time(product)
    if tile:
        like = next(each for each in CLUSTERS if (each.groups, each.wide, each.parts) == tile)
        found = like.time(product)
    assert found == pytest.approx(measured, rel=0.11)
