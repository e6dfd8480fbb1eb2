"""Faults of an autotuner: a kernel that overwrites its inputs, which trials then change, and a key that is no argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tilescope.interpreter import arguments
from tilescope.interpreter.races import Races

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch


def faults(launch: Launch, races: Races | None) -> Iterator[dict[str, Any]]:
    """Records of the faults of the launch's autotuner (``tilescope.table.kernel_faults``)."""
    tuner = launch.tuner
    configs = getattr(tuner, "configs", ())
    # A library's own class may restore tensors in its own way.
    if len(configs) < 2 or not hasattr(tuner, "restore_value"):
        return
    line = int(getattr(launch.function, "starting_line_number", 0))
    if unknown := [name for name in getattr(tuner, "keys", ()) if name not in tuner.arg_names]:
        yield {"kind": "unknown-key", "line": line, "names": ", ".join(unknown)}
    # A hook may restore anything.
    hooked = getattr(tuner, "user_defined_pre_hook", False) or any(config.pre_hook for config in configs)
    restored = {*tuner.restore_value, *getattr(tuner, "reset_to_zero", ())}
    for index in sorted(races.overwritten) if races is not None and not hooked else ():
        names = arguments.names_at(launch.arguments, races.written.start(index)) if races is not None else []
        if names and not restored & set(names):
            yield {"kind": "tuned-in-place", "line": line, "tensor": " and ".join(names), "configs": len(configs)}
