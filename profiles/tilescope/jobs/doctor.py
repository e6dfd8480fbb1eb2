"""Examines this machine: what works, and the cure for what does not.

Torch and triton are imported in another process, because their import may crash.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescope.collectors.cupti import library
from tilescope.collectors.interpreter import TESTED
from tilescope.collectors.lanes import collector as lanes
from tilescope.hardware import device
from tilescope.jobs import triton_setup
from tilescope.jobs.versions import versions
from tilescope.runs import store

#: Files of the driver with its settings and its version.
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")
#: First version of numpy that breaks triton 3.6's interpreter.
NUMPY_LIMIT = (2, 4)
#: The least versions that Tilescope runs with, the newest that were tried, and the Triton of the recordings.
LEAST = {"python": (3, 11), "torch": (2, 11), "triton": (3, 6)}
NEWEST = {"python": (3, 14), "torch": (2, 15), "triton": (3, 9)}
RECORDED = (3, 6)

_PROBE = """
import json, sys
found = {}
for name in ("numpy", "torch", "triton"):
    try:
        found[name] = __import__(name).__version__
    except BaseException as error:
        found[name + "_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
if "torch" in found:
    import importlib.metadata, re, torch
    needs = " ".join(importlib.metadata.requires("torch") or [])
    found["torch_triton"] = (re.findall(r"triton==([\\d.]+)", needs) or [""])[0]
    found["cuda_build"] = torch.version.cuda
    found["cuda"] = torch.cuda.is_available()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Finding:
    """The result of one examination: whether it is ``ok``, what was ``found``, and a ``cure`` if it is not."""

    name: str
    ok: bool
    found: str
    cure: str = ""


def examine() -> list[Finding]:
    """All findings, in the order to fix them. Never raises; takes some seconds."""
    probe = _probe()
    gpu = device.detect()
    return [
        Finding("python", True, f"{platform.python_version()} ({sys.executable})"),
        _gpu(gpu is not None, f"{gpu.name} ({gpu.target})" if gpu else device.unavailable() or ""),
        driver(DRIVER_VERSION, gpu is not None),
        torch(probe, gpu is not None),
        triton(probe),
        combination(probe, sys.version_info[:2]),
        cache(),
        interpreter(probe),
        ncu(),
        cupti(),
        counters(DRIVER_PARAMETERS, gpu is not None),
        compiler(),
        runs(),
    ]


def _probe() -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE], capture_output=True, text=True, timeout=120, check=False
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        crashed = {"torch_error": f"the import crashed: {error}"}
        return crashed | dict.fromkeys(("triton_error", "numpy_error"), "not reached")


def _gpu(here: bool, found: str) -> Finding:
    cure = "none needed to read recordings, or for the compiler and interpreter collectors; times and counters need an NVIDIA GPU"
    return Finding("GPU", here, found, "" if here else cure)


def driver(version: Path, here: bool) -> Finding:
    """The NVIDIA driver, by its file ``version``."""
    try:
        match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text())
        return Finding("driver", True, match[1] if match else "version not readable")
    except OSError:
        found = device.driver()
        if found:
            return Finding("driver", True, found)
        cure = "install NVIDIA's driver, and in a container start it with --gpus all" if not here else ""
        return Finding("driver", here, "no NVIDIA driver is loaded", cure)


def torch(probe: dict[str, Any], gpu: bool) -> Finding:
    if "torch" not in probe:
        return Finding("torch", False, probe.get("torch_error", "absent"), "pip install 'torch>=2.11'")
    build = f"CUDA {probe['cuda_build']} build" if probe.get("cuda_build") else "CPU build"
    found = f"{probe['torch']}, {build}"
    if gpu and not probe.get("cuda"):
        return Finding("torch", False, f"{found}, sees no GPU", "install a CUDA build: https://pytorch.org/get-started")
    return Finding("torch", True, found)


def triton(probe: dict[str, Any]) -> Finding:
    """Triton, which the CPU build of torch does not install."""
    if "triton" not in probe:
        return Finding("triton", False, probe.get("triton_error", "absent"), "pip install 'triton>=3.6' (Linux only)")
    return Finding("triton", True, probe["triton"])


