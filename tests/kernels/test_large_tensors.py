"""Launches of tensors too large for a machine without a GPU: what their kernels compute in int32 stays in its range."""

import re

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches, offline
from tilescope.execution.launches import as_tensor
from tilescope_kernels._shared.reach import slabs
from tilescope_kernels._shared.weight_gradients import sum_partials
from tilescope_kernels.matrix_products import fp8_matmul, int8_matmul, lora, w8a16_matmul
from tilescope_kernels.quantization import dequantize, quantize

from .releases import GLUON


@pytest.fixture
def caught():
    with launches.catch() as caught:
        yield caught


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("count", [kernels.histogram, kernels.histogram_naive])
def test_histogram_of_2_31_elements_is_split(caught, count):
    count(meta(2**31 - 1, dtype=torch.int32), 40)
    extents = [launch.arguments["n"] for launch in caught]
    assert sum(extents) == 2**31 - 1
    assert max(extents) < 2**31 - 8192


@pytest.mark.parametrize("elements", [2**31 - 1, 2**31 - 2047])
def test_gated_of_2_31_elements_is_split(caught, elements):
    gate = meta(1, elements)
    kernels.swiglu(gate, gate)
    torch.ops.tilescope.gated_backward(gate, gate, gate, 0, "")
    for two in (caught[:2], caught[2:]):
        extents = [launch.arguments["columns"] for launch in two]
        assert sum(extents) == elements
        assert max(extents) < 2**31 - 8192


def test_sum_partials_beyond_int32_is_split(caught):
    for outputs, programs, columns in ((1, 2**20 + 8, 2048), (2, 3, 2**30), (1, 2**21, 4096)):
        sums = sum_partials(meta(outputs, programs, columns, dtype=torch.float32), torch.bfloat16)
        assert sums.shape == (outputs, columns)
        given = [launch.arguments for launch in caught]
        assert all(each["programs"] * each["columns"] <= 2**31 for each in given)
        assert sum(each["programs"] for each in given[:-1]) == programs
        assert given[-1]["programs"] == len(given) - 1
        caught.clear()


@pytest.mark.parametrize(
    ("shape", "huge"), [((1, 2, 2**30), True), ((1, 64, 8192, 8193), True), ((2, 2, 2**29), False)]
)
def test_group_norm_beyond_int32_is_huge(caught, shape, huge):
    x, stats = meta(*shape), meta(shape[0], 2, dtype=torch.float32)
    kernels.group_norm(x, 1)
    flat = x.flatten(2)
    torch.ops.tilescope.group_norm_backward(flat, flat, 1, None, stats, False, "")
    found = {launch.name: launch.arguments["HUGE"] for launch in caught if "HUGE" in launch.arguments}
    assert found == dict.fromkeys(("group_norm_parts_kernel", "group_norm_backward_parts_kernel"), huge)


def test_slabs_split_an_axis_and_are_empty_past_its_end():
    x, y = torch.arange(10).reshape(2, 5), torch.arange(4).reshape(2, 2)
    ((same, other),) = slabs(5, x, y, axis=1)
    assert same is x and other is y
    found = [[part.tolist() for part in parts] for parts in slabs(2, x, y, axis=1)]
    assert found == [[[[0, 1], [5, 6]], [[0, 1], [2, 3]]], [[[2, 3], [7, 8]], [[], []]], [[[4], [9]], [[], []]]]


def test_rope_of_many_heads_fits_a_grid(caught):
    q, k, table = meta(1, 1_100_000, 3, 16), meta(1, 7, 3, 16), meta(1, 3, 16)
    kernels.rope(q, k, table, table)
    assert max(launch.grid[1] for launch in caught) <= 65535
    assert sum(launch.arguments["q_heads"] for launch in caught) == 1_100_000
    assert sum(launch.arguments["k_heads"] for launch in caught) == 7


def bits_of_rows(launch):
    """Bits of the integers that rows of a tile are multiplied with their strides in."""
    with offline.targeting("sm_90"):
        code = offline.compile_launch(launch).asm["ttir"]
    # Constants are named %cst: other tensors of a launch have a number of columns that is known.
    return set(re.findall(r"arith\.muli %\w+, %(?!cst)\w+ : tensor<\d+x1xi(\d+)>", code))


def test_norm_linear_reads_far_rows_in_place(caught):
    kernels.layer_norm_linear(meta(300, 34_000_001)[:, :64], None, None, meta(8, 64))
    assert caught[-1].arguments["x_stride"] == 34_000_001


