"""What a person types to have what a run lacks."""

from __future__ import annotations

import shlex
from pathlib import Path

from tilescope_dashboard.session.state import State


def about(state: State, verb: str, *options: str) -> str:
    """``tilescope VERB KERNEL OPTIONS`` for the chosen kernel, as a shell takes it. Not escaped for HTML."""
    described = state.loaded.run.kernels.get(state.kernel, {}) if state.loaded else {}
    # A person's own kernel is found by its file; the library's are named below their package.
    file = str(described.get("file", ""))
    name = f"{file}:{state.kernel}" if Path(file).is_absolute() else state.kernel or "softmax"
    return shlex.join(["tilescope", verb, name, *options])
