"""Operators on a GPU: ``opcheck``, ``torch.compile(fullgraph=True)``, special values, and what in-place promises."""

from __future__ import annotations

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F
from tilescope_kernels.losses import logits_in_gradient

from . import on_gpu
from .checks import INF, NAN

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]


def draw(*shape, dtype=torch.float32, grad=True, seed=0):
    return on_gpu.draw(*shape, dtype=dtype, seed=seed).requires_grad_(grad)


def classes(rows, columns):
    numbers = torch.Generator("cuda").manual_seed(0)
    target = torch.randint(0, columns, (rows,), device="cuda", generator=numbers)
    target[::3] = -100
    return target


def tables(tokens, columns):
    angles = torch.arange(tokens, device="cuda")[:, None] * torch.linspace(1, 0.01, columns // 2, device="cuda")
    angles = torch.cat((angles, angles), -1)[None]
    return angles.cos(), angles.sin()


def by_name():
    """Each operator's arguments, small and ragged."""
    assert kernels.CATALOG  # whose modules are imported with it, and register their operators
    ops, x, gate = torch.ops.tilescope, draw(7, 129), draw(7, 129, seed=1)
    cos, sin = tables(5, 64)
    target = classes(7, 129)
    return {
        "vector_add": (ops.vector_add, (x.detach(), gate.detach(), "")),
        "add_relu_mul": (ops.add_relu_mul, (x.detach(), gate.detach(), 1.5, "")),
        "matmul": (ops.matmul, (x, draw(129, 17), "")),
        "gelu": (ops.gelu, (x, 2, "")),
        "gelu_backward": (ops.gelu_backward, (x.detach(), gate.detach(), 1, "")),
        "swiglu": (ops.gated, (x, gate, 0, "")),
        "rope": (ops.rope, (draw(2, 3, 5, 64), draw(2, 1, 5, 64), cos, sin, False, "")),
        "rope_": (ops.rope_, (draw(2, 3, 5, 64, grad=False), draw(2, 1, 5, 64, grad=False), cos, sin, False, "")),
        "row_sum": (ops.row_sum, (x.detach(), "")),
        "online_max": (ops.online_max, (x.detach(), "")),
        "softmax": (ops.softmax, (x, "")),
        "layer_norm": (ops.layer_norm, (x, draw(129), draw(129), 1e-5, True, "")),
        "add_rms_norm": (ops.add_rms_norm, (x, gate, draw(129), 1e-6, True, "")),
        "histogram": (ops.histogram, (target.int(), 129, False, "")),
        "rms_norm": (ops.rms_norm, (x, draw(129), 1e-6, True, "")),
        "cross_entropy": (ops.cross_entropy, (x, target, -100, 0.1, 1, torch.float32, True, "")),
        "cross_entropy_with_gradient": (ops.cross_entropy_with_gradient, (x, target, -100, 0.0, 2, torch.float32, "")),
        "linear_cross_entropy": (
            ops.linear_cross_entropy,
            (draw(7, 32), draw(129, 32), draw(129), target, -100, 0.0, 1, torch.float32, True, True, True, ""),
        ),
    }


@pytest.mark.parametrize("name", by_name() if torch.cuda.is_available() else ())
def test_opcheck(name):
    operator, arguments = by_name()[name]
    torch.library.opcheck(operator, arguments)


def losses():
    cos, sin = tables(33, 64)
    target = classes(33, 130)
    return {
        "matmul": (kernels.matmul, [draw(33, 65), draw(65, 17)], torch.matmul),
        "gelu": (kernels.gelu, [draw(33, 65)], F.gelu),
        "swiglu": (kernels.swiglu, [draw(33, 65), draw(33, 65, seed=1)], lambda g, u: F.silu(g) * u),
        "softmax": (kernels.softmax, [draw(33, 130)], lambda x: x.softmax(-1)),
        "layer_norm": (
            lambda x, w, b: kernels.layer_norm(x, 130, w, b), [draw(33, 130), draw(130), draw(130, seed=1)],
            lambda x, w, b: F.layer_norm(x, (130,), w, b),
        ),
        "add_rms_norm": (
            lambda x, r, w: torch.stack(kernels.add_rms_norm(x, r, w)), [draw(33, 130), draw(33, 130, seed=1), draw(130)],
            lambda x, r, w: torch.stack((F.rms_norm(x + r, (130,), w, 1e-6), x + r)),
        ),
        "rms_norm": (
            lambda x, w: kernels.rms_norm(x, 130, w, 1e-6), [draw(33, 130), draw(130)],
            lambda x, w: F.rms_norm(x, (130,), w, 1e-6),
        ),
        "rope": (
            lambda q: kernels.rope(q, q, cos, sin)[0], [draw(2, 4, 33, 64)],
            lambda q: q * cos + torch.cat((-q[..., 32:], q[..., :32]), -1) * sin,
        ),
        "cross_entropy": (
            lambda x: kernels.cross_entropy(x, target, label_smoothing=0.1), [draw(33, 130)],
            lambda x: F.cross_entropy(x, target, label_smoothing=0.1),
        ),
        "cross_entropy_at_once": (
            lambda x: kernels.cross_entropy(x, target, gradient_in_forward=True), [draw(33, 130)],
            lambda x: F.cross_entropy(x, target),
        ),
        "linear_cross_entropy": (
            lambda x, w: kernels.linear_cross_entropy(x, w, target), [draw(33, 64), draw(130, 64)],
            lambda x, w: F.cross_entropy(x @ w.T, target),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", losses() if torch.cuda.is_available() else ())
def test_the_whole_function_compiles_into_one_graph_with_its_gradients(name):
    # Each case is another graph of the same lambda, of which Dynamo keeps only so many.
    torch.compiler.reset()
    ours, leaves, plain = losses()[name]
    compiled = torch.compile(lambda *args: (ours(*args) * 2.0).pow(2).sum(), fullgraph=True)
    wanted = (plain(*leaves) * 2.0).pow(2).sum()
    actual = compiled(*leaves)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
    for one, other in zip(torch.autograd.grad(actual, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinities_and_nan_are_pytorch_s(dtype):
    x = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 100.0, -100.0, 1e6, -1e6], device="cuda", dtype=dtype)
    close = {"equal_nan": True, "rtol": 2e-2 if dtype == torch.bfloat16 else 1e-5, "atol": 1e-6}
    torch.testing.assert_close(kernels.gelu(x), F.gelu(x), **close)
    torch.testing.assert_close(kernels.swiglu(x, torch.ones_like(x)), F.silu(x), **close)
    rows = draw(6, 300, dtype=dtype, grad=False)
    rows[0, 3], rows[1, 4], rows[2], rows[3, ::2] = NAN, INF, -INF, -INF
    for ours, theirs in zip(kernels.online_max(rows), (rows.amax(-1), rows.logsumexp(-1)), strict=True):
        torch.testing.assert_close(ours, theirs, **close)
    torch.testing.assert_close(kernels.row_sum(rows), rows.sum(-1), equal_nan=True, rtol=2e-2, atol=0.1)
    target = torch.arange(6, device="cuda")
    torch.testing.assert_close(
        kernels.cross_entropy(rows, target, reduction="none"), F.cross_entropy(rows, target, reduction="none"), **close
    )


def test_in_place_rotation_allocates_nothing():
    q, k = (
        draw(1, 32, 1024, 128, grad=False, dtype=torch.bfloat16),
        draw(1, 8, 1024, 128, grad=False, dtype=torch.bfloat16),
    )
    cos, sin = tables(1024, 128)
    wanted = kernels.rope(q, k, cos, sin)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    q_out, k_out = kernels.rope(q, k, cos, sin, inplace=True)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() == before
    assert q_out.data_ptr() == q.data_ptr() and k_out.data_ptr() == k.data_ptr()
    assert torch.equal(q_out, wanted[0]) and torch.equal(k_out, wanted[1])


def test_linear_cross_entropy_never_holds_all_logits():
    rows, columns, vocabulary = 4096, 512, 64000
    x = draw(rows, columns, dtype=torch.bfloat16)
    weight = draw(vocabulary, columns, dtype=torch.bfloat16, seed=1)
    target = classes(rows, vocabulary)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(kernels.linear_cross_entropy(x, weight, target), (x, weight))
    logits, gradients = 2 * rows * vocabulary, 2 * (rows + vocabulary) * columns
    assert torch.cuda.max_memory_allocated() - before < gradients + logits / 4


def test_linear_cross_entropy_at_a_language_models_size_holds_its_gradients_and_256_rows_of_logits():
    rows, columns, vocabulary = 8192, 4096, 128256
    x = draw(rows, columns, dtype=torch.bfloat16)
    weight = draw(vocabulary, columns, dtype=torch.bfloat16, seed=1)
    target = classes(rows, vocabulary)
    torch.autograd.grad(kernels.linear_cross_entropy(x, weight, target), (x, weight))  # cuBLAS takes its workspace once
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(kernels.linear_cross_entropy(x, weight, target), (x, weight))
    held = 2 * (rows + vocabulary) * columns + 2 * 256 * vocabulary
    assert torch.cuda.max_memory_allocated() - before < held + 2**20


@pytest.mark.parametrize("vocabulary", [20000, 19997])
def test_linear_cross_entropy_with_logits_in_the_weights_gradient(monkeypatch, vocabulary):
    """Rows whose logits lie there and others, of vocabularies whose rows start at 16 bytes and of others."""
    rows, columns, seen, run = 1300, 640, [], logits_in_gradient.run
    monkeypatch.setattr(logits_in_gradient, "run", lambda *args: seen.append(args[7]) or run(*args))
    x, target = draw(rows, columns, dtype=torch.bfloat16), classes(rows, vocabulary)
    weight, bias = draw(vocabulary, columns, dtype=torch.bfloat16, seed=1) / 25, draw(vocabulary, seed=2).bfloat16()
    target[3] = -100
    leaves = [leaf.detach().requires_grad_() for leaf in (x, weight, bias)]
    twins = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = F.cross_entropy(F.linear(*twins), target)
    wanted = torch.autograd.grad(expected, twins)
    for chunk_rows in (0, 0, 300):
        loss = kernels.linear_cross_entropy(*leaves[:2], target, linear_bias=leaves[2], chunk_rows=chunk_rows)
        found = torch.autograd.grad(loss, leaves)
        assert abs(float(loss) - float(expected)) <= 1e-2 * float(expected)
        for one, other in zip(found, wanted, strict=True):
            assert float((one.double() - other).norm() / other.norm()) <= 1e-2
    assert len(seen) == 2 and seen[0].rows in range(512, rows)


def test_more_than_two_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    x = torch.zeros(2**31 // 4096 + 3, 4096, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(4096, device="cuda")
    last = x[-1:].clone()
    one = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(kernels.gelu(x)[-1:], F.gelu(last), rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(kernels.swiglu(x, x)[-1:], F.silu(last) * last, rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(
        kernels.rms_norm(x, 4096, one)[-1:], F.rms_norm(last, (4096,), one), rtol=2e-2, atol=1e-3
    )
    torch.testing.assert_close(kernels.online_max(x)[1][-1:], last.logsumexp(-1), rtol=2e-2, atol=1e-3)


def test_operands_that_descriptors_cannot_reach_are_right_after_some_that_they_can():
    a, b = draw(512, 512, dtype=torch.bfloat16, grad=False), draw(512, 512, dtype=torch.bfloat16, grad=False, seed=1)
    wide = draw(512, 513, dtype=torch.bfloat16, grad=False, seed=2)
    for left, right in ((a, b), (a.T, b), (a, b.T), (wide[:, 1:], b), (a, wide[:, 1:])):
        error = (kernels.matmul(left, right).float() - left.float() @ right.float()).norm()
        assert error < 1e-2 * (left.float() @ right.float()).norm()
