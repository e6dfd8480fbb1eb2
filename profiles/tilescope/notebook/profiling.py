"""``tilescope.profile``, ``profile_kernels`` and ``resume``: run kernels from Python. Imports torch when it is used."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.jobs import supervisor
from tilescope.jobs.job import OnEvent
from tilescope.jobs.plan import AUTO, Request
from tilescope.notebook import cell_source, live_progress, user_kernel
from tilescope.notebook.capturing import LIMIT, Capture
from tilescope.notebook.live_progress import run, wait_for
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store

if TYPE_CHECKING:
    from tilescope_kernels.spec import KernelSpec

#: Names of dtypes in tolerances.
_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
#: The folder, below the folder of runs, of modules written from cells.
CELLS = "cells"


def profile(
    function: Callable[..., Any],
    *arguments: Any,
    reference: Callable[..., Any] | None = None,
    collectors: Sequence[str] = (AUTO,),
    target: str = "",
    title: str = "",
    runs_dir: Path | str | None = None,
    on_event: OnEvent | None = None,
    settings: Mapping[str, Any] | None = None,
    **named: Any,
) -> Profile:
    """Calls ``function(*arguments, **named)`` and profiles each Triton launch that it makes (see ``tilescope.capture``).

    ``reference`` is called with copies of the same arguments, and the results are compared. ``settings`` are those that
    the command takes as options: ``repetitions``, ``timeout`` and ``interpreter_limit`` in seconds, ``lanes_slowdown``. ``on_event`` is called with each event of the job; without it, a notebook and a terminal show the progress.
    This works where an event loop already runs, as in JupyterLab.

    Raises ValueError, in one line, for a request that cannot be served, and the function's own exceptions. Interrupting stops the
    workers and keeps the finished cases; the KeyboardInterrupt says how to open them.

    Names of the catalog, specs, and functions with ``inputs`` belong to ``profile_kernels``. Until 0.2 they are accepted here too.
    """
    about: dict[str, Any] = {"collectors": collectors, "title": title, "on_event": on_event, **(settings or {})}
    if isinstance(function, str) or hasattr(function, "implementations") or isinstance(named.get("inputs"), Mapping):
        said = "profile() of a name, a spec or inputs= ends with 0.2: call tilescope.profile_kernels() with the same arguments"
        warnings.warn(said, DeprecationWarning, stacklevel=2)
        about |= {"reference": reference, "runs_dir": runs_dir, "target": target, **named}
        return profile_kernels(function, *arguments, **about)
    about["runs_dir"] = Path(runs_dir) if runs_dir else store.runs_dir()
    store.check_writable(about["runs_dir"])
    user_kernel.check_launcher(function)
    copies = copied((arguments, named)) if reference is not None else ((), {})
    with Capture(target, float(about.get("interpreter_limit", LIMIT))) as capture:
        result = function(*arguments, **named)
    if reference is not None:
        expected = reference(*copies[0], **copies[1])
        capture.checked = compared(result, (arguments, named), expected, copies)
    name = getattr(function, "__name__", type(function).__name__)
    return capture.profile(**about | {"title": title or ("" if name == "<lambda>" else name)})


def profile_kernels(
    *kernels: Any,
    inputs: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    implementations: Sequence[str] = (),
    workloads: Sequence[str] = (),
    directions: Sequence[str] = (),
    collectors: Sequence[str] = (AUTO,),
    configs: Sequence[str] = (),
    target: str = "",
    title: str = "",
    runs_dir: Path | str | None = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Profile:
    """Profiles ``kernels`` and returns the finished run.

    Each kernel is a name from the catalog, ``path/to/file.py:SPEC``, a ``KernelSpec``, or a function that launches a Triton
    kernel, with examples of its ``inputs`` and its ``reference`` (see ``tilescope.spec``), against which it is checked.
    Definitions of a notebook's cells are written to a file for the worker. An empty argument means all: every
    available implementation, the kernel's own workloads, its passes. ``directions`` are ``forward`` and ``backward``, ``configs`` texts
    such as ``BLOCK=64,num_warps=4``. ``settings``, ``on_event``, errors and interrupts are as in ``profile``.
    """
    folder = Path(runs_dir) if runs_dir else store.runs_dir()
    store.check_writable(folder)
    names = [reference_to(kernel, folder / CELLS, inputs, reference) for kernel in kernels]
    if reference is not None and AUTO in collectors:
        collectors = ("check", *collectors)
    request = Request(
        names, implementations, workloads, directions, collectors, configs, target, settings=settings, title=title
    )
    loaded = run(request, folder, on_event or live_progress.progress())
    # Copies the cells' modules into the run, so that it can be passed on with them.
    for file in (Path(name.rpartition(":")[0]) for name in names):
        if file.parent == folder / CELLS:
            (loaded.folder / CELLS).mkdir(exist_ok=True)
            shutil.copy(file, loaded.folder / CELLS)
    return Profile.of(loaded)


def resume(name: Path | str, on_event: OnEvent | None = None) -> Profile:
    """Resumes an interrupted run, by its id, its folder or ``latest``, and returns it when it is finished.

    ``on_event`` is as in ``profile``. Raises ValueError, in one line, for a run that is complete, or that was made on another
    device, with other versions or other code.
    """
    folder = store.find_interrupted(str(name))

    async def work(on_event: OnEvent) -> Path:
        return await supervisor.resume(folder, on_event)

    return Profile.of(store.open_run(wait_for(work, on_event or live_progress.progress())))


def reference_to(
    kernel: Any, folder: Path, inputs: Mapping[str, Any] | None = None, reference: Callable[..., Any] | None = None
) -> str:
    """The text by which a worker finds ``kernel``: a name of the catalog, or a file, which may be written into ``folder``.

    Raises ValueError for a value that is no kernel, and CannotCarry (a ValueError) for one that cannot be written to a file.
    """
    if isinstance(kernel, str):
        return kernel
    if hasattr(kernel, "implementations"):
        return _imported(kernel) or cell_source.write_spec(kernel, folder)
    user_kernel.check_launcher(kernel)
    if inputs is None or reference is None:
        name = getattr(kernel, "__name__", repr(kernel))
        raise ValueError(
            f"{name}: give examples of its inputs and a reference, as in profile_kernels({name}, "
            f"inputs={{'x': torch.randn(64, 100)}}, reference=in_plain_pytorch)"
        )
    return cell_source.write_spec(user_kernel.spec(kernel, inputs=inputs, reference=reference), folder)


def _imported(spec: KernelSpec) -> str:
    """The name or file of a spec that is a variable of an imported module (that of its ``inputs``); empty otherwise."""
    module = sys.modules.get(spec.inputs.__module__)
    name = next((name for name, value in vars(module).items() if value is spec), "") if module else ""
    if not module or not name or module.__name__ == "__main__":
        return ""
    if any(known is spec for known in getattr(sys.modules.get("tilescope_kernels"), "CATALOG", ())):
        return spec.name
    return f"{module.__file__}:{name}"


def compared(result: Any, given: Any, expected: Any, given_reference: Any) -> str:
    """The error of the function's results against the reference's, in one line; of its arguments where it returns no tensor."""
    from tilescope.collectors import check  # noqa: PLC0415

    ours, theirs = user_kernel.tensors(result), user_kernel.tensors(expected)
    if not ours and not theirs:
        ours, theirs = user_kernel.tensors(given), user_kernel.tensors(given_reference)
    if len(ours) != len(theirs):
        return f"check failed: the function gives {len(ours)} tensors, the reference {len(theirs)}"
    worst, said = 0.0, ""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        dtype = str(one.dtype).removeprefix("torch.")
        allowed = user_kernel.TOLERANCE.get(_SHORT.get(dtype, ""), 0.0)
        try:
            error = check.relative_errors(one.detach(), other.detach().double(), f"result {number}")
        except check.CheckFailed as failed:
            return f"check failed: {failed}"
        share = max(error.whole / allowed, error.row / (check.ROW_FACTOR * allowed)) if allowed else error.whole
        if share >= worst:
            worst = share
            wrong = share > 1 if allowed else error.whole > 0
            verdict = "wrong" if wrong else "right"
            limit = f" (allowed {allowed:.0e})" if allowed else ""
            said = f"check: {verdict}: result {number} in {dtype} is {error.whole:.2g} from the reference{limit}"
    return said or "check failed: neither the function nor the reference gives a tensor"


def copied(value: Any) -> Any:
    """A copy with its own tensors, so that the reference does not see what the function writes."""
    import torch  # noqa: PLC0415
    from torch.utils._pytree import tree_map  # noqa: PLC0415

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(copy, value)
