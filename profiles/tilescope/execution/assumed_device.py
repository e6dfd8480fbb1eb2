"""Assumes a GPU that is not there, so that launchers run: device queries are answered as that GPU would.

Launchers ask for the number of multiprocessors, allocate with ``device="cuda"``, and refuse tensors that are not on a GPU.
``assumed`` lets them run without one, and keeps the answers that it gave. It neither launches nor times anything: catch the
launches with ``launches.catch``.

It covers ``torch.cuda``'s queries, streams, events and contexts, ``torch.accelerator``, ``torch.version.cuda``, Triton's driver,
``device="cuda"`` of every factory, ``Tensor.cuda`` and ``to``, modules, generators, autocast (by the host's lists of operators),
``autograd.Function`` in both directions, operators that are implemented for CUDA alone, the program ``nvidia-smi`` and the module
``pynvml``. Answers are from the datasheet of the product that stands for the target, and from the CUDA programming guide. Queries that neither answers, as
for clock rates, raise ``NoAnswer``.

It does not cover

* threads that were started before;
* answers that a module has kept, from its import or by ``functools.cache``: use one process for each target;
* queries by C++ code and copies of ``pynvml`` inside libraries, replays of CUDA graphs, and legacy constructors as ``torch.cuda.FloatTensor``;
* ``torch.compile``, which queries in processes of its own (see ``without_compiler``);
* launchers that read a value, with tensors on ``meta``;
* errors for mixing tensors of host and GPU: there are none.

Afterwards PyTorch takes CUDA for initialised: ``device="cuda"`` fails with another message than before. A real GPU is hidden: its
own tensors must not be used meanwhile.

Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from tilescope_kernels.spec import KernelSpec
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver

from tilescope.execution import assumed_answers, assumed_nvml, assumed_tensors, offline
from tilescope.execution.assumed_answers import NoAnswer as NoAnswer  # noqa: PLC0414 - exported for callers
from tilescope.hardware import ceilings
from tilescope.table.case import Case

_lock = threading.Lock()
_current: Assumed | None = None


class Assumed:
    """An assumed GPU. ``answers`` holds its specification and the queries so far.

    ``place`` is where its tensors really are: ``cpu``, or ``meta`` for shapes without data. Raises ValueError for another place
    and for an unknown target.
    """

    def __init__(self, target: str, place: str) -> None:
        if place not in ("cpu", "meta"):
            raise ValueError(f"tensors cannot be kept on {place!r}: use cpu or meta")
        toolkit = get_ptxas(offline.capability(target)).version
        self.answers = assumed_answers.Answers(target, toolkit)
        self.target, self.place = target, place
        self.active = False
        #: Whether PyTorch's compiler is imported and told to leave functions uncompiled.
        self.uncompiled = False
        #: Whether ``torch.compile`` was called.
        self.asked_to_compile = False
        self._uncompiled: contextlib.ExitStack | None = None

    def as_data(self) -> dict[str, Any]:
        """``Answers.as_data``: the assumption as plain data."""
        return self.answers.as_data()

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        yield from assumed_answers.answers_of(self.answers)
        yield from assumed_tensors.DeviceReplacements(self.place).replacements()
        yield threading.Thread, "start", functools.partial(self._start, threading.Thread.start)
        yield torch, "compile", functools.partial(self._compile, torch.compile)

    @contextlib.contextmanager
    def without_compiler(self) -> Iterator[None]:
        """While active, functions under ``torch.compile`` run uncompiled.

        Without this, the compiler leaves functions uncompiled where a mode observes operators, but refuses with
        ``fullgraph=True``.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_uncompiled", None)
            self._uncompiled = stack
            self._run_uncompiled()
            yield

    def _run_uncompiled(self) -> None:
        # Importing the compiler takes seconds: only where it is used.
        stack = self._uncompiled
        if stack is not None and not self.uncompiled and hasattr(sys.modules.get("torch._dynamo"), "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            self.uncompiled = True

    def _compile(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        self.asked_to_compile = True
        self._run_uncompiled()
        return made

    def _start(self, original: Any, thread: threading.Thread) -> None:
        run = thread.run

        def inside() -> None:
            with assumed_tensors.MarkingMode(self.place) if self.active else contextlib.nullcontext():
                run()

        thread.run = inside  # type: ignore[method-assign]
        original(thread)


@contextlib.contextmanager
def assumed(target: str, place: str = "cpu") -> Iterator[Assumed]:
    """While active, device queries of this process are answered for ``target`` (``sm_90``).

    ``place`` is where tensors "on the GPU" really are: ``cpu``, or ``meta`` for shapes without data. Only this thread and those that
    it starts can make such tensors.

    A nested call for the same target and place yields the same object; for another it raises RuntimeError. Raises ValueError for
    a target without a listed product.
    """
    global _current  # noqa: PLW0603 - what it answers for is the process's too
    with _lock:
        within, found = _current, _current or Assumed(target, place)
        if (found.target, found.place) != (target, place):
            raise RuntimeError(
                f"{found.target} on {found.place} is assumed already: end that before you assume {target} on {place}"
            )
        _current = found
    if within is not None:
        with assumed_tensors.MarkingMode(place):
            yield found
        return
    before = driver._active
    try:
        found.active = True
        with contextlib.ExitStack() as stack:
            stack.enter_context(assumed_tensors.replaced(found._replacements()))
            stack.enter_context(assumed_tensors.MarkingMode(place))
            stack.enter_context(assumed_nvml.on_path(found.answers))
            stack.enter_context(assumed_nvml.imported(found.answers))
            driver.set_active(offline.OfflineDriver(target, found.answers))
            try:
                yield found
            finally:
                if torch.get_default_device().type == "cuda":
                    torch.set_default_device(None)
    finally:
        driver._active = before
        found.active = False
        _current = None


@contextlib.contextmanager
def for_launcher(spec: KernelSpec, case: Case, target: str, place: str) -> Iterator[Assumed | None]:
    """``assumed`` for a case whose launcher may query the GPU; yields None for any other case.

    Launchers of other libraries and of users may query it. The catalog's own ask ``launching`` instead, which chooses kernels that
    can be interpreted while launches are caught. Also yields None for a target without a listed product.
    """
    if target not in ceilings.targets() or not _asks(spec, case):
        yield None
        return
    with assumed(target, place) as found:
        yield found


def _asks(spec: KernelSpec, case: Case) -> bool:
    chosen = spec.implementations.get(case.impl)
    if chosen is None:
        return False
    module = str(getattr(chosen.call, "__module__", ""))
    return bool(chosen.requires) or not module.startswith("tilescope_kernels.")
