"""What those suites ask of one function or module: dimensions, parameters, special values, what is refused."""

import copy

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F

from . import adapted
from .adapted import DTYPES, bound, classes, compare, draw, each_dtype
from .checks import INF, NAN, SPECS, relative_error

pytestmark = adapted.MARKS
device = adapted.device


@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 9), 0), ((3, 4, 5), 1), ((3, 4, 5), -3), ((2, 3, 4, 5), -2), ((7,), 0)]
)
def test_softmax_along_any_dimension(device, shape, dim):
    compare(lambda x: kernels.softmax(x, dim), lambda x: F.softmax(x, dim), draw(*shape, device=device))


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (0,), (3, 0), (0, 3)])
def test_softmax_of_next_to_nothing(device, shape):
    x = draw(*shape, device=device)
    torch.testing.assert_close(kernels.softmax(x), F.softmax(x, -1))


@each_dtype
def test_softmax_of_large_values_and_infinities(device, dtype):
    largest = torch.finfo(dtype).max
    x = draw(7, 66, device=device, dtype=dtype) * 100
    x[0], x[1], x[2, 3], x[3, 4], x[4] = largest, -largest, largest, NAN, -INF
    x[5, ::2] = -INF
    wanted = F.softmax(x.double(), -1).to(dtype)
    torch.testing.assert_close(kernels.softmax(x), wanted, equal_nan=True, rtol=bound(dtype), atol=1e-6)
    leaf, twin = x[5:].clone().requires_grad_(), x[5:].double().requires_grad_()
    upstream = draw(2, 66, device=device, dtype=dtype, seed=1)
    (found,), (wanted,) = (
        torch.autograd.grad(out, of, upstream.to(of.dtype))
        for out, of in ((kernels.softmax(leaf), leaf), (F.softmax(twin, -1), twin))
    )
    torch.testing.assert_close(found.double(), wanted, rtol=2 * bound(dtype), atol=bound(dtype))


@pytest.mark.parametrize(
    ("normalized", "affine"), [((6,), "none"), ((5, 6), "weight"), ((4, 5, 6), "weight"), ((5, 6), "both")], ids=str
)
def test_norms_over_several_dimensions_with_and_without_parameters(device, normalized, affine):
    x = draw(3, 4, 5, 6, device=device)
    weight, bias = (draw(*normalized, device=device, seed=seed) for seed in (1, 2))
    given = {"none": (), "weight": (weight,), "both": (weight, bias)}[affine]
    shape = normalized[0] if len(normalized) == 1 else normalized
    compare(lambda x, *p: kernels.layer_norm(x, shape, *p), lambda x, *p: F.layer_norm(x, normalized, *p), x, *given)
    compare(
        lambda x, b: kernels.layer_norm(x, shape, None, b), lambda x, b: F.layer_norm(x, normalized, None, b), x, bias
    )
    if affine != "both":
        compare(
            lambda x, *p: kernels.rms_norm(x, shape, *p, eps=1e-5),
            lambda x, *p: F.rms_norm(x, normalized, *p, eps=1e-5),
            x, *given,
        )  # fmt: skip


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_epsilon_of_norms(device, eps):
    # Variances from far below to far above it.
    x = draw(8, 33, device=device) * torch.logspace(-4, 1, 8, device=device)[:, None]
    compare(lambda x: kernels.layer_norm(x, 33, eps=eps), lambda x: F.layer_norm(x, (33,), eps=eps), x)
    compare(lambda x: kernels.rms_norm(x, 33, eps=eps), lambda x: F.rms_norm(x, (33,), eps=eps), x)
    weight = draw(33, device=device, seed=1)
    compare(
        lambda x, w: kernels.add_rms_norm(x, x, w, eps)[0], lambda x, w: F.rms_norm(x + x, (33,), w, eps=eps), x, weight
    )


@each_dtype
def test_the_default_epsilon_of_rms_norm_is_that_of_fp32(device, dtype):
    x = (draw(5, 33, device=device) * 1e-3).to(dtype)
    eps = torch.finfo(torch.float32).eps
    compare(lambda x: kernels.rms_norm(x, 33), lambda x: F.rms_norm(x, (33,), eps=eps), x)
    compare(kernels.RMSNorm(33, elementwise_affine=False), lambda x: F.rms_norm(x, (33,), eps=eps), x)


