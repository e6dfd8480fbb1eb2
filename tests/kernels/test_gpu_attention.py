"""Attention on a GPU against fp64: shapes that no default was chosen for, special values, strides, every peer."""

import functools

import pytest
import torch
import torch.nn.functional as F
from tilescope.execution import observe
from tilescope_kernels import scaled_dot_product_attention as sdpa
from tilescope_kernels.attention import attention_configs, hopper, hopper_few, hopper_gradients

from . import checks, on_gpu
from .checks import INF, NAN, SPECS, relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]

TOLERANCE = SPECS["attention"].tolerance
CONFIGS = SPECS["attention"].implementations["triton"].configs
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def drawn(extents, dtype="bf16"):
    """Queries, keys and values of (batch, heads of keys, queries' heads for each, queries, keys, columns)."""
    batch, kv_heads, group, queries, keys, columns = extents
    shapes = (batch, kv_heads * group, queries, columns), *[(batch, kv_heads, keys, columns)] * 2
    return [draw(*shape, dtype=DTYPES[dtype], seed=seed) for seed, shape in enumerate(shapes)]


def compare(q, k, v, tolerance, call=sdpa, *, attn_mask=(None, None), config=None, **options):
    mask, twin = attn_mask
    ours = functools.partial(call, config=config) if config else call
    checks.compare(
        lambda *qkv: ours(*qkv, mask, **options), lambda *qkv: F.scaled_dot_product_attention(*qkv, twin, **options), (q, k, v), tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("extents", "dtype"), [
    ((1, 1, 1, 2, 3, 16), "fp32"), ((1, 2, 8, 129, 127, 128), "fp32"), ((2, 1, 3, 1000, 333, 64), "fp16"),
    ((1, 1, 2, 333, 1000, 128), "bf16"), ((1, 4, 1, 2048, 2048, 128), "bf16"), ((1, 1, 71, 255, 255, 16), "fp16"),
    # Columns that are no power of two, and many: few tiles, and enough for every multiprocessor.
    ((2, 2, 2, 129, 127, 96), "fp32"), ((2, 20, 2, 517, 300, 96), "bf16"), ((2, 20, 1, 517, 300, 256), "fp16"),
    ((1, 2, 1, 77, 91, 1), "bf16"), ((2, 40, 1, 260, 390, 200), "bf16"), ((1, 2, 1, 130, 70, 13), "fp16"),
])  # fmt: skip
def test_attention_shapes(extents, dtype, causal):
    compare(*drawn(extents, dtype), TOLERANCE[dtype], is_causal=causal, enable_gqa=True)


@on_gpu.HOPPER
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize(("extents", "dtype"), [
    ((2, 2, 3, 333, 1000, 64), "bf16"), ((1, 2, 1, 257, 130, 128), "fp16"), ((2, 2, 1, 517, 130, 256), "bf16"),
    ((1, 1, 1, 700, 3, 128), "bf16"), ((1, 1, 1, 3, 700, 64), "fp16"),
    # Columns that are multiplied as 64 and 16 or 32.
    ((1, 1, 4, 130, 130, 88), "bf16"), ((1, 1, 1, 5, 900, 96), "bf16"), ((1, 2, 2, 200, 333, 80), "fp16"),
])  # fmt: skip
def test_attention_hopper_backward(extents, dtype, shares, causal, monkeypatch):
    """Small and ragged problems too, and tiles of keys whose queries several programs share."""
    monkeypatch.setattr(attention_configs, "specializes_backward", lambda *_: True)
    for name, forced in {"multiprocessors": lambda _: 1, "shares": lambda *_: shares}.items():
        monkeypatch.setattr(hopper_gradients, name, forced)
    with observe.launches() as made:
        compare(*drawn(extents, dtype), TOLERANCE[dtype], is_causal=causal, enable_gqa=True)
    assert len([one for one in made if "backward" in one["function"]]) == 3


