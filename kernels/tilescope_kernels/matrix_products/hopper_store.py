"""Parts that kernels of products on Hopper share: the ring of operands, and the epilogue of a warpgroup.

A ring of stages lies in shared memory between the loading warp and the multiplying warpgroups. A stage is one step along K. It has two
mbarriers: its operands have arrived, and every warpgroup has used them. The phase of a wait is a parity that flips whenever the ring
wraps around. The epilogue writes a matrix from registers in parts, through buffers in shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

#: Rows and columns of a part: 128 bytes wide at 16 bits.
PART = gl.constexpr(64)


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    """The next stage of a ring of ``STAGES``, and its phase, without dividing a running count."""
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def halves(x, ROWS: gl.constexpr):
    """Upper and lower half of a matrix if ``ROWS``, else left and right half."""
    if ROWS:
        return x.reshape(2, x.shape[0] // 2, x.shape[1]).permute(1, 2, 0).split()
    else:
        return x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()


@gluon.jit
def store_parts(
    WHICH: gl.constexpr, x, c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n, M, N, BUFFERS: gl.constexpr, TMA: gl.constexpr,
):  # fmt: skip
    """Write a matrix in 64x64 parts through this warpgroup's buffers in turn. Returns the index of the next buffer."""
    if x.shape[0] > PART:
        upper, lower = halves(x, True)
        turn = store_parts(WHICH, upper, c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n, M, N, BUFFERS, TMA)
        start_m += x.shape[0] // 2
        turn = store_parts(WHICH, lower, c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n, M, N, BUFFERS, TMA)
    elif x.shape[1] > PART:
        left, right = halves(x, False)
        turn = store_parts(WHICH, left, c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n, M, N, BUFFERS, TMA)
        start_n += x.shape[1] // 2
        turn = store_parts(WHICH, right, c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n, M, N, BUFFERS, TMA)
    elif x.shape[1] < PART:
        # Too narrow for a buffer: store 16 bytes per thread from registers. Rounding shows the compiler the alignment.
        NARROW: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
        if TMA:
            stride_cm = stride_cm // 8 * 8
            N = N // 8 * 8
        m = start_m + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, NARROW))[:, None]
        n = start_n + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, NARROW))[None, :]
        gl.store(c_ptr + m.to(gl.int64) * stride_cm + n, gl.convert_layout(x, NARROW), mask=(m < M) & (n < N))
    else:
        ROWS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        buffer = buffers.index(turn)
        part = gl.convert_layout(x, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16]))
        if TMA:
            # Wait until the buffer has been stored. TMA clips at the edges.
            tma.store_wait(BUFFERS - 1)
            buffer.store(part)
            fence_async_shared()
            tma.async_copy_shared_to_global(c_tiles, [start_m, start_n], buffer)
        else:
            buffer.store(part)
            m = start_m + gl.arange(0, PART, layout=gl.SliceLayout(1, ROWS))[:, None]
            n = start_n + gl.arange(0, PART, layout=gl.SliceLayout(0, ROWS))[None, :]
            gl.store(c_ptr + m.to(gl.int64) * stride_cm + n, buffer.load(ROWS), mask=(m < M) & (n < N))
        turn = gl.where(turn + 1 == (WHICH + 1) * BUFFERS, WHICH * BUFFERS, turn + 1)
    return turn
