"""What the suites of PyTorch and Liger-Kernel ask of these functions, asked of ours: how that is compared, and where it runs.

Every value and gradient is compared with autograd in fp64, on a GPU, and in a process with ``TRITON_INTERPRET=1`` on the CPU,
in fp32 and fp16 (the interpreter computes bf16 wrongly): test_adapted starts one.

A module of such tests holds ``pytestmark = adapted.MARKS`` and ``device = adapted.device``.
"""

import os

import pytest
import torch

from . import checks, faster_interpreter

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    faster_interpreter.install()
GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
#: NumPy warns of the NaN and infinity that these kernels are meant to produce, and of how triton 3.6 uses it.
WARNINGS = ("ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning") if INTERPRETED else ()
MARKS = [pytest.mark.filterwarnings(warning) for warning in WARNINGS]


@pytest.fixture(params=["cpu" if INTERPRETED else GPU])
def device(request):
    if request.param == "cpu" and "bf16" in request.node.name:
        pytest.skip("the interpreter computes bf16 wrongly")
    return request.param


def draw(*shape, device, dtype=torch.float32, seed=0):
    # Drawn on the CPU, so that both devices are given the same numbers.
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def bound(dtype):
    """Of relative norms: some roundings to ``dtype``, or in fp32 sums in another order and approximate exponentials."""
    return (16 if dtype == torch.float32 else 4) * torch.finfo(dtype).eps


def compare(ours, plain, *tensors):
    """Values, shapes and dtypes of ``ours(*tensors)`` and the gradient of each tensor, against ``plain`` in fp64."""
    checks.compare(ours, plain, tensors, bound(tensors[0].dtype), times=2.0)


def rotary_tables(tokens, columns, device):
    frequency = 10000.0 ** (-torch.arange(0, columns, 2, device=device) / columns)
    angles = torch.outer(torch.arange(tokens, device=device), frequency).repeat(1, 2)[None]
    return angles.cos(), angles.sin()


def rotated(q, k, cos, sin):
    """The formula of rotary embedding by halves, in the dtype of ``q``."""
    cos, sin = cos[:, None].to(q.dtype), sin[:, None].to(q.dtype)

    def turn(x):
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    return turn(q), turn(k)


def classes(rows, columns, device, ignore=-100):
    # Computed where it is needed: a copy from the CPU could not be captured in a CUDA graph.
    row = torch.arange(rows, device=device)
    return ((row * 7919 + 5) % columns).masked_fill(row % 4 == 1, ignore)
