"""Elementwise kernels, softmax and matmul in Triton's interpreter (fp32: it computes bf16 wrongly) against fp64 references."""

import torch
import triton
import triton.language as tl
from interpreted import INF, NAN, SPECS, against_reference, close, draw
from tilescope_kernels import add_relu_mul, matmul, softmax, vector_add
from tilescope_kernels._shared.row_tiles import narrow
from tilescope_kernels.matrix_products import matmul as matmul_module


def check_softmax_longer_than_registers():
    against_reference("softmax", "2x40000-fp32")
    against_reference("softmax", "2x9000-fp32")
    # Rows start at every distance from 16 bytes: in pieces, and read twice.
    for shape in ("5x601-fp32", "5x9001-fp32", "9x16387-fp16", "5x13001-fp32", "9x33003-fp16"):
        against_reference("softmax", shape)
    wide = draw(4, 9003)
    for x in (wide[:, 1:9001], wide[:, 2:]):  # x and y do not start alike
        close(softmax(x), torch.softmax(x.double(), -1))
    for x in map(special, (6, 9001, 13001, 40000)):  # one read, in pieces, read twice, online
        close(softmax(x), torch.softmax(x.double(), -1))


def check_waiting_in_16_bits_changes_no_bit():
    # NaN and infinities, signs of zero and denormal numbers among them.
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    copied = torch.empty_like(every)
    _narrow_copy[(1,)](copied, every, every.numel(), BLOCK=every.numel())
    assert torch.equal(copied.view(torch.int16), every.view(torch.int16))


@triton.jit
def _narrow_copy(y_ptr, x_ptr, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    tl.store(y_ptr + column, narrow(tl.load(x_ptr + column), columns))


def special(columns):
    x = draw(10, columns)
    x[0] = -INF
    x[1, 1] = NAN
    x[2, 2] = INF
    x[3, ::2] = -INF
    x[4] = torch.finfo(torch.float32).min
    x[5] = 3e38
    x[6, : columns - 1] = -INF
    x[7, :5] = -INF
    x[8] = torch.finfo(torch.float32).min
    x[8, 0] = 0.0
    x[9, : columns // 2] = -INF
    x[9, columns // 2 :] -= 1000.0
    return x


def check_matmul():
    tiles = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 2}
    small = {**tiles, "TMA": 0, "SPECIALIZE": 0, "num_warps": 4, "num_stages": 2}
    for extents in ("64x64x64", "65x33x70", "1x1x1", "130x17x96"):
        against_reference("matmul", f"{extents}-fp32", config=small)
    against_reference("matmul", "70x90x100-fp32")
    for config in [c for c in SPECS["matmul"].implementations["triton"].configs if not c["TMA"]][::12]:
        against_reference("matmul", "130x140x70-fp32", config=config)


def check_matmul_through_descriptors():
    # fp16, which descriptors serve and the interpreter computes rightly; tiles walk over by a persistent grid.
    launched = matmul_module.multiprocessors
    matmul_module.multiprocessors = lambda tensor: 2
    try:
        for config in [c for c in SPECS["matmul"].implementations["triton"].configs if c["TMA"]][::6]:
            a, b = draw(304, 72).half(), draw(72, 264, seed=1).half()
            for one in (a, a.T.contiguous().T):
                for other in (b, b.T.contiguous().T):
                    close(matmul(one, other, config=config), a.double() @ b.double(), 1e-3)
    finally:
        matmul_module.multiprocessors = launched


def check_matmul_of_rows_and_columns_far_apart():
    # Within a tile offsets pass 2^31. Of 4 GB and more of address space only the pages of these elements are touched.
    apart = 2**31 // 40
    a = torch.empty(63 * apart + 5, dtype=torch.float16).as_strided((64, 5), (apart, 1))
    b = torch.empty(63 * apart + 3, dtype=torch.float16).as_strided((64, 3), (apart, 1))
    a.copy_(draw(64, 5))
    b.copy_(draw(64, 3, seed=1))
    close(matmul(a, b[:5]), a.double() @ b[:5].double(), 1e-3)
    close(matmul(a.T, b), a.T.double() @ b.double(), 1e-3)
    close(matmul(b.T, a), b.T.double() @ a.double(), 1e-3)


def check_special_values_of_elementwise():
    x = torch.tensor([NAN, INF, -INF, -0.0, 1.0, -1.0])
    y = torch.tensor([1.0, 1.0, 1.0, 0.0, NAN, -1.0])
    close(vector_add(x, y), x + y)
    close(add_relu_mul(x, y, -2.0), torch.relu(x + y) * -2.0)


def check_non_contiguous_elementwise():
    x, y = draw(40, 30).T, draw(30, 80)[:, ::2]
    close(vector_add(x, y), x.double() + y.double())
    close(add_relu_mul(x, y, 0.5), torch.relu(x.double() + y.double()) * 0.5)


def check_empty():
    for shape in ((0,), (0, 5), (3, 0)):
        x = torch.empty(shape)
        assert vector_add(x, x).shape == shape
        assert add_relu_mul(x, x, 2.0).shape == shape
        assert softmax(x).shape == shape
    assert matmul(torch.empty(0, 5), torch.empty(5, 3)).shape == (0, 3)
    assert torch.equal(matmul(torch.empty(2, 0), torch.empty(0, 3)), torch.zeros(2, 3))
