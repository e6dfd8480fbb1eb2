"""Products of a warpgroup on Hopper into tiles of any width: wgmma in PTX, because tensors of Triton have powers of two as extents.

Sums of 64 rows are tensors of 64 x ``piece(WIDTH)`` elements beside each other, whose registers follow each other in one wgmma.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tilescope_kernels.matrix_products import matmul_tilings

#: Bytes of 64 rows of a step in shared memory, in either order.
_ROWS_64 = gl.constexpr(64 * 128)
#: Of a descriptor: the distance between boxes of 64 lines, and the half with that between 8 lines and the swizzle's code, 1.
_BOX, _HIGH = 64 * 128 // 16, 8 * 128 // 16 + (1 << 30)


#: Columns of a tensor of sums of so many columns.
piece = gluon.constexpr_function(matmul_tilings.piece)


@gluon.constexpr_function
def _products_code(width, dtype, a_across, b_across):
    """PTX of sums += a @ b along a step of K, in four instructions. Operands of the sums are followed by those of the two addresses.

    Operands lie in shared memory with the 128-byte swizzle: contiguous along K, so that 16 elements of it are 32 bytes, or ``across``
    it in boxes of 64, so that they are 16 lines of 128 bytes. An operand's descriptor has its address, the distances between boxes
    and between 8 lines, all in 16 bytes, and the swizzle's code (PTX ISA 8.8, 9.7.15.5.1).
    """
    count, copies = width // 2, piece(width) // 2
    sums = "{" + ", ".join(f"${i}" for i in range(count)) + "}"
    a, b = f"${2 * count}", f"${2 * count + copies}"
    kind = "bf16" if dtype == gl.bfloat16 else "f16"
    code = "{ .reg .b32 low, high; .reg .b64 a, b; .reg .pred add; setp.eq.u32 add, 0, 0; wgmma.fence.sync.aligned;"
    for i in range(4):
        for name, place, across in (("a", a, a_across), ("b", b, b_across)):
            low = (_BOX << 16) + 128 * i if across else 2 * i
            code += f" bfe.u32 low, {place}, 4, 14; add.u32 low, low, {low}; mov.b32 high, {_HIGH}; mov.b64 {name}, {{low, high}};"
        code += f" wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} {sums}, a, b, add, 1, 1, {int(a_across)}, {int(b_across)};"
    return code + " wgmma.commit_group.sync.aligned; }"


@gluon.constexpr_function
def _constraints(tensors, width, addresses):
    """Registers of so many tensors as results and operands, and of addresses, which are the same for all elements of a thread."""
    each = piece(width) // 2
    count = tensors * each
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + ["r"] * (addresses * each))


@gluon.constexpr_function
def layout(columns):
    """How a warpgroup's registers hold 64 rows of a product, for programs in pairs."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16], [[0, 0]])


@gluon.constexpr_function
def _wait_code(left):
    return f"wgmma.wait_group.sync.aligned {left};"


@gluon.constexpr_function
def _floats(tensors):
    return (gl.float32,) * tensors


@gluon.jit
def zeros(ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Sums of ``ROWS`` rows, a multiple of 64, of ``WIDTH`` columns: those of the first 64 rows come first."""
    LAYOUT: gl.constexpr = layout(piece(WIDTH))
    one = (gl.zeros([64, piece(WIDTH)], gl.float32, LAYOUT),)
    sums = one
    for _ in gl.static_range(ROWS // 64 * (WIDTH // piece(WIDTH)) - 1):
        sums = sums + one
    return sums


@gluon.jit
def _products(sums, a, b, WIDTH: gl.constexpr, DTYPE: gl.constexpr, A_ACROSS: gl.constexpr, B_ACROSS: gl.constexpr):
    TENSORS: gl.constexpr = WIDTH // piece(WIDTH)
    addresses = (a, b)
    return gl.inline_asm_elementwise(
        _products_code(WIDTH, DTYPE, A_ACROSS, B_ACROSS), _constraints(TENSORS, WIDTH, 2), sums + addresses, dtype=_floats(TENSORS),
        is_pure=False, pack=piece(WIDTH) // 2,
    )  # fmt: skip


@gluon.jit
def products(
    sums, a, b, ROWS: gl.constexpr, WIDTH: gl.constexpr, DTYPE: gl.constexpr, A_ACROSS: gl.constexpr, B_ACROSS: gl.constexpr
):  # fmt: skip
    """Begin to add a @ b of a step to sums. ``a`` and ``b``: addresses in shared memory."""
    TENSORS: gl.constexpr = WIDTH // piece(WIDTH)
    new = _products(sums[:TENSORS], a, b, WIDTH, DTYPE, A_ACROSS, B_ACROSS)
    for i in gl.static_range(1, ROWS // 64):
        new = new + _products(
            sums[i * TENSORS : (i + 1) * TENSORS], a + i * _ROWS_64, b, WIDTH, DTYPE, A_ACROSS, B_ACROSS
        )
    return new


@gluon.jit
def wait(sums, ROWS: gl.constexpr, WIDTH: gl.constexpr, LEFT: gl.constexpr):
    """Wait until all but the last ``LEFT`` steps have been added."""
    TENSORS: gl.constexpr = ROWS // 64 * (WIDTH // piece(WIDTH))
    return gl.inline_asm_elementwise(
        _wait_code(LEFT * (ROWS // 64)), _constraints(TENSORS, WIDTH, 0), sums, dtype=_floats(TENSORS), is_pure=False,
        pack=piece(WIDTH) // 2,
    )  # fmt: skip
