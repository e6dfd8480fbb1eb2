"""What scripts share that run in Triton's interpreter, which ``conftest`` switches on for those that import from here.

It computes bf16 wrongly, so that checks in it are of fp32 and fp16, against fp64 references.
"""

import contextlib
import sys
from unittest import mock

import faster_interpreter
import torch
from checks import INF, NAN, SPECS, against_reference, close, compare, draw, poisoned, told_apart

faster_interpreter.install()

__all__ = [
    "INF", "NAN", "SPECS", "against_reference", "close", "compare", "draw", "few_multiprocessors", "grads", "poisoned",
    "targets", "told_apart", "unusual",
]  # fmt: skip


def grads(out, leaves, upstream=None):
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if upstream is None else upstream)


@contextlib.contextmanager
def few_multiprocessors():
    """Persistent grids of a GPU with 4 multiprocessors: a few rows are enough for programs to walk over several."""
    with contextlib.ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("tilescope_kernels.") and hasattr(module, "multiprocessors"):
                patches.enter_context(mock.patch.object(module, "multiprocessors", lambda tensor: 4))
        yield


def targets(rows, classes):
    """Classes of which every fourth is ignored."""
    values = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(3))
    values[1::4] = -100
    return values


def unusual(columns):
    """Eight rows, of which five hold infinities, NaN or numbers whose sum overflows."""
    x = draw(8, columns)
    x[0] = -INF
    x[1, 5] = NAN
    x[2, 4] = INF
    x[3, :2000] = -INF
    x[4] = 3e38
    return x
