"""Which kernel, tile or grid launchers choose by extents: on Hopper, for few tiles, beyond what 32 bits reach."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches, offline
from tilescope_kernels.attention import attention_configs, hopper_backward, hopper_few, hopper_gradients
from tilescope_kernels.attention import hopper as hopper_kernel
from tilescope_kernels.attention.decode import _span
from tilescope_kernels.attention.paged import _spans

from .releases import GLUON


@pytest.fixture(autouse=True)
def hopper():
    with offline.targeting("sm_90"):
        yield


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def launched(call, *args, **options):
    """The launches of a call, which are not made."""
    with launches.catch() as seen:
        call(*args, **options)
    return seen


def test_attention_config_depends_on_the_number_of_tiles():
    def chosen(causal, *shape):
        config = attention_configs.chosen_config(meta(*shape).half(), causal, "", False, True)
        return config["BLOCK_M"] if config["SPECIALIZED"] else 0

    # Queries of a program: 64 that two warpgroups share, 128, 192 of three warpgroups; 0 is a Triton kernel.
    assert chosen(True, 1, 16, 1024, 64) == chosen(True, 4, 16, 2048, 64) == chosen(False, 1, 8, 1024, 40) == 64
    assert chosen(True, 8, 16, 2048, 64) == chosen(True, 1, 32, 16384, 64) == 192
    assert chosen(False, 1, 32, 1024, 64) == chosen(True, 1, 2, 128, 64) == chosen(True, 1, 16, 1024, 32) == 0
    assert chosen(False, 2, 16, 2048, 128) == chosen(True, 2, 16, 2048, 128) == 128
    # Short heads: many waves of them.
    assert chosen(True, 16, 12, 1024, 64) == chosen(False, 64, 16, 197, 64) == 128
    # More than 64 columns: few tiles of many queries under a causal mask.
    assert chosen(True, 1, 16, 512, 128) == chosen(True, 2, 8, 512, 96) == 64
    assert chosen(False, 1, 16, 512, 128) == chosen(True, 1, 4, 512, 128) == chosen(True, 1, 8, 512, 256) == 0


def test_attention_configs_know_the_queries_of_programs():
    kernels = hopper_kernel.QUERIES, hopper_kernel.MORE_QUERIES, hopper_few.SHARED_QUERIES, hopper_backward.PROGRAM
    known = attention_configs
    assert [each.value for each in kernels] == [known.QUERIES, known.MORE_QUERIES, known.SHARED_QUERIES, known.QUERIES]


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        pytest.param(1.0, "attention_hopper_kernel", marks=GLUON),
        (0.0, "attention_kernel"),
        (1e-40, "attention_kernel"),
    ],
)
def test_attention_scale_of_zero_is_left_to_triton(scale, name):
    q = meta(2, 16, 2048, 128)
    assert [
        launch.name for launch in launched(kernels.scaled_dot_product_attention, q, q, q, is_causal=True, scale=scale)
    ] == [name]


def test_attention_backward_shares_few_or_unequal_tiles():
    def shares(causal, *extents):
        batch, kv_heads, group, queries, keys, columns = extents
        q, k = meta(batch, kv_heads * group, queries, columns), meta(batch, kv_heads, keys, columns)
        return hopper_gradients.shares(q, k, causal)

    # 32 tiles for 132 multiprocessors; 96, of which the first have much more to do than the last.
    assert shares(False, 1, 2, 8, 2048, 2048, 128) == 4
    assert shares(True, 1, 8, 4, 1000, 1500, 80) == 3
    # Enough tiles; a whole wave of them; shares would be too short.
    assert shares(True, 8, 16, 1, 2048, 2048, 64) == shares(False, 1, 16, 1, 1024, 1024, 64) == 1
    assert shares(False, 1, 1, 1, 200, 2048, 128) == 1


@pytest.mark.parametrize("units", [1, 100, 264, 1000])
@pytest.mark.parametrize("keys", [513, 8192, 100_000])
def test_decode_spans_fill_the_multiprocessors(units, keys):
    span = _span(units, keys, 64, 264)
    splits = -(-keys // span)
    assert span % 64 == 0 and 1 <= splits <= 64 and (splits - 1) * span < keys
    # Either keys run out, or the last wave of programs leaves at most two fifths of the multiprocessors' time unused.
    waves = -(-units * splits // 264)
    assert span <= 128 or splits >= 63 or units * splits / (waves * 264) >= 0.6


def test_paged_long_sequences_have_spans_to_spare():
    assert _spans(32, 256, 8192, 64, 132) == _spans(64, 512, 4096, 64, 132) == 4
    # Not where they are short, nor where there are programs enough, nor where there is one sequence, which is cut for itself.
    assert _spans(32, 256, 1000, 64, 132) == _spans(1, 256, 8192, 64, 132) == 1
    assert 32 <= _spans(1, 8, 65536, 64, 132) <= 64 and _spans(2, 2, 10**6, 64, 132) == 64


@pytest.mark.parametrize(("rows", "is_copied"), [(2**20, True), (2**19 - 1, False)])
def test_paged_queries_with_far_heads_are_copied(rows, is_copied):
    """The last queries of 32 heads: the 16th head is 2^31 elements from the first, or not quite."""
    cache, table = meta(9, 16, 8, 128), meta(1, 4, dtype=torch.int32)
    q = meta(1, 32, rows, 128)[:, :, -4:]
    first, *_ = launched(kernels.paged_attention, q, cache, cache, table, table[0, :1], is_causal=True)
    assert any(value is q for value in first.args) != is_copied


def test_conv2d_of_more_pixels_than_int32_counts_is_parted():
    for channels, groups in ((1, 1), (4, 2)):
        x, w = (
            meta(5, channels, 2**15, 2**15, dtype=torch.float32),
            meta(channels, channels // groups, 3, 3, dtype=torch.float32),
        )
        seen = launched(kernels.conv2d, x.to(memory_format=torch.channels_last), w, padding=1, groups=groups)
        assert len(seen) == 5 and len({launch.grid for launch in seen}) == 1
    with pytest.raises(ValueError, match="input gives images of 65536x32768: give parts"):
        launched(
            kernels.conv2d,
            meta(1, 1, 2**16, 2**15, dtype=torch.float32),
            meta(1, 1, 3, 3, dtype=torch.float32),
            padding=1,
        )


def test_depthwise_strides_beyond_int32_are_not_divided():
    """By what channels a thread loads at once: the kernel would multiply the quotient in 32 bits."""
    for height, unit in ((8191, 8), (8192, 1)):
        x = meta(2, height, 4096, 64).permute(0, 3, 1, 2)
        (launch,) = launched(kernels.conv2d, x, meta(64, 1, 3, 3), padding=1, groups=64)
        assert launch.constants["UNIT"] == unit


def compiled_conv2d(channels, own, kernel, *, last=True, dtype=torch.bfloat16):
    x = meta(8, channels, 28, 28, dtype=dtype).to(
        memory_format=torch.channels_last if last else torch.contiguous_format
    )
    weight = meta(channels, own, kernel, kernel, dtype=dtype)
    seen = launched(kernels.conv2d, x, weight, meta(channels, dtype=dtype), 1, kernel // 2, 1, channels // own)
    for launch in seen:
        made = offline.compile_launch(launch)
        made._init_handles()
        yield made


@pytest.mark.parametrize(
    ("channels", "own", "kernel", "options"),
    [(96, 1, 5, {}), (96, 1, 7, {"last": False}), (128, 4, 3, {}), (256, 64, 3, {"dtype": torch.float32})],
)
def test_grouped_conv2d_spills_no_registers(channels, own, kernel, options):
    assert all(made.n_spills == 0 for made in compiled_conv2d(channels, own, kernel, **options))


def test_quantize_more_tiles_than_a_grid_axis_has():
    seen = launched(kernels.quantize, meta(65535 * 128 + 1, 2), torch.int8, "tile")
    assert [launch.grid[:2] for launch in seen] == [(1, 65535), (1, 1)]


def test_products_of_unaligned_rows_copy_them_first():
    byte, copy = torch.int8, "copy_rows_kernel"
    few = launched(kernels.w8a16_matmul, meta(37, 769), meta(517, 769, dtype=byte), meta(517, 1, dtype=torch.float32))
    small = launched(kernels.int8_matmul, meta(1023, 776, dtype=byte), meta(520, 776, dtype=byte).T)
    update = launched(kernels.lora_linear, meta(1023, 769), meta(517, 769), meta(24, 769), meta(517, 24))
    named = [[launch.name for launch in seen] for seen in (few, small, update)]
    assert named == [[copy, "w8a16_few_rows_kernel"], [copy, "matmul_split_kernel"], [copy, copy, "lora_linear_kernel"]]


def test_lora_of_more_rows_than_int32_reaches_is_parted():
    square = meta(16, 16)
    seen = launched(kernels.lora_linear, meta(2**27 + 3, 16), square, square, square)
    # Few rows multiply by both factors in one launch.
    assert [launch.name for launch in seen] == ["lora_down_kernel", "lora_linear_kernel", "lora_linear_kernel"]
