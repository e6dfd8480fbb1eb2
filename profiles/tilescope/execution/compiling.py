"""Compiles a launch within a time limit.

Triton's compiler can only be stopped by ending its process. A forked process therefore compiles into Triton's cache, from which
this one takes the result. Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from triton import knobs
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

from tilescope.execution import multiprocess, offline
from tilescope.execution.launches import Launch

Result = TypeVar("Result")


def compiled(launch: Launch, seconds: float) -> tuple[Any, float | None]:
    """The compiled kernel (``offline.compile_launch``) and the seconds that it took; None for one from Triton's cache.

    Raises TimeoutError, with one line, after ``seconds``, and what Triton's compiler raises.
    """

    def compile_it() -> float | None:
        with contextlib.suppress(Exception):  # it is raised again below
            return _timed(launch)
        return None

    took = None
    try:
        took = in_time(seconds, compile_it)
    except TimeoutError:
        raise TimeoutError(f"{launch.name} was not compiled in {seconds:g} s") from None
    except RuntimeError:  # A compiler that ends its process will end this one too, and the supervisor will say so.
        pass
    return offline.compile_launch(launch), took


def assembler(metadata: Any, capability: int) -> tuple[str, ...]:
    """The command ``ptxas -v`` for a kernel with this metadata, with the flags of Triton's own backend."""
    flags = ["-lineinfo", "-v", f"--gpu-name={sm_arch_from_capability(capability)}"]
    flags += [] if metadata.enable_fp_fusion else ["--fmad=false"]
    flags += ["--opt-level", "0"] if knobs.nvidia.disable_ptxas_opt else []
    return get_ptxas(capability).path, *flags, *(metadata.ptx_options or "").split()


def assemble(ptx: str, command: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    """Assembles PTX into ``kernel.cubin`` in the folder by the ``command`` of ``assembler``."""
    source = Path(folder, "kernel.ptx")
    source.write_text(ptx)
    whole = [*command, str(source), "-o", str(Path(folder, "kernel.cubin"))]
    return subprocess.run(whole, capture_output=True, text=True, check=False)


def in_time(seconds: float, work: Callable[[], Result]) -> Result:
    """The result of ``work()`` in a forked process, which is ended after ``seconds``. The result must pickle.

    Raises TimeoutError then, RuntimeError where the process dies, and what ``work`` raises.
    """

    def quiet() -> Result:
        # Triton prints all the code that its assembler refuses.
        with contextlib.redirect_stdout(io.StringIO()):
            return work()

    child = multiprocess.Child(quiet)
    try:
        if not child.answer.poll(seconds):
            raise TimeoutError
        return child.result()  # type: ignore[no-any-return]
    finally:
        child.stop()


def _timed(launch: Launch) -> float | None:
    """Compiles the launch. Returns the seconds that it took, None where Triton's cache had it."""
    fresh: list[bool] = []

    def listen(*, cache_hit: bool = False, **_: Any) -> None:
        fresh.append(not cache_hit)

    before, knobs.compilation.listener = knobs.compilation.listener, listen
    began = time.perf_counter()
    try:
        offline.compile_launch(launch)
    finally:
        knobs.compilation.listener = before
    return time.perf_counter() - began if any(fresh) else None