def heads_of_rows(apart, batch, rows, dtype=torch.bfloat16):
    """Two heads of 64 columns (batch, 2, rows, 64), with rows ``apart``: of all batches between two rows if ``batch`` is None."""
    every = meta(rows, apart // 128, 2, 64, dtype=dtype).permute(1, 2, 0, 3)
    return every if batch is None else every[:batch]


def attend(path, apart):
    """Call attention so that it takes one of its ways, with a backward pass but in decoding."""
    if path == "ragged":
        q, k, v = (meta(300, apart // 64, 64)[:, :2].requires_grad_() for _ in range(3))
        ends = torch.empty(3, dtype=torch.int32, device="meta")
        o = kernels.ragged_attention(q, k, v, ends, ends, 300, 300, is_causal=True)
    elif path == "decode":
        q, k, v = (heads_of_rows(apart, 1, rows) for rows in (1, 600, 600))
        return kernels.scaled_dot_product_attention(q, k, v)
    else:
        dtype = torch.bfloat16 if path == "hopper" else torch.float32
        q, k, v = (heads_of_rows(apart, 1 if path == "few" else None, 300, dtype).requires_grad_() for _ in range(3))
        # Many short heads without a mask have their gradients from the Triton kernels.
        o = kernels.scaled_dot_product_attention(q, k, v, is_causal=path == "hopper")
    return o.backward(torch.empty_like(o))


@pytest.mark.parametrize(("path", "kernels_of_rows", "far"), [
    ("whole", 4, True),
    ("few", 3, True),
    ("decode", 1, True),
    ("ragged", 4, True),
    pytest.param("hopper", 2, True, marks=GLUON),
    ("whole", 4, False),
])  # fmt: skip
def test_attention_of_far_rows_has_int64_offsets(caught, path, kernels_of_rows, far):
    with offline.targeting("sm_90"):
        attend(path, 2**23 - (0 if far else 128))
    found = [launch for launch in caught if "FAR" in launch.arguments]
    assert [launch.arguments["FAR"] for launch in found] == [far] * kernels_of_rows, [launch.name for launch in found]
    if far:
        assert [bits_of_rows(launch) for launch in found] == [{"64"}] * kernels_of_rows


@pytest.mark.parametrize(("granularity", "columns"), [("block", 8), ("block", 130), ("tensor", 16)])
def test_quantize_of_many_rows_counts_blocks_in_int32(caught, granularity, columns):
    rows = 2**31 + 5
    x = meta(rows, columns + 8)[:, :columns]
    quantize.quantize(x, torch.int8, granularity)
    assert max(launch.arguments["groups"] for launch in caught) <= 2**31 - 1024
    if granularity == "block":
        # The last program of a launch also counts blocks that do not exist.
        assert sum(launch.arguments["groups"] for launch in caught) == rows * -(-columns // 128)
    else:
        assert all(launch.arguments["FLAT"] for launch in caught)


@pytest.mark.parametrize("scales", [(), (2**31 + 5, 1), (2**24 + 1, 1)])
def test_dequantize_of_many_rows_counts_blocks_in_int32(caught, scales):
    q, scale = meta(2**31 + 5, 16, dtype=torch.int8), meta(*scales, dtype=torch.float32)
    dequantize.dequantize(q, scale)
    given = [launch.arguments for launch in caught]
    assert len(given) == 2 and sum(each["groups"] for each in given) == 2**31 + 5
    assert max(each["groups"] for each in given) <= 2**31 - 1024
    assert len({(each["scale_row"], each["scale_block"], each["ROWS_A_SCALE"]) for each in given}) == 1
    if scales:
        a_scale = given[0]["ROWS_A_SCALE"]
        assert given[0]["groups"] % a_scale == 0 and [len(as_tensor(each["scale_ptr"])) for each in given] == [
            -(-each["groups"] // a_scale) for each in given
        ]


@pytest.mark.parametrize(("apart", "far"), [(2**23, True), (2**23 - 16, False)])
def test_products_of_far_rows_have_int64_offsets(caught, apart, far):
    def rows(dtype, count=300, columns=64):
        return meta(count, apart, dtype=dtype)[:, :columns]

    config = next(config for config in int8_matmul.CONFIGS if not config["TMA"])
    near = meta(64, 300, dtype=torch.int8)
    kernels.int8_matmul(rows(torch.int8), near, config=config)
    kernels.int8_matmul(near.T.contiguous(), rows(torch.int8).T, config=config)
    fp8, scale = torch.float8_e4m3fn, meta(dtype=torch.float32)
    kernels.fp8_matmul(rows(fp8), meta(300, 64, dtype=fp8).T, scale, scale, config=config)
    scales = meta(300, 1, dtype=torch.float32), meta(1, 3, dtype=torch.float32)
    config = next(config for config in fp8_matmul.BLOCK_CONFIGS if not config["TMA"])
    kernels.fp8_matmul(rows(fp8), meta(300, 64, dtype=fp8).T, *scales, config=config)
    config = next(config for config in lora.CONFIGS if not (config["TMA"] or config["INLINE"]))
    kernels.lora_linear(rows(torch.bfloat16), meta(24, 64), meta(8, 64), meta(24, 8), 1.0, config=config)
    config, scales = w8a16_matmul.NARROW, meta(300, 1, dtype=torch.float32)
    kernels.w8a16_matmul(rows(torch.bfloat16), meta(300, 64, dtype=torch.int8), scales, config=config)
    kernels.w8a16_matmul(meta(300, 64), rows(torch.int8), scales, config=config)
    found = [launch.arguments["FAR"] for launch in caught if "FAR" in launch.arguments]
    assert found == [far] * 8
