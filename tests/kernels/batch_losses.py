"""Losses, and a linear layer joined with one, in Triton's interpreter."""

from unittest import mock

import torch
import torch.nn.functional as F
from interpreted import INF, NAN, close, compare, draw, grads, poisoned, targets, unusual
from tilescope_kernels import CrossEntropyLoss, cross_entropy, linear_cross_entropy
from tilescope_kernels.losses import linear_cross_entropy as linear
from tilescope_kernels.losses import logits_in_gradient

SMOOTH = {"label_smoothing": 0.1, "reduction": "sum"}


def check_cross_entropy_of_weighed_classes():
    target, weight = targets(15, 11).reshape(3, 5), draw(11, seed=2).abs()
    weight[4] = 0.0
    for reduction in ("none", "mean", "sum"):
        for given, tolerance, times in ((weight, 1e-6, 10.0), (weight.half(), 1e-3, 2.0)):
            for smoothing in (0.0, 0.3):
                options = {"reduction": reduction, "label_smoothing": smoothing}
                compare(
                    lambda x, given=given, options=options: cross_entropy(x, target, given, **options),
                    lambda x, given=given, options=options: F.cross_entropy(x, target, given.double(), **options),
                    [draw(3, 11, 5).to(given)], tolerance, times=times,
                )  # fmt: skip
    module = CrossEntropyLoss(weight, ignore_index=2)
    x, every = draw(12, 11), (torch.arange(12) % 4).int()
    close(module(x, every), F.cross_entropy(x.double(), every.long(), weight.double(), ignore_index=2), 1e-6)
    close(cross_entropy(x[0], torch.tensor(3), weight), F.cross_entropy(x[0], torch.tensor(3), weight), 1e-6)
    ignored = torch.full((12,), -100)
    assert cross_entropy(x, ignored, weight).isnan() and cross_entropy(x, ignored, weight, reduction="sum") == 0
    every[1], every[2] = 11, -1
    strange = torch.arange(12).sub(1).lt(2) & torch.arange(12).gt(0)
    assert torch.equal(cross_entropy(x, every, weight, reduction="none").isnan(), strange)


def check_losses_of_rows_that_start_anywhere():
    for classes in (1, 3, 7, 9, 523, 2051):
        for dtype in (torch.float32, torch.float16):
            x = draw(9, classes).to(dtype)
            target = targets(9, classes)
            target[0], target[4], target[8] = classes - 1, -100, 0
            tolerance, times = (1e-3, 1.0) if dtype == torch.float16 else (1e-6, 10.0)
            for at_once in (False, True):
                ours = {**SMOOTH, "gradient_in_forward": at_once}
                compare(
                    lambda x, target=target, ours=ours: cross_entropy(x, target, **ours),
                    lambda x, target=target: F.cross_entropy(x, target, **SMOOTH), [x], tolerance, times=times,
                )  # fmt: skip
    # Rows of the logits and of their gradient do not start alike.
    for x in (draw(12, 41)[:, 3:20], draw(12, 44)[:, 1:18], draw(12, 41)[:, :16]):
        target = targets(12, x.shape[1])
        leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
        viewed = torch.cat((leaf, leaf.detach()), 1)[:, : x.shape[1]]
        for at_once in (False, True):
            loss = cross_entropy(viewed, target, gradient_in_forward=at_once)
            wanted = F.cross_entropy(twin, target)
            close(loss, wanted, 1e-6)
            close(torch.autograd.grad(loss, leaf, retain_graph=True)[0], grads(wanted, twin)[0], 1e-5)


def check_cross_entropy_special_values():
    special_values(3000)
    special_values(3001)


def special_values(columns):
    x = unusual(columns)
    target = torch.tensor([0, 0, 0, 2500, 0, 1, 2, -100])
    for at_once in (False, True):
        leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
        actual = cross_entropy(leaf, target, reduction="none", gradient_in_forward=at_once)
        wanted = F.cross_entropy(twin, target, reduction="none")
        torch.testing.assert_close(actual, wanted.float(), equal_nan=True)
        close(grads(actual, leaf)[0], grads(wanted, twin)[0], 1e-6)
    ignored = torch.full((8,), -100)
    leaf = x.clone().requires_grad_()
    loss = cross_entropy(leaf, ignored)
    assert loss.isnan() and not grads(loss, leaf)[0].any()
    assert cross_entropy(x[:0], target[:0]).isnan() and cross_entropy(x[:0], target[:0], reduction="sum") == 0


def check_an_upstream_gradient_that_is_not_finite_spares_ignored_rows():
    x, target = draw(12, 40), targets(12, 40)
    for upstream in (NAN, INF, 2.0):
        leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
        (wanted,) = grads(F.cross_entropy(twin, target), twin, torch.tensor(upstream))
        (found,) = grads(cross_entropy(leaf, target, gradient_in_forward=True), leaf, torch.tensor(upstream))
        assert torch.equal(found.isfinite(), wanted.isfinite())
        close(found.nan_to_num(0.0, 0.0, 0.0), wanted.nan_to_num(0.0, 0.0, 0.0), 1e-5)


