"""PyTorch's own samples of its functions (OpInfo), given to this library's, on any device."""

import math
import sys
import unittest
from types import SimpleNamespace

import torch
from tilescope_kernels import (
    cross_entropy,
    gelu,
    group_norm,
    layer_norm,
    matmul,
    rms_norm,
    scaled_dot_product_attention,
    softmax,
)

# PyTorch's own tests use it; the samples do not.
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402


def _softmax(x, dim, dtype=None):
    return softmax(x if dtype is None else x.to(dtype), dim)


def _linear(x, weight, bias=None):
    y = matmul(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), torch.atleast_2d(weight).mT)
    y = y.reshape(*x.shape[:-1], *weight.shape[:-1])
    return y if bias is None else y + bias


#: Calls of this library by OpInfo's names, and the least share of samples that they serve: not probabilities as targets, dropout in
#: attention, and attention without a batch.
OURS = {
    "softmax": (_softmax, 1.0),
    "nn.functional.layer_norm": (layer_norm, 1.0),
    "nn.functional.rms_norm": (rms_norm, 1.0),
    "nn.functional.group_norm": (group_norm, 1.0),
    "nn.functional.gelu": (gelu, 1.0),
    "nn.functional.scaled_dot_product_attention": (scaled_dot_product_attention, 0.15),
    "nn.functional.cross_entropy": (cross_entropy, 0.5),
    "nn.functional.linear": (_linear, 1.0),
}


def _same(ours, info, sample, tolerance):
    """Whether the sample is served. Results and gradients are compared then."""
    leaves = [value for value in (sample.input, *sample.args) if torch.is_tensor(value) and value.requires_grad]
    try:
        found = ours(sample.input, *sample.args, **sample.kwargs)
    except ValueError:
        return False
    wanted = info(sample.input, *sample.args, **sample.kwargs)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    if found.requires_grad and found.numel():
        gradients = [torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True) for y in (found, wanted)]
        for one, other in zip(*gradients, strict=True):
            if other is not None:
                torch.testing.assert_close(one, other, rtol=5 * tolerance, atol=5 * tolerance, equal_nan=True)
    return True


def compare_with_opinfo(dtype, device, tolerance=2e-5, every=1):
    """Raise AssertionError where a served sample has another result, or where fewer of all its samples are served.

    ``every`` third sample, say, is enough where each compiles its kernels.
    """
    infos = {info.name: info for info in op_db if info.name in OURS and not info.variant_test_name}
    assert infos.keys() == OURS.keys()
    for name, info in infos.items():
        ours, least = OURS[name]
        served = []
        samples = list(info.sample_inputs(device, dtype, requires_grad=True))
        for number, sample in enumerate(samples[::every]):
            try:
                served.append(_same(ours, info, sample, tolerance))
            except Exception as error:
                raise AssertionError(f"{name}, sample {number}, {sample.summary()}: {error}") from error
        assert every > 1 or sum(served) >= least * len(served), (
            f"{name}: {sum(served)} of {len(served)} samples are served"
        )
