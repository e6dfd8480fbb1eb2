"""What a config will need, read from the compiler's own intermediate code before the costly part of compiling.

Triton decides layouts, pipelining and shared memory on TTGIR. LLVM and ptxas, which take most of the time, come after it. So
a compilation that ends there knows a block's shared memory and threads to the byte, and the accumulators of its products.
Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs

from tilescope.execution import offline
from tilescope.execution.launches import Launch
from tilescope.hardware import occupancy
from tilescope.tuning import pruning

#: A layout's name and how many warps of a block hold a tensor that has it.
_LAYOUT = re.compile(r"^#(\w+) = #ttg\.nvidia_mma<\{.*?warpsPerCTA = \[([\d, ]+)\]", re.MULTILINE)
#: The result of a product: its extents, element and layout.
_PRODUCT = re.compile(r"(?:ttng\.warp_group_dot|tt\.dot)\s.*-> tensor<([\dx]+)x([a-z]+)(\d+)\w*, #(\w+)>")
_WARPS = re.compile(r'"ttg\.num-warps" = (\d+)')
_REGISTER_BITS = 32


@dataclass(frozen=True)
class EarlyResources:
    """What a launch needs, as TTGIR has it.

    ``threads`` of a block and its ``shared_memory`` in bytes, None where this Triton does not tell it early.
    ``accumulators`` is the number of 32-bit registers that the largest product's result takes of each thread, 0 without
    products; a lower bound of the thread's registers. ``seconds`` is how long finding out took.
    """

    threads: int
    shared_memory: int | None
    accumulators: int
    seconds: float


class _Known(Exception):
    """Ends a compilation once what was asked is known."""

    def __init__(self, ttgir: str, threads: int | None, shared_memory: int | None) -> None:
        super().__init__()
        self.ttgir, self.threads, self.shared_memory = ttgir, threads, shared_memory


class Refused(Exception):
    """A config whose compilation was ended early, as it cannot run well. One line that says why."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """While active, a compilation of a kernel that ``pruning.refusal`` speaks against ends at TTGIR and raises Refused.

    The others go on as always, and are kept in Triton's cache under the key that they have without this.
    """
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = _refuse_after_ttgir
        yield


def read(launch: Launch) -> EarlyResources:
    """The early resources of one launch, for the target that ``offline.targeting`` set.

    A kernel that Triton's cache has already is asked instead. Raises what Triton's front end raises.
    """
    began = time.perf_counter()
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = _stop_after_ttgir
        try:
            kernel = offline.compile_launch(launch)
        except _Known as known:
            ttgir, threads, shared_memory = known.ttgir, known.threads, known.shared_memory
        else:
            ttgir, threads = kernel.asm["ttgir"], kernel.metadata.num_warps * occupancy.WARP_THREADS
            shared_memory = kernel.metadata.shared
    return EarlyResources(
        threads=threads or _threads(ttgir),
        shared_memory=shared_memory,
        accumulators=accumulators(ttgir),
        seconds=time.perf_counter() - began,
    )


def accumulators(ttgir: str) -> int:
    """The 32-bit registers of each thread that the largest product's result takes; 0 where there is no product."""
    warps = {name: math.prod(int(n) for n in counts.split(",")) for name, counts in _LAYOUT.findall(ttgir)}
    found = [
        math.prod(int(extent) for extent in extents.split("x")) * int(bits)
        // (_REGISTER_BITS * warps[layout] * occupancy.WARP_THREADS)
        for extents, _, bits, layout in _PRODUCT.findall(ttgir)
        if layout in warps
    ]  # fmt: skip
    return max(found, default=0)


def _threads(ttgir: str) -> int:
    found = _WARPS.search(ttgir)
    return int(found[1]) * occupancy.WARP_THREADS if found else occupancy.WARP_THREADS


def _stop_after_ttgir(backend: Any, stages: dict[str, Any], options: Any, _language: Any, capability: int) -> None:
    """Puts an end in the place of the stage after TTGIR; Triton calls it with the stages of a compilation."""

    def stop(module: Any, _metadata: Any) -> None:
        text = str(module)
        threads, shared_memory = _allocated(module, backend, options, capability)
        raise _Known(text, threads, shared_memory)

    stages["llir"] = stop


def _refuse_after_ttgir(backend: Any, stages: dict[str, Any], options: Any, _language: Any, capability: int) -> None:
    """Puts a look at the needs before the stage after TTGIR."""
    following = stages["llir"]

    def look(module: Any, metadata: Any) -> Any:
        text = str(module)
        threads, shared_memory = _allocated(_copy(text, module.context), backend, options, capability)
        reason = pruning.refusal(
            f"sm_{backend.target.arch}",
            threads=threads or _threads(text),
            shared_memory=shared_memory,
            accumulators=accumulators(text),
        )
        if reason:
            raise Refused(reason)
        return following(module, metadata)

    stages["llir"] = look


def _copy(text: str, context: Any) -> Any:
    """The module of the text. The one that is being compiled stays as it is."""
    from triton._C.libtriton import ir  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ttgir")
        file.write_text(text)
        module = ir.parse_mlir_module(str(file), context)
    # A module goes with its context; Triton's own reader keeps it like this.
    module.context = context
    return module


def _allocated(module: Any, backend: Any, options: Any, capability: int) -> tuple[int | None, int | None]:
    """Threads and bytes of shared memory, by the passes with which Triton's next stage begins; None each where it has others."""
    from triton._C.libtriton import ir, nvidia, passes  # noqa: PLC0415
    from triton.backends.nvidia.compiler import get_ptx_version_from_options  # noqa: PLC0415

    manager = ir.pass_manager(module.context)
    try:
        begin: tuple[Callable[..., None], ...] = (
            passes.ttgpuir.add_combine_tensor_select_and_if,
            passes.ttgpuir.add_allocate_warp_groups,
            passes.convert.add_scf_to_cf,
            passes.gluon.add_inliner,
        )
        for add in begin:
            add(manager)
        version = get_ptx_version_from_options(options, backend.target.arch)
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, capability, version)
    except (AttributeError, TypeError):
        return None, None
    manager.run(module, "allocate")
    warps = module.get_int_attr("ttg.total-num-warps")
    return warps and warps * occupancy.WARP_THREADS, module.get_int_attr("ttg.shared")
