"""Pairs of programs on Hopper, clusters of two that load for each other: what Gluon of triton 3.6 lacks, in PTX.

Gluon launches clusters (``num_ctas`` 2) but has no multicast, no arrival at another program's mbarrier, and no address of shared
memory. A kernel must keep what PTX addresses in one allocation, its largest: Triton puts it at the start. Every layout says that
both programs have all of a matrix (``BOTH``): what differs between them is known to PTX only.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from tilescope_kernels.matrix_products.matmul_tilings import BLOCK_K, KNOWN

#: Elements of a step along K, bytes of a row of it, and of 64 rows.
STEP, LINE, _BOX = gl.constexpr(BLOCK_K), gl.constexpr(2 * BLOCK_K), gl.constexpr(64 * 2 * BLOCK_K)
#: How the programs divide a matrix: not at all.
BOTH = [[0, 0]]
#: Layouts in shared memory: of 16 bits, of mbarriers. Other versions of Triton may describe them differently.
SHARED = gl.constexpr(KNOWN and gl.NVMMASharedLayout(128, 16, 2, False, False, BOTH))
BARRIERS = gl.constexpr(KNOWN and mbarrier.MBarrierLayout([[0]]))


def load_code(kernel: str, descriptor: int, shared: bool) -> gl.constexpr:
    """PTX with which one thread loads a box to address $1, from column $2 and row $3, announced at mbarrier $4.

    If ``shared``, the box and its announcement go to both programs. ``descriptor``: the place among the kernel's descriptors, which
    are its first parameters. Each has five in PTX, with shape and strides.
    """
    both, programs = (".multicast::cluster", ", programs") if shared else ("", "")
    return gl.constexpr(
        "{ .reg .pred one; .reg .b64 tiles; .reg .b32 lane; .reg .b16 programs; mov.b16 programs, 3;"
        f" mov.u32 lane, %laneid; setp.eq.u32 one, lane, 0; mov.b64 tiles, {kernel}_param_{5 * descriptor}; cvta.param.u64 tiles, tiles;"
        f" @one cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{both}"
        f" [$1], [tiles, {{$2, $3}}], [$4]{programs}; mov.u32 $0, 0; }}"
    )


#: PTX of an arrival per warp at mbarrier $1 of program $2, if $3.
_ARRIVE = gl.constexpr(
    "{ .reg .pred one; .reg .b32 lane, there; mov.u32 lane, %laneid; setp.eq.u32 one, lane, 0; setp.ne.and.u32 one, $3, 0, one;"
    " mapa.shared::cluster.u32 there, $1, $2; @one mbarrier.arrive.shared::cluster.b64 _, [there]; mov.u32 $0, 0; }"
)


@gluon.jit
def _ptx(CODE: gl.constexpr):
    return gl.inline_asm_elementwise(CODE, "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def rank():
    """Place of this program in its cluster: in a pair 0 or 1."""
    return _ptx("mov.u32 $0, %cluster_ctarank;")


@gluon.jit
def shared_memory():
    """Address of the start of shared memory, where the largest allocation lies."""
    return _ptx("mov.u32 $0, global_smem;")


@gluon.jit
def publish_barriers():
    """Make initialized mbarriers visible to the other program once both have met."""
    _ptx("fence.mbarrier_init.release.cluster; mov.u32 $0, 0;")


@gluon.jit
def come():
    """Begin a meeting of all threads of both programs, which ``wait`` ends: every warp must take part equally often."""
    _ptx("barrier.cluster.arrive.release; mov.u32 $0, 0;")


@gluon.jit
def wait():
    """Wait until all threads of both programs have come."""
    _ptx("barrier.cluster.wait.acquire; mov.u32 $0, 0;")


@gluon.jit
def meet():
    """Wait for all threads of both programs: every warp must call it equally often."""
    _ptx("barrier.cluster.arrive.release; barrier.cluster.wait.acquire; mov.u32 $0, 0;")


@gluon.jit
def idle():
    """What a warp does that has nothing to do between two meetings."""
    meet()
    meet()


@gluon.jit
def load(CODE: gl.constexpr, place, column, row, arrived):
    """Load a box as ``load_code`` says."""
    gl.inline_asm_elementwise(CODE, "=r,r,r,r,r", [place, column, row, arrived], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def box(extent, halved):
    """Rows of a, or columns of b, of a load along K: a power of two, at most half of those that two programs share."""
    return min(extent & -extent, 256, extent // 2 if halved else extent)


@gluon.constexpr_function
def loaded(width, along_k):
    """Columns of b that ``fetch`` loads for so many: whole boxes where b is not contiguous along K."""
    return width if along_k else (width + 63) // 64 * 64


@gluon.jit
def _load_last(CODE: gl.constexpr, ring, k, across, arrived, rank, EXTENT: gl.constexpr, BOX: gl.constexpr):
    """Load the last box, by the first program alone."""
    if rank == 0:
        load(CODE, ring + (EXTENT - BOX) * LINE, k, across + (EXTENT - BOX), arrived)


@gluon.jit
def fetch(
    ALONE: gl.constexpr, SHARED: gl.constexpr, ring, across, k, arrived, rank, HALVED: gl.constexpr, EXTENT: gl.constexpr, ALONG_K: gl.constexpr,
):  # fmt: skip
    """Load ``EXTENT`` rows of a or columns of b of a step to address ``ring``; if ``HALVED``, this program's half, to both programs.

    ``ALONG_K``: the matrix is contiguous along K, as its boxes are. Others are ``EXTENT / 64`` boxes beside each other (``loaded``).
    """
    CODE: gl.constexpr = SHARED if HALVED else ALONE
    PARTS: gl.constexpr = 2 if HALVED else 1
    part = rank if HALVED else gl.to_tensor(0)
    if ALONG_K:
        # The programs take turns. Of an odd number of boxes the first loads one more.
        BOX: gl.constexpr = box(EXTENT, HALVED)
        BOXES: gl.constexpr = EXTENT // BOX
        for i in gl.static_range(BOXES // PARTS):
            first = (i * PARTS + part) * BOX
            load(CODE, ring + first * LINE, k, across + first, arrived)
        if BOXES % PARTS > 0:
            _load_last(CODE, ring, k, across, arrived, rank, EXTENT, BOX)
    else:
        DEEP: gl.constexpr = STEP // PARTS
        for i in gl.static_range(EXTENT // 64):
            load(CODE, ring + i * _BOX + part * (DEEP * LINE), across + i * 64, k + part * DEEP, arrived)


@gluon.jit
def arrive_at_both(barrier, rank, valid):
    """Arrive once per warp at the mbarrier with this address, of both programs, if ``valid`` is not 0."""
    gl.inline_asm_elementwise(_ARRIVE, "=r,r,r,r", [barrier, rank, valid], dtype=gl.int32, is_pure=False, pack=1)
    gl.inline_asm_elementwise(_ARRIVE, "=r,r,r,r", [barrier, rank ^ 1, valid], dtype=gl.int32, is_pure=False, pack=1)
