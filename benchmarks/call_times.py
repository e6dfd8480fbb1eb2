"""CPU time of a call, beside PyTorch's own operator: ``python benchmarks/call_times.py``, on a GPU and a quiet host.

Operands are small, so that the GPU waits for the CPU. Each figure is the least of several rounds of calls, in microseconds a call:
forward without a gradient, and forward with a gradient followed by backward. To compare two commits, run it with both in one
session: ``PYTHONPATH=OTHER_CHECKOUT/kernels python benchmarks/call_times.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import tilescope_kernels as kernels
import torch
import torch.nn.functional as F

Call = Callable[..., torch.Tensor]


class Operation(NamedTuple):
    """An operation of the library and PyTorch's, which take the same tensors, and the shapes of these."""

    name: str
    ours: Call
    aten: Call
    shapes: tuple[tuple[int, ...], ...]


OPERATIONS = (
    Operation("softmax", kernels.softmax, lambda x: F.softmax(x, -1), ((128, 1024),)),
    Operation(
        "rms_norm",
        lambda x, w: kernels.rms_norm(x, 1024, w),
        lambda x, w: F.rms_norm(x, (1024,), w),
        ((128, 1024), (1024,)),
    ),
    Operation("gelu", kernels.gelu, F.gelu, ((65536,),)),
    Operation("matmul", kernels.matmul, torch.matmul, ((512, 512), (512, 512))),
    Operation(
        "attention", kernels.scaled_dot_product_attention, F.scaled_dot_product_attention, ((1, 8, 256, 64),) * 3
    ),
)


def call_time(call: Callable[[], object], calls: int, rounds: int, device: str) -> float:
    """Microseconds of CPU time a call: the least of several rounds. A round is short enough for the GPU's queue of launches."""
    best = float("inf")
    for _ in range(rounds + 1):  # the first one compiles
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - begin)
        if device == "cuda":
            torch.cuda.synchronize()
    return 1e6 * best / calls


def measured(operation: Operation, calls: int, rounds: int, device: str) -> Iterator[tuple[str, float, float]]:
    """Yields a kind of call, and its times by the library and by PyTorch."""
    tensors = [torch.randn(shape, device=device).bfloat16() for shape in operation.shapes]
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    upstream = torch.ones_like(operation.aten(*tensors))

    def trained(function: Call) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(*leaves), leaves, upstream)

    both = operation.ours, operation.aten
    for kind, made in (("forward", lambda call: lambda: call(*tensors)), ("forward + backward", trained)):
        ours, aten = (call_time(made(call), calls, rounds, device) for call in both)
        yield kind, ours, aten


def table(rows: Iterable[tuple[str, str, float, float]]) -> str:
    """A Markdown table of (operation, kind of call, our time, PyTorch's)."""
    lines = ["| operation | call | ours (us) | ATen (us) | ours / ATen |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {kind} | {ours:.1f} | {aten:.1f} | {ours / aten:.2f} |" for name, kind, ours, aten in rows]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100, help="calls in a round (default 100)")
    parser.add_argument("--rounds", type=int, default=30, help="rounds, the fastest of which counts (default 30)")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu with TILESCOPE_USE_TRITON=0 to try this script")
    given = parser.parse_args(arguments)
    print(f"kernels from {kernels.__path__[0]}, PyTorch {torch.__version__}")
    print(
        table(
            (operation.name, *row)
            for operation in OPERATIONS
            for row in measured(operation, given.calls, given.rounds, given.device)
        )
    )


if __name__ == "__main__":
    main()
