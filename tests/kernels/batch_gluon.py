"""Kernels in Gluon that keep rows on chip, run on the CPU."""

import torch
import torch.nn.functional as F
from gluon_on_cpu import launch
from tilescope_kernels.losses.resident import cross_entropy_resident_kernel
from tilescope_kernels.reductions.softmax_gluon import softmax_held_kernel, softmax_parts_backward_shared_kernel

IGNORED, NAN, INF = -100, float("nan"), float("inf")


def cross_entropy(x, target, programs, *, plan, smoothing=0.0, count=None, in_place=False):
    """Losses, parts and gradient; of one warp, whose tiles have 256 elements. ``plan`` is half, TAIL and AHEAD."""
    rows, columns = x.shape
    loss, parts = torch.full((rows,), 7.0), torch.full((rows, 2), 7.0)
    x = x.clone()
    dx = x if in_place else torch.full_like(x, 7.0)
    launch(
        cross_entropy_resident_kernel, programs, loss, parts, dx, x, target, count, columns, rows, columns, IGNORED,
        smoothing, plan[0], ROOM=8, TAIL=plan[1], AHEAD=plan[2], SMOOTH=smoothing > 0, SKEWED=columns % 16 > 0, num_warps=1,
    )  # fmt: skip
    return loss, parts, dx


def against_pytorch(x, target, programs, **options):
    loss, parts, dx = cross_entropy(x, target, programs, count=(target != IGNORED).sum(), **options)
    leaf = x.double().requires_grad_()
    smoothing = options.get("smoothing", 0.0)
    wanted = F.cross_entropy(leaf, target, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(loss.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    (wanted.sum() / (target != IGNORED).sum()).backward()
    error = float((dx.double() - leaf.grad).norm() / leaf.grad.norm())
    assert error <= torch.finfo(x.dtype).eps, error
    assert (dx[target == IGNORED] == 0).all()
    counted = target != IGNORED
    logsumexp = leaf.detach().logsumexp(1)[counted]
    torch.testing.assert_close(parts.double().sum(1)[counted], logsumexp, rtol=1e-6, atol=1e-5)


def check_loss_and_gradient_of_resident_rows():
    for columns, programs, plan in (
        (784, 2, (1, 2, 1)), (4096, 1, (7, 2, 3)), (4000, 3, (4, 8, 4)), (2048, 5, (3, 2, 1)), (3856, 2, (6, 4, 2)),
        (777, 11, (1, 2, 1)), (4099, 8, (7, 2, 3)),
    ):  # fmt: skip
        for dtype in (torch.bfloat16, torch.float16):
            rows = 7 if columns % 16 == 0 else 11
            generator = torch.Generator().manual_seed(columns)
            x = (torch.randn(rows, columns, generator=generator) * 3).to(dtype)
            target = torch.randint(0, columns, (rows,), generator=generator)
            target[0], target[2], target[3], target[6] = 0, IGNORED, columns - 1, IGNORED
            x[5] += 1e3
            against_pytorch(x, target, programs, plan=plan, smoothing=0.1)
            x[3, : columns // 2] = -INF
            against_pytorch(x, target, programs, plan=plan, in_place=True)


def check_what_softmax_does_not_define_is_nan_and_nothing_else_is():
    x = torch.randn(6, 1040, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[0, 3], x[1, 4], x[2] = NAN, INF, -INF
    x[3] = torch.finfo(torch.bfloat16).min
    target = torch.tensor([1, 2, 3, 4, 1040, -1])
    loss, _, dx = cross_entropy(x, target, 4, plan=(2, 1, 2))
    assert loss.isnan().tolist() == [True, True, True, False, True, True], loss
    assert dx.isnan().all(1).tolist() == [True, True, True, False, False, False]
    torch.testing.assert_close(loss[3], torch.tensor(1040.0).log())
    torch.testing.assert_close(dx[4:].float(), x[4:].float().softmax(1), rtol=1e-2, atol=1e-5)


def check_softmax_of_rows_in_shared_memory():
    for columns, held, dtype in (
        (2048, 6, torch.bfloat16), (2000, 3, torch.float16), (2000, 8, torch.bfloat16), (1999, 4, torch.float16),
        (2041, 8, torch.bfloat16), (1024, 5, torch.float32), (1001, 8, torch.float32), (24, 1, torch.bfloat16),
    ):  # fmt: skip
        width = 16 // dtype.itemsize
        tiles = -(-(columns // width) // 32)
        x = (torch.randn(11, columns, generator=torch.Generator().manual_seed(columns)) * 3).to(dtype)
        x[1], x[2, 5], x[3, -1], x[4, :-3], x[6, -1] = -INF, INF, NAN, -INF, INF
        x[5] += 1000
        y = torch.full_like(x, 7.0)
        launch(
            softmax_held_kernel, 11, y, x, columns, columns, HELD=held, TAIL=tiles - held, WIDTH=width,
            SKEWED=columns % width > 0, num_warps=1,
        )  # fmt: skip
        tolerance = {"rtol": 8 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps / 8, "equal_nan": True}
        torch.testing.assert_close(y.double(), x.double().softmax(1), **tolerance)


def check_softmax_backward_of_rows_that_are_cut_into_parts():
    for columns, programs, ahead, lag in ((640, 2, 2, 1), (768, 1, 1, 2), (512, 3, 3, 2)):
        y, dy = (torch.randn(11, columns, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(2))
        parts = -(-columns // 256)
        dx, words = torch.full_like(y, 7.0), torch.full((11, parts), -1, dtype=torch.int32)
        launch(
            softmax_parts_backward_shared_kernel, parts * programs, dx, words, dy, y, 11, columns, parts,
            BLOCK=256, WIDTH=8, WHOLE=columns % 256 == 0, AHEAD=ahead, LAG=lag, LANES=32, num_warps=1, together=True,
        )  # fmt: skip
        wanted = (dy.double() - (dy.double() * y.double()).sum(1, keepdim=True)) * y.double()
        torch.testing.assert_close(dx.double(), wanted, rtol=1e-2, atol=1e-4)
