"""Counts the kernels that Triton would compile while a call walks over sizes, on an assumed GPU.

Prints JSON: walk to count, and under "alone" the kernels that a launch compiled by itself, after others of its call.

``JITFunction.run`` and its key are Triton's own; only the compiler is replaced, by one that notes what it is given.
"""

import gc
import json
import sys

import torch
from tilescope.execution.assumed_device import assumed
from tilescope.execution.launches import ThroughCustomOps
from triton.runtime import jit
from triton.runtime._async_compile import active_mode

FOUND, ALONE = set(), set()


class Compiled:
    """Stands for a compiled kernel."""

    function = packed_metadata = None
    run = staticmethod(lambda *_: None)

    def launch_metadata(self, *_):
        return None


def not_compiled(self, key, signature, device, *given):
    """Notes the kernel, the types of its arguments, its constants, the options, and what is known of divisibility."""
    if active_mode.get() is None:
        ALONE.add(self.fn.__name__)
    FOUND.add((self.fn.__name__, str(signature), *map(str, given[:3])))
    self.device_caches[device][0][key] = made = Compiled()
    return made


def new(*shape, grad=False):
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").requires_grad_(grad)


def walks(kernels):
    """Sizes and a call of each walk."""

    def attention(batch, queries, keys, columns, *, causal=False, grad=False):
        q = new(batch, 8, queries, columns, grad=grad)
        k, v = new(batch, 8, keys, columns, grad=grad), new(batch, 8, keys, columns, grad=grad)
        return kernels.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def cross_entropy(classes):
        return kernels.cross_entropy(new(64, classes, grad=True), torch.zeros(64, dtype=torch.int64, device="cuda"))

    def conv2d(size):
        x, weight = (
            new(*shape).to(memory_format=torch.channels_last) for shape in ((4, 64, size, size), (64, 64, 3, 3))
        )
        return kernels.conv2d(x, weight, padding=1)

    return {
        "softmax": (range(1000, 9000, 197), lambda n: kernels.softmax(new(256, n))),
        "matmul squares": (range(100, 2000, 61), lambda n: kernels.matmul(new(n, n), new(n, n))),
        "matmul rows": (range(1, 400, 13), lambda n: kernels.matmul(new(n, 4096), new(4096, 4096))),
        "attention": (range(17, 2000, 67), lambda n: attention(2, n, n, 64, causal=True, grad=True)),
        "decode": (range(100, 3000, 97), lambda n: attention(4, 1, n, 128)),
        "cross-entropy": (range(1000, 60000, 3001), cross_entropy),
        "conv2d": (range(8, 128, 9), conv2d),
        "rms_norm": (range(1, 400, 13), lambda n: kernels.rms_norm(new(n, 4096, grad=True), 4096, new(4096, grad=True))),
    }  # fmt: skip


def main():
    counts = {}
    jit.JITFunction._do_compile = not_compiled
    sys.modules["torch.fx.experimental.symbolic_shapes"] = None  # it imports SymPy, which takes a second
    with assumed("sm_90"), ThroughCustomOps():
        import tilescope_kernels as kernels

        for walk, (sizes, call) in walks(kernels).items():
            FOUND.clear()
            for function in [
                one for one in gc.get_objects() if type(one).__name__ in ("JITFunction", "GluonJITFunction")
            ]:
                function.device_caches.clear()  # each walk starts cold
            for size in sizes:
                made = call(size)
                if made.requires_grad:
                    made.sum().backward()
            counts[walk] = len(FOUND)
    print(json.dumps({**counts, "alone": sorted(ALONE)}))


main()
