"""Answers ``pynvml`` for an assumed GPU: one handle with the name, memory and capability of the target.

Tilescope's own queries keep the real module.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.execution.assumed_answers import Answers

#: Starts of the names of functions that ask NVML.
_ASKING = ("nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEvent", "nvmlGpu", "nvmlVgpu")


@contextlib.contextmanager
def imported(answers: Answers) -> Iterator[None]:
    """While active, ``import pynvml`` yields a module that describes the GPU of ``answers``; others fail with NVML's own error."""
    try:
        import pynvml  # noqa: PLC0415 - a machine without it has nothing to answer
    except ImportError:
        yield
        return
    module = types.ModuleType("pynvml", pynvml.__doc__)
    vars(module).update({name: _stand_in(answers, pynvml, name) for name in vars(pynvml) if not name.startswith("__")})
    vars(module)["__wrapped__"] = pynvml
    sys.modules["pynvml"] = module
    try:
        yield
    finally:
        sys.modules["pynvml"] = pynvml


def _stand_in(answers: Answers, nvml: Any, name: str) -> Any:
    known = _answers(answers, nvml).get(name)
    real = getattr(nvml, name)
    if known is None and not (name.startswith(_ASKING) and callable(real)):
        return real

    @functools.wraps(real)
    def call(*args: Any, **options: Any) -> Any:
        query = f"pynvml.{name}()"
        if known is None:
            answers.refuse(query)
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        value = known(*args, **options)
        if name.startswith(_ASKING) and "Handle" not in name:
            answers.tell(query, str(value) if hasattr(value, "_fields_") else value)
        return value

    return call


def _answers(answers: Answers, nvml: Any) -> dict[str, Callable[..., Any]]:
    total = answers.device.memory_bytes

    def handle(index: Any) -> int:
        if int(index):
            raise nvml.NVMLError(nvml.NVML_ERROR_INVALID_ARGUMENT)
        return 0

    return {
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), lambda *_: None),
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetIndex": lambda _: 0,
        "nvmlDeviceGetName": lambda _: answers.device.name,
        "nvmlDeviceGetCudaComputeCapability": lambda _: answers.capability,
        "nvmlDeviceGetMemoryInfo": lambda _, version=None: nvml.c_nvmlMemory_t(total=total, free=total, used=0),
    }
