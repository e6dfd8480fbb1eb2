"""INT8 weights converted to 16 bits in registers, and sums stored in parts, for products on Hopper of 16-bit rows and INT8 weights."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: Warpgroups that share a tile of weights, and rows of weights of each, the M of a wgmma instruction.
GROUPS, ROWS = gl.constexpr(2), gl.constexpr(64)
#: Elements of a step along K: 128 bytes of x.
BLOCK_K = gl.constexpr(64)
#: Rows of tiles that are visited together, so that their operands stay in L2.
GROUP_N = gl.constexpr(16)


@gluon.jit
def converted(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Convert ``pairs`` (ROWS, BLOCK_K / 2) int16, each two INT8 numbers adjacent along K, to (ROWS, BLOCK_K) of ``dtype``.

    An INT8's bits become the mantissa of a power of two, which is then subtracted. Both steps are exact.
    """
    if dtype == gl.float16:
        both = gl.inline_asm_elementwise(
            """
            {
            .reg .b32 pair, wide, unsigned, zero;
            cvt.u32.u16 pair, $1;
            mov.b32 zero, 0x64806480;
            prmt.b32 wide, pair, 0x64, 0x4140;
            xor.b32 unsigned, wide, 0x00800080;
            sub.f16x2 $0, unsigned, zero;
            }
            """,
            "=r,h", [pairs], dtype=gl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        # A bf16 mantissa has room for the lower seven bits; the sign bit makes the power of two 128 or 256.
        gl.static_assert(dtype == gl.bfloat16)
        both = gl.inline_asm_elementwise(
            """
            {
            .reg .b32 pair, wide, bits, power;
            cvt.u32.u16 pair, $1;
            prmt.b32 wide, pair, 0x43, 0x4140;
            and.b32 bits, wide, 0xff7fff7f;
            and.b32 power, wide, 0xff80ff80;
            sub.bf16x2 $0, bits, power;
            }
            """,
            "=r,h", [pairs], dtype=gl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    first = both.to(gl.int16).to(dtype, bitcast=True)
    second = (both >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(first, second).reshape(ROWS, BLOCK_K), LAYOUT, assert_trivial=True)


@gluon.jit
def store_part(total, part_ptr, N, rows, columns):
    """Store a part of a tile, transposed, 32 rows at a time: addresses of all rows at once do not fit in registers."""
    WIDE: gl.constexpr = total.shape[1]
    if WIDE > 32:
        first, second = total.reshape(ROWS, 2, WIDE // 2).permute(0, 2, 1).split()
        store_part(first, part_ptr, N, rows, columns)
        store_part(second, part_ptr + WIDE // 2 * N, N, rows - WIDE // 2, columns)
    else:
        LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
        n = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
        m = gl.arange(0, WIDE, layout=gl.SliceLayout(0, LAYOUT))[None, :]
        gl.store(part_ptr + m * N + n, gl.convert_layout(total, LAYOUT), mask=(m < rows) & (n < columns))
