"""A GPU that is not there: while it is assumed, device queries are answered as its own.

Launchers ask how many multiprocessors there are, allocate with ``device="cuda"``, and refuse tensors that are not on a GPU.
``assumed`` lets them run where there is none, and says afterwards what it told them. Nothing is timed by it, and nothing
launched: catch the launches (``launches.catch``).

Answered are ``torch.cuda``'s queries, streams, events and contexts, ``torch.accelerator``, ``torch.version.cuda``, Triton's
driver, ``device="cuda"`` of every factory, ``Tensor.cuda`` and ``to``, modules, generators, autocast (by the host's lists of
operators), ``autograd.Function`` in both directions, and operators that are implemented for CUDA alone. The values are the
datasheet's of the product that stands for the target, and the programming guide's for its architecture. A query that neither
answers, as clock rates and elapsed times, raises ``NoAnswer``.

Not covered: threads that ran before (those started meanwhile are); what a module keeps for itself, as a count of multiprocessors
that it asked for while it was imported or that ``functools.cache`` holds (use one process for a target); what C++ code asks;
CUDA graphs; ``torch.compile``, whose code generator asks in processes of its own (``without_compiler``); with ``meta``, launchers that read a value;
legacy constructors as ``torch.cuda.FloatTensor``. Mixing tensors of host and GPU raises no error. PyTorch keeps that CUDA was
started: afterwards ``device="cuda"`` fails with another message than before. With a real GPU, tensors, streams and events stay
as they are, and only queries are answered, unless ``tensors`` hides it.

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

from tilescope.execution import assumed_answers, assumed_tensors, offline
from tilescope.execution.assumed_answers import NoAnswer as NoAnswer  # noqa: PLC0414 - who assumes catches it
from tilescope.hardware import ceilings
from tilescope.table.case import Case

_lock = threading.Lock()
_current: Assumed | None = None


class Assumed:
    """A GPU that is assumed. ``answers`` holds its specification and what was asked; ``place`` is where its tensors are:
    ``cpu``, or ``meta`` for shapes without data."""

    def __init__(self, target: str, place: str, tensors: bool) -> None:
        if place not in ("cpu", "meta"):
            raise ValueError(f"tensors cannot be kept on {place!r}: use cpu or meta")
        toolkit = get_ptxas(offline.capability(target)).version
        self.answers = assumed_answers.Answers(target, toolkit)
        self.target, self.place = target, place
        self.active = False
        #: Whether tensors, streams and events are assumed too, and not those of a GPU that is here.
        self.tensors = tensors
        #: Whether PyTorch's compiler is there, and told to leave functions as they are.
        self.uncompiled = False
        #: Whether it was asked for a function.
        self.asked_to_compile = False
        self._uncompiled: contextlib.ExitStack | None = None

    @property
    def device(self) -> Any:
        """The product that stands for the target, a ``table.run.Device``."""
        return self.answers.device

    def as_data(self) -> dict[str, Any]:
        """What was assumed, as plain data: ``target``, ``name``, ``sources``, ``answers`` by query, ``refused`` queries."""
        return self.answers.as_data()

    @contextlib.contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """While active, what this thread asks for on the GPU is made; ``assumed`` and threads begun meanwhile do it."""
        with assumed_tensors.Moving(self.place) if self.tensors else contextlib.nullcontext():
            yield

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        def active() -> bool:
            return self.active

        yield from assumed_answers.queries(self.answers, active)
        if not self.tensors:
            return
        yield from assumed_answers.absent_gpu(self.answers, active)
        yield from assumed_tensors.Lying(self.place, active).replacements()
        yield threading.Thread, "start", self._starting(threading.Thread.start)
        yield torch, "compile", self._compiling(torch.compile)

    @contextlib.contextmanager
    def without_compiler(self) -> Iterator[None]:
        """While active, functions of PyTorch's compiler run as they were written; without it they are left to the compiler.

        Where somebody looks on at operators it leaves them as they are anyway, or, where a whole graph is asked for, refuses.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_uncompiled", None)
            self._uncompiled = stack
            self._run_uncompiled()
            yield

    def _run_uncompiled(self) -> None:
        # Importing the compiler takes seconds, and who never asked for it need not wait.
        stack = self._uncompiled
        if stack is not None and not self.uncompiled and hasattr(sys.modules.get("torch._dynamo"), "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            self.uncompiled = True

    def _compiling(self, original: Any) -> Any:
        @functools.wraps(original)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if self.active:
                self.asked_to_compile = True
                self._run_uncompiled()
            return made

        return compiled

    def _starting(self, original: Any) -> Any:
        def start(thread: threading.Thread) -> None:
            run = thread.run

            def inside() -> None:
                with self.in_this_thread() if self.active else contextlib.nullcontext():
                    run()

            if self.active:
                thread.run = inside  # type: ignore[method-assign]
            original(thread)

        return start


@contextlib.contextmanager
def assumed(target: str, place: str = "cpu", tensors: bool | None = None) -> Iterator[Assumed]:
    """While active, device queries are answered as those of ``target`` (``sm_90``), in this process.

    ``place`` is where tensors "on the GPU" are: ``cpu``, or ``meta`` for shapes without data. ``tensors`` says whether there are
    such: by default where there is no GPU; True hides one that is here, whose own tensors must then not be used. Assuming the
    same again within is allowed, and yields the same; another target or place raises RuntimeError. Raises ValueError for a
    target that no product stands for, naming those that are known.
    """
    global _current  # noqa: PLW0603 - what it answers for is the process's too
    with _lock:
        within, found = _current, _current
        if found is None:
            found = Assumed(target, place, not torch.cuda.is_available() if tensors is None else tensors)
        if (found.target, found.place) != (target, place):
            raise RuntimeError(
                f"{found.target} on {found.place} is assumed already: end that before you assume {target} on {place}"
            )
        _current = found
    if within is not None:
        with found.in_this_thread():
            yield found
        return
    before = driver._active
    try:
        found.active = True
        with assumed_tensors.replaced(found._replacements()), found.in_this_thread():
            driver.set_active(offline.OfflineDriver(target, found.answers))
            yield found
    finally:
        driver._active = before
        found.active = False
        _current = None


@contextlib.contextmanager
def for_launcher(spec: KernelSpec, case: Case, target: str, place: str) -> Iterator[Assumed | None]:
    """``assumed`` with its tensors for a case whose launcher asks PyTorch or Triton about the GPU; yields None for another.

    Another library's launcher and a person's ask. The catalog's own ask ``launching``, which knows of launches that are caught:
    what is interpreted then are kernels that can be. No product may stand for the target of a GPU that is here: None too.
    """
    if target not in ceilings.targets() or not _asks(spec, case):
        yield None
        return
    with assumed(target, place, tensors=True) as found:
        yield found


def _asks(spec: KernelSpec, case: Case) -> bool:
    chosen = spec.implementations.get(case.impl)
    if chosen is None:
        return False
    module = str(getattr(chosen.call, "__module__", ""))
    return bool(chosen.requires) or not module.startswith("tilescope_kernels.")