def specialized(warpgroups, columns):
    """The config of Hopper's kernel; 0 warpgroups: two that share the queries."""
    shared = attention_configs._SPECIALIZED_SHARED
    return (
        attention_configs._forward(64 * warpgroups, 64 if columns > 128 else 128, 4, 2, 1, 1) if warpgroups else shared
    )


@on_gpu.HOPPER
@pytest.mark.parametrize(("rows", "causal"), [((3, 130), False), ((517, 300), True), ((333, 1000), True)])
@pytest.mark.parametrize(
    ("columns", "warpgroups", "dtype"),
    [(40, 3, "bf16"), (64, 2, "fp16"), (80, 2, "bf16"), (200, 2, "bf16"), (40, 0, "bf16"), (64, 0, "fp16"), (128, 0, "bf16")],
)  # fmt: skip
def test_attention_hopper_forward(columns, warpgroups, dtype, causal, rows, monkeypatch):  # noqa: PLR0917
    """Several tiles a program, and one."""
    monkeypatch.setattr(attention_configs, "_specialized", lambda *_: specialized(warpgroups, columns))
    for programs in (5, 132):
        for module in (hopper, hopper_few):
            monkeypatch.setattr(module, "multiprocessors", lambda _, programs=programs: programs)
        with observe.launches() as made:
            compare(*drawn((2, 2, 2, *rows, columns), dtype), TOLERANCE[dtype], enable_gqa=True, is_causal=causal)
        assert made[0]["function"] == ("attention_hopper_kernel" if warpgroups else "attention_few_hopper_kernel")


@pytest.mark.parametrize(("columns", "dtype"), [(64, "fp32"), (96, "bf16"), (128, "fp16")])
def test_attention_masks(columns, dtype):
    q, k, v = drawn((2, 2, 2, 300, 517, columns), dtype)
    hidden = draw(2, 1, 300, 517, seed=3) > 0.3
    hidden[:, :, 3], hidden[:, :, 128:256, 100:] = False, False
    added = draw(4, 300, 517, dtype=DTYPES[dtype], seed=4)
    added[1, :, 400:], added[2, 9] = -INF, -INF
    for mask in (hidden, hidden[1, 0].T.contiguous().T, added):  # each is three kernels more to compile
        twin = mask if mask.dtype == torch.bool else mask.double()
        compare(q, k, v, TOLERANCE[dtype], attn_mask=(mask, twin), enable_gqa=True)


# One launch of a backward pass for all gradients, and several.
@pytest.mark.parametrize(("queries", "dtype"), [(300, "fp32"), (300, "fp16"), (2048, "bf16")])
def test_attention_masks_of_the_lowest_number(queries, dtype):
    """Rows of nothing else are means of their values: PyTorch's sums in fp32 are equal, as those of -65504 and a score are not."""
    q, k, v = (draw(2, 16, queries, 64, dtype=DTYPES[dtype], seed=seed) for seed in range(3))
    for low in (torch.finfo(DTYPES[dtype]).min, -1e4 if dtype == "fp16" else -1e9):
        mask = torch.zeros(queries, queries, dtype=DTYPES[dtype], device="cuda")
        mask[:40], mask[40:80, :200], mask[80:120, 64:], mask[130, 9] = low, low, low, -low
        mask[20:40, 100:] = -INF
        ours = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        twins = [tensor.detach().float().requires_grad_() for tensor in (q, k, v)]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            wanted = F.scaled_dot_product_attention(*twins, mask.float())
        actual = sdpa(*ours, mask)
        # Ours rounds -65504 and a score to 2^-8, as PyTorch's does: not the same way.
        tolerance = max(TOLERANCE[dtype], 4e-3 if dtype == "fp16" else 0.0)
        assert relative_error(actual, wanted) <= tolerance
        upstream = draw(*actual.shape, seed=9)
        found = torch.autograd.grad(actual, ours, upstream.to(actual.dtype))
        for one, other in zip(found, torch.autograd.grad(wanted, twins, upstream.float()), strict=True):
            assert relative_error(one, other) <= 3 * tolerance


