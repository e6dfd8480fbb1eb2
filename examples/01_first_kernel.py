"""Profile a kernel of your own: no declaration, no reference, no GPU needed."""

import tilescope
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def launch(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    scale[(triton.cdiv(len(x), 1024),)](x, y, len(x), BLOCK=1024)
    return y


x = torch.randn(100_000, device="cuda" if torch.cuda.is_available() else "cpu")
run = tilescope.profile(launch, x, reference=lambda x: 2 * x)  # times with a GPU, predictions without
print(run)