def test_norms_of_constant_rows_and_of_rows_far_from_zero(device):
    x = torch.full((3, 40), 3.0, device=device)
    # The mean may be a rounding away, which 1 / sqrt(eps) makes larger.
    torch.testing.assert_close(kernels.layer_norm(x, 40), torch.zeros_like(x), rtol=0, atol=1e-3)
    torch.testing.assert_close(kernels.rms_norm(x, 40), torch.ones_like(x))
    assert not kernels.rms_norm(torch.zeros_like(x), 40).any()
    # A variance as the difference of two large sums would have nothing left of it.
    x = draw(3, 40, device=device) + 1000
    wanted = F.layer_norm(x.double(), (40,)).float()
    torch.testing.assert_close(kernels.layer_norm(x, 40), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [DTYPES["fp32"], DTYPES["bf16"]], ids=["fp32", "bf16"])
def test_layer_norm_of_rows_whose_sum_fp32_does_not_hold(device, dtype):
    """0 where only squares and sums are beyond fp32, as PyTorch on a GPU."""
    for columns in (66, 603, 2051, 3000, 4096, 12289, 40000):
        x = torch.zeros(2, columns, device=device, dtype=dtype)
        x[0, 5:50], x[1, columns // 3 :] = 3e38, -3e38
        assert (kernels.layer_norm(x, columns) == 0).all(), columns


@pytest.mark.parametrize(
    ("ours", "plain", "shape"),
    [
        (lambda: kernels.LayerNorm((5, 6)), lambda: torch.nn.LayerNorm((5, 6)), (3, 5, 6)),
        (lambda: kernels.LayerNorm(6, bias=False), lambda: torch.nn.LayerNorm(6, bias=False), (3, 6)),
        (lambda: kernels.LayerNorm(6, 0.1, False), lambda: torch.nn.LayerNorm(6, 0.1, False), (3, 6)),
        (lambda: kernels.RMSNorm(6, 1e-6), lambda: torch.nn.RMSNorm(6, 1e-6), (3, 6)),
        (lambda: kernels.RMSNorm((5, 6), 1e-6), lambda: torch.nn.RMSNorm((5, 6), 1e-6), (3, 5, 6)),
    ],
)
def test_modules_carry_the_state_of_pytorch_s(device, ours, plain, shape):
    ours, plain = ours(), plain()
    with torch.no_grad():
        for number, parameter in enumerate(plain.parameters()):
            parameter.copy_(draw(*parameter.shape, device="cpu", seed=number + 1))
    ours.load_state_dict(plain.state_dict())
    ours, plain = copy.deepcopy(ours).to(device), plain.to(device).double()
    compare(ours, plain, draw(*shape, device=device))


@pytest.mark.parametrize("bias", [False, True])
def test_modules_with_linear_layers_take_their_state(device, bias):
    layers = {"gate_proj": (24, 40), "up_proj": (24, 40), "down_proj": (40, 24)}
    numbers = {}
    for seed, (name, shape) in enumerate(layers.items()):
        numbers[f"{name}.weight"] = draw(*shape, device="cpu", seed=seed) / 6
        if bias:
            numbers[f"{name}.bias"] = draw(shape[0], device="cpu", seed=seed)
    mlp = kernels.SwiGLUMLP(40, 24, bias)
    mlp.load_state_dict(numbers)
    twin = {name: tensor.to(device).double() for name, tensor in numbers.items()}

    def plain(x):
        gate, up = (F.linear(x, twin[f"{name}.weight"], twin.get(f"{name}.bias")) for name in ("gate_proj", "up_proj"))
        return F.linear(F.silu(gate) * up, twin["down_proj.weight"], twin.get("down_proj.bias"))

    compare(mlp.to(device), plain, draw(3, 5, 40, device=device))
    layer, head = torch.nn.Linear(40, 65, bias), kernels.LinearCrossEntropy(40, 65, bias, label_smoothing=0.1)
    head.load_state_dict(layer.state_dict())
    target, layer = classes(9, 65, device), layer.to(device).double()
    compare(
        lambda x: head.to(device)(x, target), lambda x: F.cross_entropy(layer(x), target, label_smoothing=0.1),
        draw(9, 40, device=device),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        (kernels.gelu, F.gelu),
        (lambda x: kernels.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (lambda x: kernels.swiglu(x, torch.ones_like(x)), F.silu),
    ],
    ids=["gelu", "gelu_tanh", "swiglu"],
)
@each_dtype
def test_activations_far_from_zero(device, call, plain, dtype):
    x = torch.linspace(-30, 30, 601, device=device).to(dtype)
    leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
    actual, wanted = call(leaf), plain(twin)
    # In fp32, where the tail is a difference of numbers next to 1.
    close = {"rtol": bound(dtype), "atol": 16 * torch.finfo(torch.float32).eps}
    torch.testing.assert_close(actual.double(), wanted, **close)
    (found,), (expected,) = torch.autograd.grad(actual.sum(), leaf), torch.autograd.grad(wanted.sum(), twin)
    torch.testing.assert_close(found.double(), expected, **close)


@pytest.mark.parametrize(
    ("gated", "activation"),
    [(kernels.swiglu, F.silu), (kernels.geglu, lambda x: F.gelu(x, approximate="tanh"))], ids=["swiglu", "geglu"],
)  # fmt: skip
@pytest.mark.parametrize("columns", [130, 2100])
def test_the_halves_of_one_projection_are_gated_where_they_are(device, gated, activation, columns):
    compare(
        lambda x: gated(*x.chunk(2, -1)),
        lambda x: activation(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        draw(4, 5, columns, device=device),
    )


@each_dtype
def test_infinities_and_nan_are_pytorch_s(device, dtype):
    x = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 100.0, -100.0, 6e4, -6e4], device=device, dtype=dtype)
    close = {"equal_nan": True, "rtol": bound(dtype), "atol": 1e-6}
    for approximate in ("none", "tanh"):
        # The formula: PyTorch's vectorised CPU code makes NaN of the exact form's infinity; its CUDA code does not.
        wanted = SPECS["gelu"].implementations["eager"].call(x, approximate)
        torch.testing.assert_close(kernels.gelu(x, approximate), wanted, **close)
    torch.testing.assert_close(kernels.swiglu(x, torch.ones_like(x)), F.silu(x), **close)
    rows = draw(6, 300, device=device, dtype=dtype)
    rows[0, 3], rows[1, 4], rows[2], rows[3, ::2] = NAN, INF, -INF, -INF
    for ours, theirs in zip(kernels.online_max(rows), (rows.amax(-1), rows.logsumexp(-1)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    torch.testing.assert_close(kernels.row_sum(rows), rows.sum(-1), equal_nan=True, rtol=2e-2, atol=0.1)
    torch.testing.assert_close(kernels.rms_norm(rows, 300, eps=1e-6), F.rms_norm(rows, (300,), eps=1e-6), **close)
    target = torch.arange(6, device=device)
    torch.testing.assert_close(
        kernels.cross_entropy(rows, target, reduction="none"), F.cross_entropy(rows, target, reduction="none"), **close
    )


@each_dtype
def test_rotary_embedding_at_any_position_of_each_batch(device, dtype):
    q, k = (draw(2, heads, 7, 16, device=device, dtype=dtype, seed=heads) for heads in (4, 2))
    cos, sin = (table[0] for table in adapted.rotary_tables(100, 16, device))
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [99, 7, 7, 50, 0, 1, 3]], device=device)
    compare(
        lambda q, k: kernels.rope(q, k, cos[positions], sin[positions]),
        lambda q, k: adapted.rotated(q, k, cos[positions], sin[positions]), q, k,
    )  # fmt: skip
    module = kernels.RoPE(16).to(device)
    compare(
        lambda q, k: module(q, k, positions), lambda q, k: adapted.rotated(q, k, cos[positions], sin[positions]), q, k
    )
    compare(module, lambda q, k: adapted.rotated(q, k, cos[None, :7], sin[None, :7]), q, k)


