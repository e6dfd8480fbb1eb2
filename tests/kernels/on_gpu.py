"""What tests on a GPU share: their marks, numbers drawn there, and a kernel against its reference.

A module of such tests holds ``pytestmark = on_gpu.MARKS``, and ``on_gpu.INDUCTOR`` beside them where it compiles.
"""

import functools

import pytest
import torch
from tilescope_kernels import CATALOG

from . import checks

assert CATALOG  # Asked for, every kernel is imported, which registers its operators.

MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
#: Inductor imports what torch itself deprecates, and advises tf32 for the fp32 parts.
INDUCTOR = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
HOPPER = pytest.mark.skipif(CAPABILITY[0] != 9, reason="needs a Hopper GPU")


def draw(*shape, dtype=torch.bfloat16, seed=0, scale=1.0):
    numbers = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, device="cuda", generator=numbers) * scale).to(dtype)


against_reference = functools.partial(checks.against_reference, device="cuda")
