"""Compile Triton kernels for any NVIDIA target, with or without a GPU.

Triton asks its active driver which GPU to compile for. The one here answers with the target it was given, so the
compiler runs as on that GPU's own machine and gives the same cubin. Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, ptx_get_version
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from tilescope.execution.assumed_answers import Answers, Entries, NoAttribute
from tilescope.execution.launches import Launch
from tilescope.hardware import occupancy

#: Kernels specialise on pointers being a multiple of this many bytes; PyTorch aligns every allocation to more.
ALIGNMENT = 16


def capability(target: str) -> int:
    """``sm_90`` as Triton numbers it: 90. Raises ValueError for anything else."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", target)
    if not match:
        raise ValueError(f"target {target!r} is not an architecture such as sm_90")
    return int(match[1])


class _Utilities:
    """What Triton asks a driver's ``utils`` for."""

    def __init__(self, target: str, answers: Answers | None) -> None:
        self.target = target
        self.answers = answers

    def get_device_properties(self, device: int = 0) -> Entries:
        """Entries by Triton's names, as ``multiprocessor_count``. Raises ValueError where no product stands for the target."""
        self.answers = self.answers or Answers(self.target)
        self.answers.index(device)
        return Entries(self.answers)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """What a driver says of machine code: handles (none), registers a thread, its local memory in words of 4 bytes, and
        the most threads of a block, which the registers of a multiprocessor limit."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "kernel.cubin")
            file.write_bytes(cubin)
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
            said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(rf"Function {re.escape(name)}:\s.*?REG:(\d+) STACK:(\d+)", said, re.DOTALL)
        if found is None:
            raise _not_there(self.target, f"the registers of {name}")
        registers, stack = int(found[1]), int(found[2])
        warps = next(
            n for n in range(32, 0, -1) if n == 1 or occupancy.blocks(self.target, registers, 0, 32 * n).blocks
        )
        return 0, 0, registers, stack // 4, 32 * warps

    def __getattr__(self, name: str) -> Any:
        raise _not_there(self.target, f"triton.runtime.driver.active.utils.{name}")


class _Index(int):
    """Device 0 of one target. Kernels keep what they compiled by it: what is for another target must not be found."""

    target: Any

    def __new__(cls, target: Any) -> _Index:
        made = super().__new__(cls, 0)
        made.target = target
        return made

    def __eq__(self, other: object) -> bool:
        return self.target == other.target if isinstance(other, _Index) else int(self) == other

    def __hash__(self) -> int:
        return hash((int(self), self.target))


def _not_there(target: str, query: str) -> NoAttribute:
    return NoAttribute(f"{query} needs a GPU, and {target} is not there: catch the launch (launches.catch) instead")


class OfflineDriver(CudaDriver):  # type: ignore[misc]
    """A CUDA driver for a GPU that is not there. It can name its target, and answer what ``answers`` holds.

    Without ``answers`` it is for the compiler alone, and its tensors are meta tensors.
    """

    def __init__(self, target: str, answers: Answers | None = None) -> None:
        # The base class would load libcuda.
        self.target = GPUTarget("cuda", capability(target), 32)
        self.utils = _Utilities(target, answers)
        self.answers = answers

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What launches a compiled kernel: it raises, in one line."""

        def launch(*_args: Any) -> None:
            raise _not_there(f"sm_{self.target.arch}", "a launch")

        return launch

    def get_current_target(self) -> Any:
        if self.answers is not None:
            self.answers.tell("triton.runtime.driver.active.get_current_target()", f"sm_{self.target.arch}")
        return self.target

    def get_current_device(self) -> int:
        return _Index(self.target)

    def set_current_device(self, device: Any) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        major, minor = divmod(self.target.arch, 10)
        return major, minor

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta") if self.answers is None else torch.device("cuda", 0)

    def clear_cache(self, cache: torch.Tensor) -> None:
        """Nothing: there is no cache that a launch could find its data in."""


class _AlignedTensor(torch.Tensor):
    """A meta tensor whose address tells its alignment: its offset into a storage that begins at a multiple of 16."""

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> _AlignedTensor:
        return tensor.detach().as_subclass(cls)

    def data_ptr(self) -> int:
        return int(self.storage_offset() * self.element_size()) % ALIGNMENT


def _with_alignment(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _AlignedTensor(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_with_alignment(item) for item in value)
    return value


@contextlib.contextmanager
def targeting(target: str) -> Iterator[None]:
    """While active, Triton compiles for ``target``, even where there is a GPU of another kind."""
    before = driver._active
    driver.set_active(OfflineDriver(target))
    try:
        yield
    finally:
        driver._active = before


def compile_launch(launch: Launch) -> Any:
    """The compiled kernel of one launch, for the target that ``targeting`` set.

    Its ``asm`` holds ``ttir``, ``ttgir``, ``llir``, ``ptx`` and ``cubin``; its ``metadata`` ``shared`` (bytes),
    ``num_warps`` and ``name``. Only shapes, strides and alignment of the arguments matter. Raises what Triton's
    compiler raises.
    """
    kernel = ask_compiler(launch)
    if _is_for_another_assembler(kernel):
        with knobs.compilation.scope():
            knobs.compilation.always_compile = True
            kernel = ask_compiler(launch)
    return kernel


def fits(launch: Launch, target: str) -> bool:
    """Whether a launch compiles, for the target that ``targeting`` set, and needs no more shared memory than a block has there; or
    whether no other config would help.
    """
    most = occupancy.limits(target).block_shared_memory
    try:
        return bool(compile_launch(launch).metadata.shared <= most)
    except Exception as error:  # whatever the compiler says of a config, an autotuner goes on to the next
        # A function of another vendor's library, which no config has.
        return "Unresolved extern function" in str(error)


def ask_compiler(launch: Launch) -> Any:
    """What Triton's function answers when it is asked to compile the launch and not to make it."""
    args = tuple(_with_alignment(value) for value in launch.args)
    kwargs = {name: _with_alignment(value) for name, value in launch.kwargs.items()}
    function = launch.function
    # A kernel keeps what it compiled by device index, whatever the driver: start from none.
    with mock.patch.object(function, "device_caches", type(function.device_caches)(function.create_binder)):
        return type(function).run(function, *args, grid=launch.grid, warmup=True, **kwargs)


def _is_for_another_assembler(kernel: Any) -> bool:
    """Whether Triton's cache answered with PTX of another version than its assembler takes in this process.

    Then another process had pointed TRITON_PTXAS_PATH elsewhere: its PTX may be refused here, and its machine code is not
    this assembler's.
    """
    if kernel.metadata.ptx_version is not None:  # Asked for by the launch.
        return False
    version = ptx_get_version(get_ptxas(kernel.metadata.target.arch).version)
    return f".version {version // 10}.{version % 10}" not in kernel.asm["ptx"]