def test_rotation_in_place_is_the_rotation(device):
    q, k = (draw(2, 7, heads, 16, device=device).transpose(1, 2) for heads in (4, 2))
    tables = adapted.rotary_tables(7, 16, device)
    wanted = kernels.rope(q, k, *tables)
    found = kernels.rope(q, k, *tables, inplace=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert found[0].data_ptr() == q.data_ptr()
    assert found[1].data_ptr() == k.data_ptr()
    torch.testing.assert_close((q, k), wanted, rtol=0, atol=0)
    leaf = draw(2, 4, 7, 16, device=device).requires_grad_()
    in_place, apart = (kernels.rope(leaf * 1.0, k.clone(), *tables, inplace=inplace)[0] for inplace in (True, False))
    upstream = draw(2, 4, 7, 16, device=device, seed=8)
    torch.testing.assert_close(*(torch.autograd.grad(out, leaf, upstream)[0] for out in (in_place, apart)))


def test_rotation_keeps_lengths_and_depends_on_distances_alone(device):
    q, k = (draw(1, 1, 1, 64, device=device, seed=seed).expand(1, 1, 50, 64) for seed in range(2))
    turned_q, turned_k = kernels.rope(q, k, *adapted.rotary_tables(50, 64, device))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    scores = (turned_q @ turned_k.mT)[0, 0]
    for distance in (0, 5, -20):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("columns", "causal"), [(64, True), (128, False)])
