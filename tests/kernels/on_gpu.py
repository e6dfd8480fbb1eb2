"""What tests on a GPU share: their marks, numbers drawn there, and a kernel against its reference in fp64.

A module of such tests holds ``pytestmark = on_gpu.MARKS``, and ``on_gpu.INDUCTOR`` beside them where it compiles.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tilescope_kernels.spec import FORWARD

from .checks import SPECS, outputs_of, relative_error

MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
#: Inductor imports what torch itself deprecates, and advises tf32 for the fp32 parts.
INDUCTOR = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
HOPPER = pytest.mark.skipif(CAPABILITY[0] != 9, reason="needs a Hopper GPU")


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    numbers = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, device="cuda", generator=numbers) * scale).to(dtype)


def against_reference(name: str, workload: str, impl: str = "triton", *, backward: bool = True, **options: Any) -> None:
    """Outputs, and gradients where the kernel has some, within its declared tolerance."""
    spec = SPECS[name]
    inputs = spec.inputs(spec.workload(workload), "cuda")
    precise = {
        key: value.detach().double().requires_grad_(value.requires_grad)
        if torch.is_tensor(value) and value.is_floating_point()
        else value
        for key, value in inputs.items()
    }
    tolerance = spec.tolerance[spec.workload(workload).dtype]
    expected = outputs_of(spec.reference(**precise))
    differentiated = backward and spec.passes != (FORWARD,)
    leaves = [key for key, value in inputs.items() if differentiated and torch.is_tensor(value) and value.requires_grad]
    grads, wanted, actual = [], (), ()
    # The first call of a kind decides, the second is watched, the third makes those launches again (``kept``).
    for _ in range(3 if impl == "triton" else 1):
        outputs = outputs_of(spec.implementations[impl].call(**inputs, **options))
        for out, right in zip(outputs, expected, strict=True):
            assert out.float().isfinite().all()
            assert relative_error(out, right) <= tolerance
        if leaves and not grads:
            # A loss is a mean of many: unscaled, its gradients in fp16 are subnormal numbers and little more than their rounding.
            grads = [torch.randn_like(out) if out.dim() else torch.full_like(out, 1024.0) for out in outputs]
            # The reference first: Liger-Kernel's backward passes write the gradients they are given.
            wanted = torch.autograd.grad(expected, [precise[key] for key in leaves], [g.double() for g in grads])
        if leaves:
            actual = torch.autograd.grad(outputs, [inputs[key] for key in leaves], grads)
        for key, one, other in zip(leaves, actual, wanted, strict=True):
            assert relative_error(one, other) <= 3 * tolerance, f"gradient of {key}"
        # Memory of results that are right already would make up for a launch that is left out.
        for tensor in (*outputs, *actual):
            if tensor.is_floating_point():
                tensor.detach().fill_(float("nan"))
