"""The GPU of this machine, the product that stands for a target, and the versions of installed software.

Queries go to NVML, which starts no CUDA context and needs no torch.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from tilescope.hardware import ceilings
from tilescope.table.run import Device

#: CUDA cores of a multiprocessor where that is not 128, as since 8.6 (CUDA C++ Programming Guide, compute capabilities).
_CORES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}

#: Software whose version a run keeps, and the distributions that contain it.
_VERSIONED = {
    "torch": ("torch",),
    "triton": ("triton",),
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"),
    "cudnn": ("nvidia-cudnn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "liger-kernel": ("liger-kernel",),
    "bitsandbytes": ("bitsandbytes",),
    "cut-cross-entropy": ("cut-cross-entropy",),
}

#: The process that started NVML: a fork has to start it again.
_STARTED: set[int] = set()

#: Folders where NVIDIA's installers put ncu without a link on PATH.
NCU_PLACES = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/opt/cuda/bin",
)


class NoDeviceError(RuntimeError):
    """No NVIDIA GPU can be used. The message says why and what to do."""


Answer = TypeVar("Answer")


def for_target(target: str) -> Device:
    """The product that stands for a target, by its datasheet: an H200 for ``sm_90``. Raises ValueError for an unknown one."""
    known = ceilings.product_for(target)
    return Device(
        known.name, known.target, known.multiprocessors, known.l2_bytes, known.memory_bytes, False, known.ceilings
    )


def detect() -> Device | None:
    """The first visible GPU with its datasheet roofs, or None. ``l2_bytes`` is 0 for an unlisted product."""
    return _answer(_detect, None)


def unavailable() -> str | None:
    """Says why no kernel can run on a GPU here and what to do; None where one can."""
    try:
        with _nvml() as nvml:
            _detect(nvml)
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
    """A name of the GPU that is the same in every process: its UUID, or ``gpu`` where there is none."""
    return uuid() or "gpu"


def uuid() -> str:
    """The UUID of the GPU; empty where there is none."""
    return _answer(lambda nvml: str(nvml.nvmlDeviceGetUUID(_visible(nvml))), "")


def count() -> int:
    """The number of GPUs of this host, visible or not."""
    return _answer(lambda nvml: int(nvml.nvmlDeviceGetCount()), 0)


def shareable() -> bool:
    """Whether there is a GPU on which several programs may have a context at the same time."""
    return _answer(lambda nvml: nvml.nvmlDeviceGetComputeMode(_visible(nvml)) == nvml.NVML_COMPUTEMODE_DEFAULT, False)


def make_context() -> bool:
    """Makes the first GPU's primary context, which PyTorch will use too, and makes it this thread's; False where that fails.

    PyTorch is not initialised, so a script can still set its options. Raises OSError without CUDA's driver.
    """
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    return not (
        cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
    )


def clocks() -> dict[str, float]:
    """The current clock of the multiprocessors, ``sm_clock`` in hertz; empty where NVML does not report it.

    Right after a series of calls it is the clock at the end of the series: an idle GPU lowers it only later.
    """
    return _answer(lambda nvml: {"sm_clock": nvml.nvmlDeviceGetClockInfo(_visible(nvml), nvml.NVML_CLOCK_SM) * 1e6}, {})


def power() -> dict[str, float]:
    """The joules that the GPU has used since its driver was loaded, ``energy``, and its ``power_limit`` in watts; empty where NVML cannot say.

    The counter of energy moves a few times in 0.1 s.
    """

    def ask(nvml: Any) -> dict[str, float]:
        handle = _visible(nvml)
        limit = nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        return {"energy": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3, "power_limit": limit * 1e-3}

    return _answer(ask, {})


def busy() -> float:
    """The share of the last second, or less, in which the GPU ran a kernel of anyone; 0 where NVML cannot say."""
    return _answer(lambda nvml: nvml.nvmlDeviceGetUtilizationRates(_visible(nvml)).gpu / 100, 0.0)


def driver() -> str:
    """Version of the NVIDIA driver; empty where there is none."""
    return _answer(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()), "")


def _answer(ask: Callable[[Any], Answer], otherwise: Answer) -> Answer:
    """The value of ``ask`` for NVML, or ``otherwise`` where no GPU can be used."""
    try:
        with _nvml() as nvml:
            return ask(nvml)
    except NoDeviceError:
        return otherwise


def installed() -> dict[str, str]:
    """Versions of the installed software whose version a run keeps, by name."""
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
    """Path of the Nsight Compute CLI: the one on PATH, or else the newest where NVIDIA's installers put it."""
    on_path = shutil.which("ncu")
    if on_path:
        return on_path
    for place in NCU_PLACES:
        root = Path(place).anchor
        found = [p for p in Path(root).glob(str(Path(place, "ncu").relative_to(root))) if os.access(p, os.X_OK)]
        if found:
            return str(max(found, key=lambda path: [int(part) for part in re.findall(r"\d+", str(path))]))
    return None


def _detect(nvml: Any) -> Device:
    handle = _visible(nvml)
    name = str(nvml.nvmlDeviceGetName(handle))
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    known = ceilings.product(name)
    return Device(
        name,
        f"sm_{major}{minor}",
        nvml.nvmlDeviceGetNumGpuCores(handle) // _CORES.get((major, minor), 128),
        known.l2_bytes if known else 0,
        nvml.nvmlDeviceGetMemoryInfo(handle).total,
        True,
        ceilings.datasheet(name),
    )


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, which stays started in this process until it fails. Its errors become NoDeviceError."""
    try:
        import pynvml  # noqa: PLC0415 - a machine without it still opens runs
    except ImportError as error:
        raise NoDeviceError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from error
    pynvml = getattr(pynvml, "__wrapped__", pynvml)  # an assumed GPU has a stand-in
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
