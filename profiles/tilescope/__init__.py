"""Tilescope's profiler: runs kernels and gathers what compiler, interpreter and hardware say in one table.

Each name is loaded when it is first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib

from tilescope.version import VERSION as __version__

TYPE_CHECKING = False  # typing's is the same to a type checker, and slow to import
if TYPE_CHECKING:
    from typing import Any

    from tilescope.notebook.capturing import Capture, capture
    from tilescope.notebook.modelling import profile_model
    from tilescope.notebook.opened_run import Profile, load, open_file, recordings
    from tilescope.notebook.profiling import profile, profile_kernels, resume
    from tilescope.notebook.user_kernel import spec
    from tilescope.notebook.watching import Watch
    from tilescope.runs.store import LoadedRun, find, list_runs, open_run
    from tilescope.tuning.autotuning import autotune

__all__ = [
    "Capture", "LoadedRun", "Profile", "Watch", "__version__", "autotune", "capture", "find", "list_runs", "load", "open_file", "open_run",
    "profile", "profile_kernels", "profile_model", "recordings", "resume", "spec",
]  # fmt: skip

_HOMES = {
    "autotune": "tuning.autotuning",
    "Capture": "notebook.capturing", "capture": "notebook.capturing",
    "load_ipython_extension": "notebook.cell_magic",
    "profile": "notebook.profiling", "profile_kernels": "notebook.profiling", "resume": "notebook.profiling",
    "profile_model": "notebook.modelling",
    "spec": "notebook.user_kernel",
    "Profile": "notebook.opened_run", "load": "notebook.opened_run", "open_file": "notebook.opened_run",
    "recordings": "notebook.opened_run", "Watch": "notebook.watching",
    "LoadedRun": "runs.store", "find": "runs.store", "list_runs": "runs.store", "open_run": "runs.store",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tilescope' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tilescope.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
