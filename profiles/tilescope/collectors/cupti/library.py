"""Finds, loads and calls CUPTI's library. Its errors become messages with the cure. Imports neither torch nor triton."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tilescope.collectors.cupti.structures import GetChipName, Initialize, Parameters
from tilescope.collectors.ncu import counters

#: Result codes (``CUptiResult``) for obstacles of the machine, with messages that name the cure.
_NEWER = "pip install --upgrade nvidia-cuda-cupti"
_REFUSED = {
    26: counters.HELD,
    33: "CUPTI counts nothing on this virtual GPU: use one that is passed through whole, or ncu",
    35: counters.PERMISSION,
    38: f"CUPTI {{version}} cannot count on this GPU with this driver: {_NEWER}, or ncu",
    39: "another profiler (torch.profiler, Proton, Nsight) is attached to this process, and CUPTI serves one at a time: end it, or collect cupti alone",
    40: "the hypervisor keeps performance counters from this virtual GPU: have its administrator allow profiling",
    41: "CUPTI counts nothing in confidential computing mode: turn it off on this GPU",
    42: "CUPTI counts nothing on a mining processor: use another GPU",
    43: "CUPTI counts nothing on a MIG instance: use a whole GPU, or ncu",
    44: "CUPTI counts nothing on GPUs joined by SLI: take them apart",
    45: "CUPTI counts nothing under this Windows Subsystem for Linux: enable counters for all users in the NVIDIA control panel",
    46: f"CUPTI {{version}} does not know the chip {{chip}}: {_NEWER}",
}  # fmt: skip
ABSENT = "libcupti is not here: pip install nvidia-cuda-cupti"
_TOO_OLD = f"this CUPTI has no Range Profiler, which came with CUDA 12.6: {_NEWER}"
#: Folders of the library below one of CUDA.
_BELOW = ("extras/CUPTI/lib64", "lib64", "lib")
_NAME = re.compile(r"libcupti\.so(\.\d+)*")


class CuptiError(RuntimeError):
    """A function of CUPTI failed. The message names it and its result."""


class Refused(CuptiError):
    """CUPTI gives no counters on this machine. The message says why and what to do."""


class Library:
    """A loaded CUPTI. Raises Refused where it cannot be loaded."""

    def __init__(self, path: str) -> None:
        try:
            self.handle = ctypes.CDLL(path)
        except OSError as error:
            raise Refused(f"libcupti cannot be loaded ({error}): {_NEWER}") from error
        self.path = path

    def call(self, parameters: Parameters) -> Parameters:
        """Calls the function that ``parameters`` belong to and returns them, filled in. Raises Refused or CuptiError."""
        try:
            function = self.handle[parameters.function]
        except AttributeError as error:
            raise Refused(_TOO_OLD) from error
        self.check(int(function(ctypes.byref(parameters))), parameters.function)
        return parameters

    def check(self, code: int, function: str) -> None:
        """Raises Refused or CuptiError for a result other than success."""
        if code in _REFUSED:
            raise Refused(_REFUSED[code].format(version=self.version, chip=self.asked_chip))
        if code:
            said = ctypes.c_char_p()
            self.handle.cuptiGetResultString(code, ctypes.byref(said))
            result = (said.value or b"an unknown result").decode(errors="replace")
            raise CuptiError(f"CUPTI {self.version}: {function} gave {result} ({code})")

    #: The last requested chip, for messages.
    asked_chip = "of this GPU"

    @property
    def version(self) -> str:
        """The version of CUPTI's interface: ``130000`` for CUDA 13.0."""
        found = ctypes.c_uint32()
        self.handle.cuptiGetVersion(ctypes.byref(found))
        return str(found.value)

    def initialize(self) -> None:
        """Starts the profiler in this process. It may be called again."""
        self.call(Initialize())

    def chip(self, device: int) -> str:
        """The name of the chip (``GH100``) of CUDA's device number ``device``."""
        name = self.call(GetChipName(deviceIndex=device)).chipName
        return str((name or b"").decode())


def load() -> Library:
    """Loads the library that this process has loaded already, since two would disturb each other, or else the first one found.

    Raises Refused where there is none.
    """
    path = _loaded() or find()
    if path is None:
        raise Refused(ABSENT)
    return Library(str(path))


def find() -> Path | None:
    """The library's file, in NVIDIA's package or else in CUDA's folders, the newest version first."""
    return next(_places(), None)


def _places() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    for package in packages:
        yield from _newest([*package.glob("cu*/lib/libcupti.so*"), *package.glob("cuda_cupti/lib/libcupti.so*")])
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots += [Path("/usr/local/cuda"), *Path("/usr/local").glob("cuda-*")]
    for root in roots:
        for below in _BELOW:
            yield from _newest((root / below).glob("libcupti.so*"))


def _newest(files: Iterator[Path] | list[Path]) -> list[Path]:
    fitting = [file for file in files if _NAME.fullmatch(file.name) and file.is_file()]
    return sorted(fitting, key=lambda file: [int(number) for number in re.findall(r"\d+", str(file))], reverse=True)


def _loaded() -> str | None:
    """The library's file in this process's memory, as torch loads it; None without one."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = (line.split(maxsplit=5)[-1] for line in maps.splitlines() if "libcupti.so" in line)
    return next((path for path in found if _NAME.fullmatch(Path(path).name)), None)
