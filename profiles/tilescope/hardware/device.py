"""Which GPU is here, which stands in where there is none, and which versions take part.

NVML is asked, which starts no CUDA context and needs no torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilescope.hardware import ceilings
from tilescope.table.run import Device

#: CUDA cores of a multiprocessor; 128 on every architecture since 8.6 (CUDA C++ Programming Guide, compute capabilities).
_CORES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}

#: What takes part, or is compared with, and the distributions that bring it.
_VERSIONED = {
    "torch": ("torch",),
    "triton": ("triton",),
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "cudnn": ("nvidia-cudnn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "liger-kernel": ("liger-kernel",),
    "bitsandbytes": ("bitsandbytes",),
    "cut-cross-entropy": ("cut-cross-entropy",),
}

#: The process in which NVML has been started: a fork has to start it anew.
_STARTED: set[int] = set()

#: Where NVIDIA's installers put ncu without a link on PATH.
_NCU_PLACES = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/opt/cuda/bin",
)


class NoDeviceError(RuntimeError):
    """No NVIDIA GPU can be used. The message says why and what to do."""


def for_target(target: str) -> Device:
    """The product that stands for a target (``sm_90`` is an H200), by its datasheet. Raises ValueError if unknown."""
    known = ceilings.product_for(target)
    return Device(
        known.name, known.target, known.multiprocessors, known.l2_bytes, known.memory_bytes, False, known.ceilings
    )


def detect() -> Device | None:
    """The first visible GPU with its datasheet roofs, or None. ``l2_bytes`` is 0 for a product not listed."""
    try:
        return _detect()
    except NoDeviceError:
        return None


def unavailable() -> str | None:
    """Why no kernel can run on a GPU here, in words a person can act on; None when one can."""
    try:
        _detect()
    except NoDeviceError as error:
        return str(error)
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed: pip install torch"
    if "+cpu" in torch_version:
        return f"torch {torch_version} is a CPU build: install a CUDA build (https://pytorch.org/get-started)"
    return None


def lock_name() -> str:
    """A name for the GPU that runs here, the same in every process: its UUID, or ``gpu`` where there is none."""
    return uuid() or "gpu"


def uuid() -> str:
    """The UUID of the GPU that runs here; empty where there is none."""
    try:
        with _nvml() as nvml:
            found: Any = nvml.nvmlDeviceGetUUID(_visible(nvml))
            return str(found)
    except NoDeviceError:
        return ""


def shareable() -> bool:
    """Whether there is a GPU on which more than one program may have a context at a time."""
    try:
        with _nvml() as nvml:
            return bool(nvml.nvmlDeviceGetComputeMode(_visible(nvml)) == nvml.NVML_COMPUTEMODE_DEFAULT)
    except NoDeviceError:
        return False


def clocks() -> dict[str, float]:
    """The clock that the multiprocessors run at now, ``sm_clock``, in hertz, as NVML reads it; empty where it does not tell.

    Asked right after the last call of a series it is the one that the series ended with: an idle GPU lowers it only later.
    """
    try:
        with _nvml() as nvml:
            return {"sm_clock": nvml.nvmlDeviceGetClockInfo(_visible(nvml), nvml.NVML_CLOCK_SM) * 1e6}
    except NoDeviceError:
        return {}


def driver() -> str:
    """Version of the NVIDIA driver; empty where there is none."""
    try:
        with _nvml() as nvml:
            return str(nvml.nvmlSystemGetDriverVersion())
    except NoDeviceError:
        return ""


def installed() -> dict[str, str]:
    """Versions of the installed packages that take part, by name."""
    found: dict[str, str] = {}
    for name, distributions in _VERSIONED.items():
        for distribution in distributions:
            try:
                found[name] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    return found


def find_ncu() -> str | None:
    """Path of the Nsight Compute CLI: on PATH, else where NVIDIA's installers put it, newest first."""
    on_path = shutil.which("ncu")
    if on_path:
        return on_path
    for place in _NCU_PLACES:
        root = Path(place).anchor
        found = [p for p in Path(root).glob(str(Path(place, "ncu").relative_to(root))) if os.access(p, os.X_OK)]
        if found:
            return str(max(found, key=_version_key))
    return None


def _version_key(path: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", str(path))]


def _detect() -> Device:
    with _nvml() as nvml:
        handle = _visible(nvml)
        name = str(nvml.nvmlDeviceGetName(handle))
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        cores = nvml.nvmlDeviceGetNumGpuCores(handle)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
    known = ceilings.product(name)
    return Device(
        name,
        f"sm_{major}{minor}",
        cores // _CORES.get((major, minor), 128),
        known.l2_bytes if known else 0,
        memory,
        True,
        ceilings.datasheet(name),
    )


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, which stays started in this process while it answers. Errors become NoDeviceError."""
    try:
        import pynvml  # noqa: PLC0415 - a machine without it still opens runs
    except ImportError as error:
        raise NoDeviceError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from error
    try:
        if os.getpid() not in _STARTED:
            pynvml.nvmlInit()
            _STARTED.add(os.getpid())
    except pynvml.NVMLError as error:
        raise NoDeviceError(
            f"no NVIDIA GPU here (NVML: {error}): the compiler and interpreter collectors work without one"
        ) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        _STARTED.clear()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        raise NoDeviceError(f"the NVIDIA driver does not answer (NVML: {error}): see nvidia-smi") from error


def _visible(nvml: Any) -> Any:
    """Handle of the GPU that CUDA calls device 0, as CUDA_VISIBLE_DEVICES orders them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        if nvml.nvmlDeviceGetCount() == 0:
            raise NoDeviceError("no NVIDIA GPU here: the compiler and interpreter collectors work without one")
        return nvml.nvmlDeviceGetHandleByIndex(0)
    first = visible.split(",")[0].strip()
    if first.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    if first.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    raise NoDeviceError(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU: unset it")
