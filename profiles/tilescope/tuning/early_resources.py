"""A config's resources, read from Triton's TTGIR before the slow part of compiling.

Triton decides layouts, pipelining and shared memory on TTGIR; LLVM and ptxas, which take most of the time, come after it. So a
block's threads and shared memory are known exactly there, as are accumulators and values held until a reduction is done.
Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from triton import knobs

from tilescope.hardware import occupancy
from tilescope.tuning import held_registers, pruning

#: A layout's name, and the number of a block's warps along each dimension.
_LAYOUT = re.compile(r"^#(\w+) = #ttg\.nvidia_mma<\{.*?warpsPerCTA = \[([\d, ]+)\]", re.MULTILINE)
#: The result of a product: its extents, element and layout.
_PRODUCT = re.compile(r"(?:ttng\.warp_group_dot|tt\.dot)\s.*-> tensor<([\dx]+)x([a-z]+)(\d+)\w*, #(\w+)>")
_WARPS = re.compile(r'"ttg\.num-warps" = (\d+)')
_REGISTER_BITS = 32


class Refused(Exception):
    """A compilation that was ended early because the config cannot run well. The message is the reason in one line."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Ends compilations with Refused at TTGIR, while active, where ``pruning.refusal`` gives a reason.

    Other kernels compile as usual, under the same keys of Triton's cache.
    """
    with knobs.runtime.scope():
        knobs.runtime.add_stages_inspection_hook = _refuse_after_ttgir
        yield


def accumulators(ttgir: str) -> int:
    """The 32-bit registers a thread of the largest product's result; 0 where there is no product."""
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


def _refuse_after_ttgir(backend: Any, stages: dict[str, Any], options: Any, _language: Any, capability: int) -> None:
    """Inserts the check before the stage after TTGIR. Triton calls this with the stages of a compilation."""
    following = stages["llir"]

    def look(module: Any, metadata: Any) -> Any:
        text = str(module)
        threads, shared_memory = _allocated(_copy(text, module.context), backend, options, capability)
        reason = pruning.refusal(
            f"sm_{backend.target.arch}",
            threads=threads or _threads(text),
            shared_memory=shared_memory,
            accumulators=accumulators(text),
            held=held_registers.held(text, _threads(text) // occupancy.WARP_THREADS),
        )
        if reason:
            raise Refused(reason)
        return following(module, metadata)

    stages["llir"] = look


def _copy(text: str, context: Any) -> Any:
    """A new module of the text, so that passes do not change the one being compiled."""
    from triton._C.libtriton import ir  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.ttgir")
        file.write_text(text)
        module = ir.parse_mlir_module(str(file), context)
    # A module needs its context alive; Triton's own reader keeps it the same way.
    module.context = context
    return module


def _allocated(module: Any, backend: Any, options: Any, capability: int) -> tuple[int | None, int | None]:
    """Threads and bytes of shared memory, by the first passes of Triton's next stage; None each where its passes differ."""
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