def check_a_gradient_that_came_with_the_loss_is_scaled_by_several():
    x, target, upstream = draw(12, 40).requires_grad_(), targets(12, 40), torch.tensor([1.0, -2.0])
    found, wanted = (
        torch.autograd.grad(loss(x, target), x, upstream, is_grads_batched=True)[0]
        for loss in (cross_entropy, F.cross_entropy)
    )
    close(found, wanted, 1e-5)


def check_odd_numbers_of_classes_are_multiplied_in_two_parts():
    for dtype, classes, wanted in (
        (torch.float16, 50257, [50256, 50257]), (torch.bfloat16, 9, [8, 9]), (torch.float16, 8, [8]), (torch.float16, 7, [7]),
        (torch.float32, 9, [9]),
    ):  # fmt: skip
        pieces = sorted(logits_in_gradient.slices(classes, dtype), key=lambda part: part.start)
        assert [part.stop for part in pieces] == wanted and [part.start for part in pieces] == [0, *wanted[:-1]]
    x, weight, bias = draw(6, 24).half(), draw(21, 24, seed=1).half(), draw(21, seed=2).half()
    logits, dx, dw = torch.full((6, 32), NAN).half()[:, :21], torch.full_like(x, NAN), torch.full_like(weight, NAN)
    logits_in_gradient.write_logits(logits, x, weight, bias)
    close(logits, x.double() @ weight.double().T + bias.double(), 1e-3)
    logits_in_gradient.write_dx(dx, logits, weight)
    close(dx, logits.double() @ weight.double(), 1e-3)
    logits_in_gradient.write_dw(dw, logits, x)
    close(dw, logits.double().T @ x.double(), 1e-3)
    logits_in_gradient.add_dw(dw, logits, x)
    close(dw, 2.0 * (logits.double().T @ x.double()), 2e-3)


SMALL = {"_LEAST_CLASSES": 8, "_LEAST_ROWS": 8, "_MULTIPLE": 8, "_BLOCK": 16}


def check_linear_cross_entropy_with_logits_in_the_weights_gradient():
    rows, columns, classes = 50, 30, 85
    target, seen, run = targets(rows, classes), [], logits_in_gradient.run
    smooth, half = {"reduction": "sum", "label_smoothing": 0.1}, torch.float16
    for dtype, options, biased, wanted_of in (
        (torch.float32, {}, False, (0, 1)), (torch.float32, smooth, True, (1, 2)), (half, {}, True, (0, 1, 2)),
    ):  # fmt: skip
        leaves = [draw(rows, columns), draw(classes, columns, seed=1), draw(classes, seed=2)]
        leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        twins = [leaf.detach().double().requires_grad_() for leaf in leaves]
        x, weight, bias = (leaf if i in wanted_of else leaf.detach() for i, leaf in enumerate(leaves))
        with (
            mock.patch.multiple(logits_in_gradient, **SMALL, run=lambda *args: seen.append(args[7]) or run(*args)),
            mock.patch.object(linear, "_chunk", lambda *_: 10),
            poisoned(),
        ):
            actual = linear_cross_entropy(x, weight, target, linear_bias=bias if biased else None, **options)
        assert seen.pop() == logits_in_gradient.Blocks(24, 3, 32)
        wanted = F.cross_entropy(F.linear(*twins[: 2 + biased]), target, **options)
        close(actual, wanted, 1e-6 if dtype == torch.float32 else 1e-3)
        found = grads(actual * 2.5, [leaves[i] for i in wanted_of])
        for one, other in zip(found, grads(wanted * 2.5, [twins[i] for i in wanted_of]), strict=True):
            close(one, other, 1e-5 if dtype == torch.float32 else 4e-3)
        for chunk_rows in (16, 1000):
            more = linear_cross_entropy(x, weight, target, linear_bias=bias if biased else None, chunk_rows=chunk_rows)
            close(more, F.cross_entropy(F.linear(*twins[: 2 + biased]), target), 1e-3)


def check_losses_under_autocast_are_fp32_and_their_products_are_not():
    x, weight, target = draw(6, 40, grad=True), draw(9, 40, seed=1, grad=True), targets(6, 9)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = linear_cross_entropy(x, weight, target)
        logits = F.linear(x, weight)
        assert logits.dtype == torch.float16
        assert loss.dtype == torch.float32 == cross_entropy(logits, target).dtype
    found = grads(loss, (x, weight))
    twins = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    wanted = F.cross_entropy(F.linear(*twins), target)
    close(loss, wanted, 1e-3)
    for one, other in zip(found, grads(wanted, twins), strict=True):
        assert one.dtype == torch.float32
        close(one, other, 4e-3)