@pytest.mark.parametrize("window", [2, 100])
@pytest.mark.parametrize(
    ("extents", "dtype"),
    [((2, 2, 2, 333, 333, 64), "fp32"), ((1, 2, 1, 1000, 1000, 128), "bf16"), ((2, 3, 1, 517, 200, 96), "fp16")],
)
def test_attention_windows(extents, dtype, window):
    apart = torch.arange(extents[3], device="cuda")[:, None] - torch.arange(extents[4], device="cuda")

    def ours(q, k, v, mask, **options):
        return sdpa(q, k, v, is_causal=True, window=window, **options)

    mask = (None, (apart >= 0) & (apart < window))
    compare(*drawn(extents, dtype), TOLERANCE[dtype], ours, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize(("heads", "columns"), [(4, 64), (40, 128), (4, 96)])
def test_attention_strides(heads, columns):
    joint = draw(2, 300, 3, heads, columns)
    compare(*(tensor.transpose(1, 2) for tensor in joint.unbind(2)), TOLERANCE["bf16"], is_causal=True)
    compare(*(draw(2, heads, columns, 200, seed=seed).mT for seed in range(3)), TOLERANCE["bf16"])
    # Rows whose starts are not 16-byte aligned, which descriptors cannot reach.
    compare(*(draw(2, heads, 200, columns + 1, seed=seed)[..., 1:] for seed in range(3)), TOLERANCE["bf16"])
    shared = draw(1, 1, 200, columns).expand(2, heads, 200, columns)
    compare(draw(2, heads, 200, columns, seed=1), shared, shared, TOLERANCE["bf16"])


@pytest.mark.parametrize(("heads", "columns"), [(1, 64), (80, 64), (1, 96), (80, 128)])
def test_attention_special_values(heads, columns):
    k, v = draw(1, heads, 300, columns).abs(), draw(1, heads, 300, columns, seed=1)
    q = draw(1, heads, 200, columns, seed=2).abs()
    q[..., 0, 0], q[..., 1, 0] = NAN, INF
    k[:, :, :200] = -INF
    # In fp32: what rounding scores to 16 bits makes of infinities is no part of the answer. Spelled out: PyTorch's own
    # kernel for fp32 gives NaN for every row here (torch 2.11).
    weights = (q.float() @ k.float().mT / columns**0.5).softmax(-1)
    wanted = weights @ v.float()
    torch.testing.assert_close(sdpa(q, k, v).float(), wanted, equal_nan=True, rtol=3e-2, atol=3e-2)
    v[:, :, 260, 3] = NAN
    wanted = weights @ v.float()
    torch.testing.assert_close(sdpa(q, k, v).float(), wanted, equal_nan=True, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(
    "extents", [(2, 3, 1, 1, 515, 64), (2, 2, 4, 1, 8192, 128), (1, 3, 8, 16, 1000, 128), (2, 4, 4, 1, 5000, 96), (1, 3, 2, 3, 1000, 256)],
)  # fmt: skip
def test_attention_few_queries_without_gradient(extents, dtype):
    q, k, v = drawn(extents, dtype)
    actual = sdpa(q, k, v, enable_gqa=True)
    wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    assert relative_error(actual, wanted) <= 2 * TOLERANCE[dtype]
    assert torch.equal(actual, sdpa(q, k, v, enable_gqa=True))


def test_attention_keys_beyond_int32():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    rows = 2**31 // 64 + 130
    k = torch.zeros(1, 1, rows, 64, device="cuda", dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    v[..., -100:, :] = draw(1, 1, 100, 64)
    # All scores are 0: the result is the mean.
    wanted = v[..., -100:, :].double().sum(2, keepdim=True) / rows
    pointers = next(config for config in CONFIGS if not config["TMA"])
    for queries, config in ((1, None), *((16, config) for config in (CONFIGS[0], CONFIGS[-1], pointers))):
        o = sdpa(draw(1, 1, queries, 64, seed=1), k, v, config=config)
        torch.testing.assert_close(o.double(), wanted.expand(1, 1, queries, 64), rtol=2e-2, atol=0)