def combination(probe: dict[str, Any], python: tuple[int, int]) -> Finding:
    """Whether the versions of Python, torch and triton are known to work together; else what does not, or was not tried."""
    name, said = "versions", []
    known = {package: _numbers(probe[package]) for package in LEAST if package in probe} | {"python": python}
    for package, version in known.items():
        written = ".".join(map(str, version))
        if version < LEAST[package]:
            least = ".".join(map(str, LEAST[package]))
            install = f"pip install '{package}>={least}'" if package in probe else f"install Python {least} or newer"
            return Finding(
                name, False, f"{package} {written} is older than {least}: Tilescope does not run with it", install
            )
        if version > NEWEST[package]:
            newest = ".".join(map(str, NEWEST[package]))
            said.append(f"{package} {written} is newer than {newest}, the newest that was tried")
    wanted = probe.get("torch_triton", "")
    if wanted and "triton" in probe and _numbers(wanted) != known.get("triton"):
        what = f"torch {probe['torch']} is made for triton {wanted}: torch.compile may fail with {probe['triton']}"
        return Finding(name, False, what, f"pip install triton=={wanted}; all but torch.compile works as it is")
    if "triton" in probe and (reason := lanes.unserved(probe["triton"])):
        said.append(reason)
    if known.get("triton", RECORDED) >= (3, 9):
        said.append("the library runs its Triton kernels alone: those in Gluon, for Hopper, need triton 3.8 or older")
        said.append("bank conflicts of tl.histogram are not predicted, since triton 3.9 compiles it in another way")
    if known.get("triton", RECORDED) != RECORDED:
        recorded = ".".join(map(str, RECORDED))
        said.append(f"recordings are of triton {recorded}: other registers and configs are no fault")
    return Finding(name, True, "; ".join(said) or "between the oldest and the newest that were tried")


def cache() -> Finding:
    name, folder = "triton cache", triton_setup.cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, False, f"{folder} cannot be written", "set TRITON_CACHE_DIR to a folder you may write to")
    kernels = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
    free = shutil.disk_usage(existing).free
    if free < 2**28:
        left = f"{folder}: {free / 1e6:.0f} MB left"
        return Finding(name, False, left, "make room, or set TRITON_CACHE_DIR elsewhere")
    return Finding(name, True, f"{folder}, {kernels} entries, {free / 1e9:.0f} GB free")


def interpreter(probe: dict[str, Any]) -> Finding:
    """The interpreter. Triton's own one, before 3.7, breaks with newer versions of numpy; ours works."""
    if "numpy" not in probe or "triton" not in probe:
        return Finding("interpreter", False, "needs numpy and triton", "pip install numpy 'triton>=3.6'")
    found = f"numpy {probe['numpy']} with triton {probe['triton']}"
    if _numbers(probe["numpy"]) >= NUMPY_LIMIT and _numbers(probe["triton"]) < (3, 7):
        found += " (TRITON_INTERPRET=1 without Tilescope needs numpy<2.4)"
    tested = "" if probe["triton"].split("+")[0] in TESTED else f", tested with {' and '.join(TESTED)}"
    return Finding("interpreter", True, found + tested)


def ncu() -> Finding:
    if path := device.find_ncu():
        return Finding("ncu", True, f"{versions().get('ncu', 'version unknown')} ({path})")
    cure = "install Nsight Compute: https://developer.nvidia.com/nsight-compute"
    return Finding("ncu", False, "not on PATH, nor in its usual places", cure)


def cupti() -> Finding:
    if path := library.find():
        return Finding("cupti", True, str(path))
    return Finding("cupti", False, "libcupti is not here", "pip install nvidia-cuda-cupti")


def counters(parameters: Path, gpu: bool) -> Finding:
    """Whether this user may read performance counters, by the driver's ``RmProfilingAdminOnly``."""
    name = "counter permission"
    try:
        match = re.search(r"RmProfilingAdminOnly:\s*(\d+)", parameters.read_text())
    except OSError:
        return Finding(name, False, "not known: the driver's parameters cannot be read here",
                       "" if not gpu else "try 'tilescope profile softmax --collect ncu', which says what is missing")  # fmt: skip
    if match is None or match[1] == "0":
        return Finding(name, True, "every user may read counters")
    if administrator():
        return Finding(name, True, "administrators only, and you are one")
    cure = (
        "put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d/nvidia.conf and reboot, "
        "or start a container with --cap-add=SYS_ADMIN, or run as root"
    )
    return Finding(name, False, "the driver keeps counters to administrators (RmProfilingAdminOnly: 1)", cure)


def compiler() -> Finding:
    path = next(filter(None, map(shutil.which, filter(None, [os.environ.get("CC"), "gcc", "clang"]))), None)
    if path is None:
        return Finding("C compiler", False, "none found: Triton needs one to launch kernels", "apt-get install gcc")
    return Finding("C compiler", True, path)


def runs() -> Finding:
    folder = store.runs_dir()
    try:
        store.check_writable(folder)
    except store.StoreError as error:
        reason, _, cure = str(error).rpartition(": ")
        return Finding("runs", False, reason, cure)
    return Finding("runs", True, str(folder))


def administrator() -> bool:
    """Root, or a process that has CAP_SYS_ADMIN (bit 21)."""
    if os.geteuid() == 0:
        return True
    try:
        match = re.search(r"CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text())
    except OSError:
        return False
    return bool(match and int(match[1], 16) >> 21 & 1)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
