"""Attention on a GPU against fp64: shapes that no default was chosen for, special values, strides, every peer."""

import pytest
import torch
import torch.nn.functional as F
from tilescope.execution import observe
from tilescope_kernels import scaled_dot_product_attention as sdpa
from tilescope_kernels.attention import attention_configs, few_gradients, hopper, hopper_few, hopper_gradients

from . import on_gpu
from .checks import INF, NAN, SPECS, relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]

TOLERANCE = SPECS["attention"].tolerance
CONFIGS = SPECS["attention"].implementations["triton"].configs
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def compare(q, k, v, tolerance, call=sdpa, **options):
    ours = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    twins = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    config = {"config": options.pop("config")} if "config" in options else {}
    mask, twin = options.pop("attn_mask", (None, None))
    actual = call(*ours, mask, **options, **config)
    wanted = F.scaled_dot_product_attention(*twins, twin, **options)
    assert actual.isfinite().all()
    assert relative_error(actual, wanted) <= tolerance
    upstream = draw(*actual.shape, seed=9)
    found = torch.autograd.grad(actual, ours, upstream.to(actual.dtype))
    expected = torch.autograd.grad(wanted, twins, upstream.double())
    for name, one, other in zip(("query", "key", "value"), found, expected, strict=True):
        assert one.isfinite().all(), f"gradient of {name}"
        assert relative_error(one, other) <= 3 * tolerance, f"gradient of {name}"


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "extents",
    [
        (1, 1, 1, 2, 3, 16), (3, 2, 1, 64, 64, 64), (1, 2, 8, 129, 127, 128), (2, 1, 3, 1000, 333, 64),
        (1, 1, 2, 333, 1000, 128), (1, 4, 1, 2048, 2048, 128), (2, 3, 1, 127, 257, 32), (1, 1, 71, 255, 255, 16),
        # Columns that are no power of two, and many: few tiles, and enough for every multiprocessor.
        (2, 2, 2, 129, 127, 96), (2, 20, 2, 517, 300, 96), (1, 2, 2, 129, 127, 256), (2, 20, 1, 517, 300, 256),
        (1, 3, 1, 200, 333, 80), (1, 2, 1, 77, 91, 1), (2, 40, 1, 260, 390, 200), (1, 2, 1, 130, 70, 13),
    ],
)  # fmt: skip
def test_shapes(extents, causal, dtype):
    batch, kv_heads, group, queries, keys, columns = extents
    q = draw(batch, kv_heads * group, queries, columns, dtype=DTYPES[dtype])
    k, v = (draw(batch, kv_heads, keys, columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    compare(q, k, v, TOLERANCE[dtype], is_causal=causal, enable_gqa=True)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "extents",
    [
        (1, 1, 1, 128, 128, 128), (2, 2, 3, 333, 1000, 64), (1, 2, 1, 257, 130, 128), (1, 2, 3, 1000, 333, 128),
        (2, 3, 1, 517, 517, 96), (2, 2, 1, 517, 130, 256), (1, 2, 3, 200, 333, 200), (1, 1, 1, 5, 900, 256),
        (1, 1, 1, 700, 3, 128), (1, 1, 1, 3, 700, 64),
        # Columns that are multiplied as 64 and 16 or 32.
        (1, 1, 4, 130, 130, 88), (1, 2, 3, 333, 1000, 72), (1, 1, 1, 700, 3, 80), (1, 1, 1, 5, 900, 96), (1, 2, 1, 257, 130, 88),
        (1, 2, 2, 200, 333, 80), (2, 1, 1, 64, 128, 72),
    ],
)  # fmt: skip
def test_hoppers_backward_pass(extents, causal, dtype, monkeypatch):
    """Where it would not be chosen, too: small, ragged, with more queries than keys and fewer."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Hopper's")
    monkeypatch.setattr(hopper_gradients, "_LEAST", 0)
    monkeypatch.setattr(hopper_gradients, "multiprocessors", lambda _: 1)
    batch, kv_heads, group, queries, keys, columns = extents
    q = draw(batch, kv_heads * group, queries, columns, dtype=DTYPES[dtype])
    k, v = (draw(batch, kv_heads, keys, columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    with observe.launches() as made:
        compare(q, k, v, TOLERANCE[dtype], is_causal=causal, enable_gqa=True)
    assert len([one for one in made if "backward" in one["function"]]) == 3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shares", [2, 3, 30])
@pytest.mark.parametrize(
    "extents",
    [
        (1, 2, 1, 517, 130, 64), (2, 1, 3, 300, 700, 128), (1, 2, 2, 200, 333, 80), (1, 1, 4, 130, 130, 88), (1, 2, 3, 333, 1000, 72),
        (2, 1, 1, 517, 517, 96), (1, 1, 2, 300, 200, 104),
    ],
)  # fmt: skip
def test_hoppers_tiles_of_keys_are_shared_out(extents, shares, causal, monkeypatch):
    """Programs of a tile of keys share its queries: some have none, and all do what one does."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Hopper's")
    monkeypatch.setattr(hopper_gradients, "_LEAST", 0)
    monkeypatch.setattr(hopper_gradients, "multiprocessors", lambda _: 1)
    monkeypatch.setattr(hopper_gradients, "shares", lambda *_: shares)
    batch, kv_heads, group, queries, keys, columns = extents
    q = draw(batch, kv_heads * group, queries, columns)
    k, v = (draw(batch, kv_heads, keys, columns, seed=seed) for seed in (1, 2))
    with observe.launches() as made:
        compare(q, k, v, TOLERANCE["bf16"], is_causal=causal, enable_gqa=True)
    assert made[-1]["function"] == "attention_backward_sums_kernel"


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("parts", [(1, 1, 1), (3, 1, 1), (1, 2, 3), (3, 3, 2), (3, 16, 16)])
@pytest.mark.parametrize("extents", [(1, 2, 517, 769, 64), (2, 1, 130, 64, 96), (1, 1, 3, 700, 64)])
def test_few_tiles_are_shared_out(extents, parts, causal, dtype, monkeypatch):
    """Parts of the heads, spans of the queries and of the keys: some have nothing to do."""
    monkeypatch.setattr(few_gradients, "_parts", lambda *_: parts)
    batch, kv_heads, queries, keys, columns = extents
    q = draw(batch, 3 * kv_heads, queries, columns, dtype=DTYPES[dtype])
    k, v = (draw(batch, kv_heads, keys, columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    with observe.launches() as made:
        compare(q, k, v, TOLERANCE[dtype], is_causal=causal, enable_gqa=True)
    assert made[-1]["function"] == "attention_backward_split_kernel"


def test_rows_of_a_result_that_descriptors_do_not_reach():
    q = draw(2, 40, 300, 128)[..., :100]
    k, v = (draw(2, 40, 300, 128, seed=seed)[..., :100] for seed in (1, 2))
    compare(q, k, v, TOLERANCE["bf16"])


@pytest.mark.parametrize("rows", [(3, 130), (517, 300), (333, 1000)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("columns", "warpgroups"), [(40, 2), (40, 3), (64, 2), (64, 3), (80, 2), (128, 2), (200, 2)])
def test_hopper_s_kernel(columns, warpgroups, causal, rows, monkeypatch):
    """Where it would not be chosen, too."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Hopper's")
    specialized = attention_configs._forward(64 * warpgroups, 64 if columns > 128 else 128, 4, 2, 1, 1)
    monkeypatch.setattr(attention_configs, "_specialized", lambda q, tiles, causal: specialized)
    q = draw(2, 4, rows[0], columns)
    k, v = (draw(2, 2, rows[1], columns, seed=seed) for seed in (1, 2))
    for programs in (5, 132):  # several tiles each, and one
        monkeypatch.setattr(hopper, "multiprocessors", lambda _, programs=programs: programs)
        with observe.launches() as made:
            compare(q, k, v, TOLERANCE["bf16"], enable_gqa=True, is_causal=causal)
        assert made[0]["function"] == "attention_hopper_kernel"


@pytest.mark.parametrize("rows", [(3, 130), (64, 64), (65, 100), (517, 300), (333, 1000)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("columns", "dtype"), [(40, "bf16"), (64, "bf16"), (64, "fp16"), (96, "bf16"), (128, "bf16"), (128, "fp16")]
)
def test_hopper_s_kernel_whose_warpgroups_share_queries(columns, dtype, causal, rows, monkeypatch):
    """Where it would not be chosen, too: one tile of keys, so that a warpgroup has none, and orders of several waves."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Hopper's")
    shared = attention_configs._SPECIALIZED_SHARED
    monkeypatch.setattr(attention_configs, "_specialized", lambda q, tiles, causal: shared)
    q = draw(2, 6, rows[0], columns, dtype=DTYPES[dtype])
    k, v = (draw(2, 2, rows[1], columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    for processors in (5, 132):
        monkeypatch.setattr(hopper_few, "multiprocessors", lambda _, processors=processors: processors)
        with observe.launches() as made:
            compare(q, k, v, TOLERANCE[dtype], enable_gqa=True, is_causal=causal)
        assert made[0]["function"] == "attention_few_hopper_kernel"


def test_few_tiles_under_a_causal_mask_are_of_64_queries():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Hopper's")
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    for columns in (96, 128):
        q = draw(1, programs // 16 * 2, 512, columns)
        k, v = (draw(1, programs // 16, 512, columns, seed=seed) for seed in (1, 2))
        with observe.launches() as made:
            compare(q, k, v, TOLERANCE["bf16"], enable_gqa=True, is_causal=True)
        assert made[0]["function"] == "attention_few_hopper_kernel"


@pytest.mark.parametrize(
    ("columns", "dtype"), [(64, "fp32"), (64, "fp16"), (96, "bf16"), (128, "bf16"), (128, "fp16"), (256, "bf16")]
)
def test_masks(columns, dtype):
    q = draw(2, 4, 300, columns, dtype=DTYPES[dtype])
    k, v = (draw(2, 2, 517, columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    hidden = draw(2, 1, 300, 517, seed=3) > 0.3
    hidden[:, :, 3], hidden[:, :, 128:256, 100:] = False, False
    added = draw(4, 300, 517, dtype=DTYPES[dtype], seed=4)
    added[1, :, 400:], added[2, 9] = -INF, -INF
    for mask in (hidden, hidden[1, 0].T.contiguous().T, added):  # each is three kernels more to compile
        twin = mask if mask.dtype == torch.bool else mask.double()
        compare(q, k, v, TOLERANCE[dtype], attn_mask=(mask, twin), enable_gqa=True)


@pytest.mark.parametrize("queries", [300, 2048])  # one launch of a backward pass for all gradients, and several
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_masks_of_the_lowest_number(dtype, queries):
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


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("window", [2, 100, 1000])
@pytest.mark.parametrize(
    "extents", [(2, 2, 2, 333, 333, 64), (1, 2, 1, 1000, 1000, 128), (2, 3, 1, 517, 200, 96), (1, 2, 2, 300, 300, 256)]
)
def test_windows(extents, window, dtype):
    batch, kv_heads, group, queries, keys, columns = extents
    q = draw(batch, kv_heads * group, queries, columns, dtype=DTYPES[dtype])
    k, v = (draw(batch, kv_heads, keys, columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    apart = torch.arange(queries, device="cuda")[:, None] - torch.arange(keys, device="cuda")

    def ours(q, k, v, mask, **options):
        return sdpa(q, k, v, is_causal=True, window=window, **options)

    compare(q, k, v, TOLERANCE[dtype], ours, attn_mask=(None, (apart >= 0) & (apart < window)), enable_gqa=True)


@pytest.mark.parametrize("which", range(len(CONFIGS)))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_every_config(which, causal, columns):
    from triton.runtime.errors import OutOfResources

    q = draw(2, 4, 517, columns)
    k, v = draw(2, 2, 517, columns, seed=1), draw(2, 2, 517, columns, seed=2)
    try:
        compare(q, k, v, TOLERANCE["bf16"], is_causal=causal, enable_gqa=True, config=CONFIGS[which])
        compare(
            q[:, :2, :512], k[:, :, :512], v[:, :, :512], TOLERANCE["bf16"], is_causal=causal, config=CONFIGS[which]
        )
    except OutOfResources:
        pytest.skip("needs more shared memory than this GPU has")


@pytest.mark.parametrize("impl", ["eager", "compile", "fa2", "cudnn"])
@pytest.mark.parametrize("name", ["attention", "causal_attention"])
def test_peers(name, impl):
    spec = SPECS[name]
    inputs = spec.inputs(spec.workload("2x2x4x256x256x128-bf16"), "cuda")
    try:
        actual = spec.implementations[impl].call(**inputs)
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        pytest.skip(f"PyTorch has no {impl} here")
    doubles = {name: value.double() if torch.is_tensor(value) else value for name, value in inputs.items()}
    assert relative_error(actual, spec.reference(**doubles)) <= TOLERANCE["bf16"]


@pytest.mark.parametrize("columns", [64, 96, 128, 256])
@pytest.mark.parametrize("heads", [4, 40])  # too few tiles for all multiprocessors, and enough
def test_strides(heads, columns):
    joint = draw(2, 300, 3, heads, columns)
    compare(*(tensor.transpose(1, 2) for tensor in joint.unbind(2)), TOLERANCE["bf16"], is_causal=True)
    compare(*(draw(2, heads, columns, 200, seed=seed).mT for seed in range(3)), TOLERANCE["bf16"])
    # Rows whose starts are not 16-byte aligned, which descriptors cannot reach.
    compare(*(draw(2, heads, 200, columns + 1, seed=seed)[..., 1:] for seed in range(3)), TOLERANCE["bf16"])
    shared = draw(1, 1, 200, columns).expand(2, heads, 200, columns)
    compare(draw(2, heads, 200, columns, seed=1), shared, shared, TOLERANCE["bf16"])


@pytest.mark.parametrize("columns", [64, 96, 128, 256])
@pytest.mark.parametrize("heads", [1, 80])
def test_special_values(heads, columns):
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


@pytest.mark.parametrize(
    "columns", [64, 80, 128, 256]
)  # all but the last: sums of integers on Hopper, which have no NaN
def test_queries_that_are_not_finite_have_gradients_that_are_not(columns):
    q, k, v, upstream = (draw(2, 16, 1024, columns, seed=seed) for seed in range(4))
    q[0, 3, 5, 0], q[1, 2, 7, 1] = NAN, INF
    q.requires_grad_()
    (gradient,) = torch.autograd.grad(sdpa(q, k, v), [q], upstream)
    assert gradient[0, 3, 5].isnan().all() and gradient[1, 2, 7].isnan().all()
    assert int(gradient.isnan().sum()) == 2 * columns


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "extents", [(2, 8, 4, 517, 769, 128), (3, 11, 2, 781, 333, 128), (1, 150, 1, 2, 3, 128), (2, 20, 2, 517, 200, 64)]
)
def test_tiles_for_every_multiprocessor(extents, dtype, causal):
    batch, kv_heads, group, queries, keys, columns = extents
    q = draw(batch, kv_heads * group, queries, columns, dtype=DTYPES[dtype])
    k, v = (draw(batch, kv_heads, keys, columns, dtype=DTYPES[dtype], seed=seed) for seed in (1, 2))
    compare(q, k, v, TOLERANCE[dtype], is_causal=causal, enable_gqa=True)


@pytest.mark.parametrize("rows", [100, 1024])  # one launch for all tiles, and a launch each for keys and queries
def test_a_window_of_any_size(rows):
    leaves = [draw(1, 60, rows, 80, seed=seed).requires_grad_() for seed in range(3)]
    upstream = draw(1, 60, rows, 80, seed=3)
    found, wanted = (
        torch.autograd.grad(sdpa(*leaves, is_causal=True, window=window), leaves, upstream)
        for window in (2**31 - 1, rows)
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.any() and torch.equal(one, other)


# Of Hopper's kernels, and of one with few tiles.
@pytest.mark.parametrize(
    "extents", [(2, 1024, 128), (2, 1024, 72), (2, 1000, 80), (2, 1000, 88), (2, 1024, 96), (1, 517, 64)]
)
def test_gradients_are_the_same_every_time(extents):
    batch, rows, columns = extents

    def gradients():
        leaves = [draw(batch, heads, rows, columns, seed=heads).requires_grad_() for heads in (8, 2, 2)]
        out = sdpa(*leaves, is_causal=True, enable_gqa=True)
        return torch.autograd.grad(out, leaves, draw(batch, 8, rows, columns, seed=7))

    first = gradients()
    for _ in range(5):
        for one, other in zip(first, gradients(), strict=True):
            assert torch.equal(one, other)


def test_compiles_whole_with_inductor():
    def block(q, k, v):
        return sdpa(q * 0.5, k, v, is_causal=True).square()

    leaves = [draw(1, 2, 200, 64, seed=seed).requires_grad_() for seed in range(3)]
    compiled = torch.compile(block, fullgraph=True)
    torch.testing.assert_close(compiled(*leaves), block(*leaves))
    for one, other in zip(*(torch.autograd.grad(f(*leaves).sum(), leaves) for f in (compiled, block)), strict=True):
        torch.testing.assert_close(one, other)


def test_operators_are_described_as_they_behave():
    q, k, v = (draw(1, heads, 70, 64).requires_grad_() for heads in (4, 2, 2))
    torch.library.opcheck(torch.ops.tilescope.attention.default, (q, k, v, True, 0.125, True, ""))


def test_sequence_beyond_32_bit_offsets():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    rows = 2**31 // 64 + 128
    k = torch.zeros(1, 1, rows, 64, device="cuda", dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    v[..., -100:, :] = draw(1, 1, 100, 64)
    q = draw(1, 1, 16, 64, seed=1)
    # All scores are 0: the result is the mean.
    wanted = v[..., -100:, :].double().sum(2, keepdim=True) / rows
    for config in (CONFIGS[0], CONFIGS[-1], next(config for config in CONFIGS if not config["TMA"])):
        torch.testing.assert_close(
            sdpa(q, k, v, config=config).double(), wanted.expand(1, 1, 16, 64), rtol=2e-2, atol=0
        )
