"""Operators on a GPU: ``opcheck``, what in-place promises, and the memory that losses hold."""

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F
from tilescope_kernels.losses import logits_in_gradient

from . import on_gpu
from .operator_calls import operator_calls

pytestmark = [*on_gpu.MARKS, on_gpu.INDUCTOR]


def draw(*shape, dtype=torch.float32, grad=True, seed=0):
    return on_gpu.draw(*shape, dtype=dtype, seed=seed).requires_grad_(grad)


def classes(rows, columns):
    numbers = torch.Generator("cuda").manual_seed(0)
    target = torch.randint(0, columns, (rows,), device="cuda", generator=numbers)
    target[::3] = -100
    return target


@pytest.mark.parametrize("name", operator_calls("cpu"))
def test_opcheck(name):
    assert kernels.CATALOG  # whose modules are imported with it, and register their operators
    torch.library.opcheck(getattr(torch.ops.tilescope, name).default, operator_calls("cuda")[name])


def test_linear_cross_entropy_memory_at_model_size():
    rows, columns, vocabulary = 8192, 4096, 128256
    x = draw(rows, columns, dtype=torch.bfloat16)
    weight = draw(vocabulary, columns, dtype=torch.bfloat16, seed=1)
    target = classes(rows, vocabulary)
    torch.autograd.grad(kernels.linear_cross_entropy(x, weight, target), (x, weight))  # cuBLAS takes its workspace once
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(kernels.linear_cross_entropy(x, weight, target), (x, weight))
    held = 2 * (rows + vocabulary) * columns + 2 * 1024 * vocabulary
    assert torch.cuda.max_memory_allocated() - before < held + 2**20


@pytest.mark.parametrize("vocabulary", [20000, 19997])
def test_linear_cross_entropy_logits_lie_in_weight_gradient(monkeypatch, vocabulary):
    """Rows whose logits lie there and others, of vocabularies whose rows start at 16 bytes and of others."""
    rows, columns, seen, run = 1400, 1152, [], logits_in_gradient.run

    def noted(x, *args):
        if x.is_cuda:  # what compiles ahead of the first launch passes tensors on ``meta``
            seen.append(args[6])
        return run(x, *args)

    monkeypatch.setattr(logits_in_gradient, "run", noted)
    x, target = draw(rows, columns, dtype=torch.bfloat16), classes(rows, vocabulary)
    weight, bias = draw(vocabulary, columns, dtype=torch.bfloat16, seed=1) / 34, draw(vocabulary, seed=2).bfloat16()
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
    assert len(seen) == 2 and seen[0].rows in range(1024, rows)


def test_more_than_two_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    x = torch.zeros(2**31 // 4096 + 3, 4096, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(4096, device="cuda")
    last = x[-1:].clone()
    one = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(kernels.softmax(x)[-1:], torch.softmax(last, -1), rtol=2e-2, atol=1e-4)
    torch.testing.assert_close(kernels.gelu(x)[-1:], F.gelu(last), rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(kernels.swiglu(x, x)[-1:], F.silu(last) * last, rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(
        kernels.rms_norm(x, 4096, one)[-1:], F.rms_norm(last, (4096,), one), rtol=2e-2, atol=1e-3
    )
    torch.testing.assert_close(kernels.online_max(x)[1][-1:], last.logsumexp(-1), rtol=2e-2, atol=1e-3)


def test_nearly_two_to_the_31_elements():
    """The last of them: a number of blocks that is computed in int32 must not overflow."""
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")
    x = torch.zeros(2**31 - 1, device="cuda", dtype=torch.int32)
    x[-1] = 3
    for count in (kernels.histogram, kernels.histogram_naive):
        assert count(x, 5).tolist() == [2**31 - 2, 0, 0, 1, 0]
    del x
    gate = torch.zeros(1, 2**31 - 1, device="cuda", dtype=torch.bfloat16)
    gate[0, -3:] = 2.0
    torch.testing.assert_close(kernels.swiglu(gate, gate)[0, -4:], (F.silu(gate) * gate)[0, -4:], rtol=2e-2, atol=1e-3)


def test_more_heads_than_a_grid_s_second_axis_has_programs():
    q, (cos, sin) = torch.randn(1, 600_000, 1, 16, device="cuda"), torch.randn(2, 1, 1, 16, device="cuda")
    expected = q * cos + torch.cat((-q[..., 8:], q[..., :8]), -1) * sin
    torch.testing.assert_close(kernels.rope(q, q[:, :3], cos, sin)[0], expected)
