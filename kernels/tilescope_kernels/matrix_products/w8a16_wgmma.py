"""wgmma of any multiple of 16 columns with INT8 weights as its left operand, converted in registers.

Gluon's tiles are powers of two where wgmma multiplies any multiple of 8 columns. Its PTX is written out here, and an accumulator is a
tuple of tensors of 16 columns, 8 registers per thread, whose columns are in another order until ``in_order``.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilescope_kernels.matrix_products import hopper_pairs as pairs

#: Rows of weights of a warpgroup, the M of a wgmma instruction, and columns of a part of an accumulator.
ROWS, PART = gl.constexpr(64), gl.constexpr(16)


@gluon.constexpr_function
def pair_layout(columns, paired):
    """Layout of 64 rows of ``columns`` pairs of weights, as wgmma takes its left operand.

    Its result has the columns' bits in another order, which ``in_order`` corrects.
    """
    registers = [[8, 0], [0, 4], *([0, bit] for bit in (8, 16, 32) if bit < columns)]
    lanes, warps = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout(registers, lanes, warps, pairs.BOTH if paired else [], [64, columns])


@gluon.constexpr_function
def result_layout(paired):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16], pairs.BOTH if paired else [])


@gluon.constexpr_function
def _floats(count):
    return (gl.float32,) * count


@gluon.constexpr_function
def _tied(count, *more):
    """Constraints of ``count`` accumulators of 8 registers, which are read and written, and of ``more`` operands."""
    return ",".join(["=f"] * 8 * count + [str(i) for i in range(8 * count)] + list(more))


@gluon.constexpr_function
def _products(count, dtype):
    """PTX of four wgmma instructions along K, from registers and the descriptor's lower half.

    A descriptor's upper half says that groups of 8 rows are 1024 bytes apart and swizzled by 128 bytes.
    """
    kind = "f16" if dtype == gl.float16 else "bf16"
    # Register i of a part has, from its lowest bit, column and row in wgmma's order, row and column in the layout's.
    total = ", ".join(f"${8 * part + (i & 4 | (i & 1) << 1 | (i & 2) >> 1)}" for part in range(count) for i in range(8))
    first = 16 * count
    lines = [
        "{ .reg .b64 tile; .reg .b32 low, high; .reg .pred one; setp.eq.u32 one, 0, 0; mov.b32 high, 0x40000040;",
        "wgmma.fence.sync.aligned;",
    ]
    for step in range(4):
        weights = ", ".join(f"${first + 4 * step + i}" for i in range(4))
        lines += [
            f"add.u32 low, ${first + 16}, {2 * step}; mov.b64 tile, {{low, high}};",
            f"wgmma.mma_async.sync.aligned.m64n{16 * count}k16.f32.{kind}.{kind} {{{total}}}, {{{weights}}}, tile, one, 1, 1, 0;",
        ]
    return " ".join([*lines, "wgmma.commit_group.sync.aligned; }"])


@gluon.jit
def multiplied(weights, tile, totals, dtype: gl.constexpr, PAIRED: gl.constexpr):
    """Start ``totals`` + ``weights`` @ ``tile``: (64, 64) in pairs as int32, and the address of 64 columns of rows of x."""
    PARTS: gl.constexpr = len(totals)
    first, second = halves(weights, pair_layout(16, PAIRED))
    low = ((tile & 0x3FFFF) >> 4) | 0x10000
    CODE: gl.constexpr = _products(PARTS, dtype)
    CONSTRAINTS: gl.constexpr = _tied(PARTS, *["r"] * 24)
    operands = totals + (first, second, low)  # noqa: RUF005 - Triton does not unpack
    return gl.inline_asm_elementwise(CODE, CONSTRAINTS, operands, dtype=_floats(PARTS), is_pure=False, pack=8)


@gluon.jit
def waited(totals):
    """``totals`` once no products are in flight."""
    PARTS: gl.constexpr = len(totals)
    CONSTRAINTS: gl.constexpr = _tied(PARTS)
    return gl.inline_asm_elementwise(
        "wgmma.wait_group.sync.aligned 0;", CONSTRAINTS, totals, dtype=_floats(PARTS), is_pure=False, pack=8
    )


@gluon.jit
def halves(x, LAYOUT: gl.constexpr):
    """Left and right half of a matrix."""
    left, right = x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()
    return gl.convert_layout(left, LAYOUT, assert_trivial=True), gl.convert_layout(right, LAYOUT, assert_trivial=True)


@gluon.jit
def in_order(part):
    """A part of an accumulator with its columns in order."""
    return part.reshape(ROWS, 2, 2, 4).permute(0, 1, 3, 2).reshape(ROWS, PART)


@gluon.constexpr_function
def unit(dtype):
    """What weights are divided by when they are converted to ``dtype``: what a product is to be multiplied by."""
    return 512.0 if dtype == gl.float16 else 64.0


@gluon.constexpr_function
def _conversion(dtype):
    """PTX that converts two INT8 numbers.

    A byte that a zero byte precedes is, as fp16 or bf16, that many times the least subnormal number: in bf16 the upper half of bytes
    lies in the first binade of normal numbers, which are as far apart. So one fused multiply-add turns bytes, their sign bit
    inverted, into numbers: times the largest power of two, less that of byte 128. It is exact.
    """
    kind, power, less = ("f16", 0x7800, 0xB400) if dtype == gl.float16 else ("bf16", 0x7F00, 0xC000)
    return (
        "{ .reg .b32 both, wide, power, less; cvt.u32.u16 both, $1; prmt.b32 wide, both, 0, 0x4140;"
        f" xor.b32 wide, wide, 0x00800080; mov.b32 power, {power << 16 | power}; mov.b32 less, {less << 16 | less};"
        f" fma.rn.{kind}x2 $0, wide, power, less; }}"
    )


@gluon.jit
def converted(codes, dtype: gl.constexpr):
    """Convert int16, each two INT8 numbers adjacent along K, to two of ``dtype`` in int32, divided by ``unit``."""
    CODE: gl.constexpr = _conversion(dtype)
    return gl.inline_asm_elementwise(CODE, "=r,h", [codes], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def no_products(PARTS: gl.constexpr, PAIRED: gl.constexpr):
    LAYOUT: gl.constexpr = pair_layout(PART, PAIRED)
    zeros = ()
    for _ in gl.static_range(PARTS):
        zeros = zeros + (gl.zeros([ROWS, PART], gl.float32, LAYOUT),)  # noqa: RUF005 - Triton does not unpack
    return zeros


#: Bytes of a part that is sent.
SENT = gl.constexpr(128 * 8 * 4)
#: PTX that stores a thread's 8 registers of a part to address $8 of program $16, and that adds to them those at an address here.
_SEND = gl.constexpr(
    "{ .reg .b32 there; mov.u32 there, %tid.x; and.b32 there, there, 127; shl.b32 there, there, 4; add.u32 there, there, $16;"
    " mapa.shared::cluster.u32 there, there, $24; st.shared::cluster.v4.f32 [there], {$8, $9, $10, $11};"
    " st.shared::cluster.v4.f32 [there + 2048], {$12, $13, $14, $15};"
    + "".join(f" mov.u32 ${i}, 0;" for i in range(8))
    + " }"
)
_ADD = gl.constexpr(
    "{ .reg .b32 here; .reg .f32 a<8>; mov.u32 here, %tid.x; and.b32 here, here, 127; shl.b32 here, here, 4; add.u32 here, here, $16;"
    " ld.shared.v4.f32 {a0, a1, a2, a3}, [here]; ld.shared.v4.f32 {a4, a5, a6, a7}, [here + 2048];"
    + "".join(f" add.f32 ${i}, ${8 + i}, a{i};" for i in range(8))
    + " }"
)


@gluon.jit
def send(part, place, peer):
    """Store a part to ``SENT`` bytes at this address of shared memory of program ``peer`` of the cluster."""
    CONSTRAINTS: gl.constexpr = "=r,=r,=r,=r,=r,=r,=r,=r,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r"
    gl.inline_asm_elementwise(_SEND, CONSTRAINTS, [part, place, peer], dtype=gl.int32, is_pure=False, pack=8)


@gluon.jit
def added(part, place):
    """A part, and what was sent to this address."""
    CONSTRAINTS: gl.constexpr = "=&f,=&f,=&f,=&f,=&f,=&f,=&f,=&f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r"
    return gl.inline_asm_elementwise(_ADD, CONSTRAINTS, [part, place], dtype=gl.float32, is_pure=False, pack=8)
