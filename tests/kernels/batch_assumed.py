"""Compiling on an assumed GPU: sizes that a call walks over, and functions that eight threads call first at once.

Prints JSON: under "walks" walk to count of kernels, under "alone" the kernels that a launch compiled by itself, after others of its call,
under "threads" function to what a thread raised, or the kernels that several threads compiled.

``JITFunction.run`` and its key are Triton's own; only the compiler is replaced, by one that notes what it is given.
"""

import gc
import json
import sys
import threading
import time

import torch
from tilescope.execution.assumed_device import assumed
from tilescope.execution.launches import ThroughCustomOps
from triton.runtime import jit
from triton.runtime._async_compile import active_mode

THREADS = 8
FOUND, ALONE = set(), set()
#: Kernels and their keys, once for each thread that compiles them.
COMPILED = []


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


def compiled_slowly(self, key, signature, device, *given):
    COMPILED.append((self.fn.__name__, key))
    time.sleep(0.005)
    self.device_caches[device][0][key] = made = Compiled()
    return made


def start_cold():
    for function in [one for one in gc.get_objects() if type(one).__name__ in ("JITFunction", "GluonJITFunction")]:
        function.device_caches.clear()


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


def together(call):
    """What threads raised that made ``call`` at once, empty where none did."""
    start, raised = threading.Barrier(THREADS), []

    def work():
        try:
            with ThroughCustomOps():
                start.wait()
                call()
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "; ".join(sorted(set(raised)))


def walked(kernels):
    """The kernels of each walk, which starts cold."""
    counts = {}
    jit.JITFunction._do_compile = not_compiled
    for walk, (sizes, call) in walks(kernels).items():
        FOUND.clear()
        start_cold()
        for size in sizes:
            made = call(size)
            if made.requires_grad:
                made.sum().backward()
        counts[walk] = len(FOUND)
    return counts


def threaded(catalog):
    """What went wrong with each function when threads called it first."""
    found = {}
    jit.JITFunction._do_compile = compiled_slowly
    start_cold()
    for spec in catalog:
        inputs = spec.inputs(spec.workload("small"), "cuda")
        call = spec.implementations["triton"].call

        def step(call=call, inputs=inputs):
            drawn = {
                k: v.detach().requires_grad_(v.requires_grad) if torch.is_tensor(v) else v for k, v in inputs.items()
            }
            made = call(**drawn)
            for one in made if isinstance(made, tuple) else (made,):
                if one.requires_grad:
                    torch.autograd.backward(one, torch.ones_like(one), retain_graph=True)

        COMPILED.clear()
        raised = together(step)
        # The studies' functions are not operators.
        several = {name for name, key in COMPILED if COMPILED.count((name, key)) > 1}
        found[spec.name] = raised or sorted(() if ".studies." in call.__module__ else several)
    return found


def main():
    sys.modules["torch.fx.experimental.symbolic_shapes"] = None  # it imports SymPy, which takes a second
    with assumed("sm_90"), ThroughCustomOps():
        import tilescope_kernels as kernels

        found = {"walks": walked(kernels), "alone": sorted(ALONE)}
    del sys.modules["torch.fx.experimental.symbolic_shapes"]
    with assumed("sm_90"):
        found["threads"] = threaded(kernels.CATALOG)
    print(json.dumps(found))
