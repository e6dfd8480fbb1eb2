"""What those suites ask of one function or module: dimensions, parameters, special values, what is refused."""

import copy

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F

from . import adapted
from .adapted import DTYPES, bound, classes, compare, draw, each_dtype
from .checks import INF, NAN, SPECS

pytestmark = adapted.MARKS
device = adapted.device


@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 9), 0), ((3, 4, 5), 1), ((3, 4, 5), -3), ((2, 3, 4, 5), -2), ((7,), 0)]
)
def test_softmax_along_any_dimension(device, shape, dim):
    compare(lambda x: kernels.softmax(x, dim), lambda x: F.softmax(x, dim), draw(*shape, device=device))


@each_dtype
def test_the_default_epsilon_of_rms_norm_is_that_of_fp32(device, dtype):
    x = (draw(5, 33, device=device) * 1e-3).to(dtype)
    eps = torch.finfo(torch.float32).eps
    compare(lambda x: kernels.rms_norm(x, 33), lambda x: F.rms_norm(x, (33,), eps=eps), x)
    compare(kernels.RMSNorm(33, elementwise_affine=False), lambda x: F.rms_norm(x, (33,), eps=eps), x)


@pytest.mark.parametrize("dtype", [DTYPES["fp32"], DTYPES["bf16"]], ids=["fp32", "bf16"])
def test_layer_norm_of_rows_whose_sum_fp32_does_not_hold(device, dtype):
    """0 where only squares and sums are beyond fp32, as PyTorch on a GPU."""
    for columns in (66, 603, 2051, 3000, 4096, 12289, 40000):
        x = torch.zeros(2, columns, device=device, dtype=dtype)
        x[0, 5:50], x[1, columns // 3 :] = 3e38, -3e38
        assert (kernels.layer_norm(x, columns) == 0).all(), columns


@pytest.mark.parametrize(("ours", "plain", "shape"), [
    (lambda: kernels.LayerNorm((5, 6)), lambda: torch.nn.LayerNorm((5, 6)), (3, 5, 6)),
    (lambda: kernels.LayerNorm(6, bias=False), lambda: torch.nn.LayerNorm(6, bias=False), (3, 6)),
    (lambda: kernels.LayerNorm(6, 0.1, False), lambda: torch.nn.LayerNorm(6, 0.1, False), (3, 6)),
    (lambda: kernels.RMSNorm(6, 1e-6), lambda: torch.nn.RMSNorm(6, 1e-6), (3, 6)),
    (lambda: kernels.RMSNorm((5, 6), 1e-6), lambda: torch.nn.RMSNorm((5, 6), 1e-6), (3, 5, 6)),
])  # fmt: skip
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
        lambda x: head.to(device)(x, target), lambda x: F.cross_entropy(layer(x), target, label_smoothing=0.1), draw(9, 40, device=device),
    )  # fmt: skip


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