@pytest.mark.parametrize(("queries", "keys"), [(2, 37), (37, 37), (70, 33), (33, 70)])
def test_attention_of_ragged_lengths(device, columns, queries, keys, causal):
    q = draw(1, 4, queries, columns, device=device, dtype=torch.float16)
    k, v = (draw(1, 2, keys, columns, device=device, dtype=torch.float16, seed=seed) for seed in (1, 2))
    # More queries than keys: the last ones see every key, as no mask of one's own is needed for.
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1) if causal else None
    compare(
        lambda q, k, v: kernels.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, None if hidden is None else ~hidden, enable_gqa=True
        ), q, k, v,
    )  # fmt: skip


@pytest.mark.parametrize("scale", [0.0, 0.03, 1.0])
def test_attention_s_scale(device, scale):
    tensors = [draw(2, 2, 19, 64, device=device, seed=seed) for seed in range(3)]
    compare(
        lambda *t: kernels.scaled_dot_product_attention(*t, scale=scale),
        lambda *t: F.scaled_dot_product_attention(*t, scale=scale), *tensors,
    )  # fmt: skip


def test_attention_to_no_keys_is_zero_and_so_are_its_gradients(device):
    q = draw(1, 2, 5, 64, device=device).requires_grad_()
    k, v = (torch.empty(1, 2, 0, 64, device=device, requires_grad=True) for _ in range(2))
    out = kernels.scaled_dot_product_attention(q, k, v)
    assert out.shape == q.shape
    assert not out.any()
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
    assert not dq.any()
    assert dk.shape == dv.shape == k.shape


def test_attention_with_large_scores(device):
    q, k, v = (draw(1, 2, 40, 64, device=device, seed=seed) for seed in range(3))
    plain = F.scaled_dot_product_attention
    compare(kernels.scaled_dot_product_attention, plain, q * 2, k * 2, v)
    # One key outweighs the others by far more than fp32 can hold the exponential of.
    actual = kernels.scaled_dot_product_attention(q * 100, k * 100, v)
    torch.testing.assert_close(
        actual, plain(*(t.double() for t in (q * 100, k * 100, v))).float(), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("filters", "dtype", "options"),
    [
        ((8, 16, 3, 3), "fp16", {}),
        ((8, 16, 3, 3), "bf16", {"padding": 1}),
        ((8, 16, 3, 3), "fp32", {"stride": 2}),
        ((5, 7, 1, 1), "fp32", {"padding": (2, 0), "stride": (1, 2)}),
        ((4, 3, 5, 2), "fp32", {"dilation": 2, "padding": 2}),
        ((4, 3, 5, 2), "bf16", {"dilation": (1, 2)}),
    ],
    ids=str,
)
def test_conv2d(device, filters, dtype, options):
    dtype = DTYPES[dtype]
    x = draw(2, filters[1], 11, 13, device=device, dtype=dtype)
    weight, bias = draw(*filters, device=device, dtype=dtype, seed=1), draw(filters[0], device=device, dtype=dtype)
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), **options)
    for one, other in ((x, weight), (x.to(memory_format=torch.channels_last), weight)):
        actual = kernels.conv2d(one, other, bias, **options)
        assert actual.dtype == dtype
        assert actual.shape == wanted.shape
        assert relative_error(actual, wanted) <= bound(dtype)
    rectified = kernels.conv2d(x, weight, bias, relu=True, **options)
    assert relative_error(rectified, wanted.relu()) <= bound(dtype)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: kernels.RMSNorm(64).to(x.device).half()(x.bfloat16()),
            "weight is torch.float16 but x is torch.bfloat16",
        ),
        (
            lambda x: kernels.LayerNorm(64).to(x.device).half()(x.bfloat16()),
            "weight is torch.float16 but x is torch.bfloat16",
        ),
        (
            lambda x: kernels.add_rms_norm(x.half(), x.bfloat16(), x[0]),
            "residual is torch.bfloat16 but x is torch.float16",
        ),
        (lambda x: kernels.swiglu(x, x.half()), "up is torch.float16 but gate is torch.float32"),
        (
            lambda x: kernels.linear_cross_entropy(x.half(), x, classes(3, 3, x.device)),
            "linear_weight is torch.float32",
        ),
    ],
    ids=["RMSNorm", "LayerNorm", "add_rms_norm", "swiglu", "linear_cross_entropy"],
)
def test_what_a_model_must_cast_or_detach_itself_is_named(device, call, message):
    with pytest.raises(ValueError, match=message):
        call(draw(3, 64, device=device))
