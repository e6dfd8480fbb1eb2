"""Every function called first by eight threads at once, on an assumed GPU.

Prints JSON: function to what a thread raised, and the kernels that several threads compiled.
"""

import json
import threading
import time

import torch
from tilescope.execution.assumed_device import assumed
from tilescope.execution.launches import ThroughCustomOps
from tilescope_kernels import CATALOG
from triton.runtime import jit

THREADS = 8
COMPILED = []


class Compiled:
    """Stands for a compiled kernel."""

    function = packed_metadata = None
    run = staticmethod(lambda *_: None)

    def launch_metadata(self, *_):
        return None


def not_compiled(self, key, signature, device, *given):
    COMPILED.append((self.fn.__name__, key))
    time.sleep(0.005)
    self.device_caches[device][0][key] = made = Compiled()
    return made


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


def main():
    jit.JITFunction._do_compile = not_compiled
    found = {}
    with assumed("sm_90"):
        for spec in CATALOG:
            inputs = spec.inputs(spec.workload("small"), "cuda")
            call = spec.implementations["triton"].call

            def step(call=call, inputs=inputs):
                made = call(
                    **{
                        k: v.detach().requires_grad_(v.requires_grad) if torch.is_tensor(v) else v
                        for k, v in inputs.items()
                    }
                )
                for one in made if isinstance(made, tuple) else (made,):
                    if one.requires_grad:
                        torch.autograd.backward(one, torch.ones_like(one), retain_graph=True)

            COMPILED.clear()
            raised = together(step)
            # The studies' functions are not operators.
            several = {name for name, key in COMPILED if COMPILED.count((name, key)) > 1}
            found[spec.name] = raised or sorted(() if ".studies." in call.__module__ else several)
    print(json.dumps(found))


main()
