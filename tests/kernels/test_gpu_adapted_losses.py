"""Losses as PyTorch's and Liger-Kernel's suites ask for them: options, shapes, what is ignored."""

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F

from . import adapted
from .adapted import classes, compare, draw

pytestmark = adapted.MARKS
device = adapted.device


@pytest.mark.parametrize(("reduction", "smoothing", "ignore"), [
    *((reduction, smoothing, -100) for reduction in ("none", "mean", "sum") for smoothing in (0.0, 0.1, 1.0)),
    ("mean", 0.1, 3), ("none", 0.0, 64),
])  # fmt: skip
def test_cross_entropy_options(device, reduction, smoothing, ignore):
    target = classes(9, 65, device, ignore)
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignore}
    x = draw(9, 65, device=device) * 5
    compare(lambda x: kernels.cross_entropy(x, target, **options), lambda x: F.cross_entropy(x, target, **options), x)
    compare(
        lambda x: kernels.cross_entropy(x, target, gradient_in_forward=False, **options),
        lambda x: F.cross_entropy(x, target, **options), x,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(5,), (3, 5), (3, 5, 4), (2, 5, 3, 4)], ids=str)
def test_cross_entropy_of_pixels_and_of_one_row(device, shape):
    x = draw(*shape, device=device)
    places = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    target = torch.randint(0, 5, places, generator=torch.Generator().manual_seed(1)).to(device)
    for reduction in ("mean", "none"):
        module = kernels.CrossEntropyLoss(reduction=reduction)
        compare(lambda x, m=module: m(x, target), lambda x, r=reduction: F.cross_entropy(x, target, reduction=r), x)


def test_a_target_that_is_no_class_makes_its_loss_nan(device):
    x, weight = draw(4, 65, device=device), draw(65, 65, device=device, seed=1)
    target = torch.tensor([3, 65, -1, 64], device=device)
    strange = torch.tensor([False, True, True, False], device=device)
    for call in (kernels.cross_entropy, lambda x, t, **o: kernels.linear_cross_entropy(x, weight, t, **o)):
        assert torch.equal(call(x, target, reduction="none").isnan(), strange)
        assert call(x, target).isnan()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_cross_entropy_options(device, reduction, smoothing, biased):
    # Two chunks of rows, the second a short one.
    target = classes(70, 65, device)
    tensors = [draw(70, 40, device=device), draw(65, 40, device=device, seed=1) / 6, draw(65, device=device, seed=2)]
    options = {"reduction": reduction, "label_smoothing": smoothing}
    compare(
        lambda x, w, b=None: kernels.linear_cross_entropy(x, w, target, linear_bias=b, chunk_rows=64, **options),
        lambda x, w, b=None: F.cross_entropy(F.linear(x, w, b), target, **options),
        *tensors[: 3 if biased else 2],
    )


def test_linear_cross_entropy_of_sequences_and_by_row(device):
    x, weight = draw(2, 5, 40, device=device), draw(65, 40, device=device, seed=1)
    target = classes(10, 65, device).reshape(2, 5)
    compare(
        lambda x, w: kernels.linear_cross_entropy(x, w, target),
        lambda x, w: F.cross_entropy(F.linear(x, w).flatten(0, 1), target.flatten()), x, weight,
    )  # fmt: skip
    rows = kernels.linear_cross_entropy(x, weight, target, reduction="none")
    wanted = F.cross_entropy(F.linear(x, weight).movedim(-1, 1), target, reduction="none")
    torch.testing.assert_close(rows, wanted, rtol=1e-5, atol=1e-5)
