"""Compiles Triton kernels for any NVIDIA target, with or without a GPU.

Triton asks its active driver for the target. The driver here answers with a given one, so that the compiler gives the same
cubin as on a machine with that GPU. Imports torch and triton: worker-side only.
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
from triton._C.libtriton import ir, nvidia
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, ptx_get_version
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver

from tilescope.execution.assumed_answers import Answers, Entries, NoAttribute
from tilescope.execution.launches import Launch
from tilescope.hardware import occupancy

#: Kernels are specialised for pointers that are a multiple of this many bytes. PyTorch aligns every allocation to more.
ALIGNMENT = 16


def capability(target: str) -> int:
    """Triton's number of a target: 90 for ``sm_90``. Raises ValueError for another text."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", target)
    if not match:
        raise ValueError(f"target {target!r} is not an architecture such as sm_90")
    return int(match[1])


class _Utilities:
    """Stands for the ``utils`` of Triton's driver."""

    def __init__(self, target: str, answers: Answers | None) -> None:
        self.target = target
        self.answers = answers

    def get_device_properties(self, device: int = 0) -> Entries:
        """Properties by Triton's names, as ``multiprocessor_count``. Raises ValueError for a target without a listed product."""
        self.answers = self.answers or Answers(self.target)
        self.answers.index(device)
        return Entries(self.answers)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[None, int, int, int, int]:
        """A driver's description of a cubin: no module to unload, no function, registers per thread, spills per thread in words of
        4 bytes, and the most threads of a block that the registers of a multiprocessor allow."""
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
        return None, 0, registers, stack // 4, 32 * warps

    def __getattr__(self, name: str) -> Any:
        raise _not_there(self.target, f"triton.runtime.driver.active.utils.{name}")


class _Index(int):
    """Device 0 of one target. Kernels cache compiled code by device, and code for another target must not be found."""

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
    """A CUDA driver for an absent GPU. It names its target, and answers queries by ``answers``.

    Without ``answers`` it serves the compiler alone, and its tensors are meta tensors.
    """

    def __init__(self, target: str, answers: Answers | None = None) -> None:
        # The base class would load libcuda.
        self.target = GPUTarget("cuda", capability(target), 32)
        self.utils = _Utilities(target, answers)
        self.answers = answers

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """The launcher of a compiled kernel, which raises NoAttribute."""

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
        """Does nothing, as there is no cache."""


class AlignedTensor(torch.Tensor):
    """A meta tensor with an address that has the right alignment, as if its storage began at a multiple of 16."""

    @staticmethod
    def __new__(cls, tensor: torch.Tensor) -> AlignedTensor:
        return tensor.detach().as_subclass(cls)

    def data_ptr(self) -> int:
        return int(self.storage_offset() * self.element_size()) % ALIGNMENT


def _with_alignment(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return AlignedTensor(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_with_alignment(item) for item in value)
    return value


@contextlib.contextmanager
def targeting(target: str) -> Iterator[None]:
    """While active, Triton compiles for ``target``, even where there is another GPU."""
    before = driver._active
    driver.set_active(OfflineDriver(target))
    try:
        yield
    finally:
        driver._active = before


def compile_launch(launch: Launch) -> Any:
    """Compiles one launch for the target that ``targeting`` set.

    The result's ``asm`` holds ``ttir``, ``ttgir``, ``llir``, ``ptx`` and ``cubin``; its ``metadata`` has ``shared`` (bytes),
    ``num_warps`` and ``name``. Only shapes, strides and alignment of the arguments matter. Raises what Triton's compiler raises.
    """
    kernel = ask_compiler(launch)
    if _is_for_another_assembler(kernel):
        with knobs.compilation.scope():
            knobs.compilation.always_compile = True
            kernel = ask_compiler(launch)
    return kernel


def fits(launch: Launch, target: str) -> bool:
    """Whether a launch compiles for ``target``, which ``targeting`` set, within a block's shared memory there.

    Also True where no other config would help, as the kernel calls another vendor's library.
    """
    most = occupancy.limits(target).block_shared_memory
    try:
        return bool(compile_launch(launch).metadata.shared <= most)
    except Exception as error:  # an autotuner skips a config that does not compile
        return "Unresolved extern function" in str(error)


def ask_compiler(launch: Launch) -> Any:
    """Has Triton compile the launch without making it. Returns the compiled kernel."""
    args = tuple(_with_alignment(value) for value in launch.args)
    kwargs = {name: _with_alignment(value) for name, value in launch.kwargs.items()}
    function = launch.function
    # A kernel caches compiled code by device index, whatever the driver: start with an empty cache.
    with mock.patch.object(function, "device_caches", type(function.device_caches)(function.create_binder)):
        return type(function).run(function, *args, grid=launch.grid, warmup=True, **kwargs)


def parsed(text: str, context: Any = None) -> Any:
    """The module of a kernel's TTIR or TTGIR. Raises RuntimeError for a text that Triton cannot read."""
    if context is None:
        context = ir.context()
        ir.load_dialects(context)
        nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    return module


def _is_for_another_assembler(kernel: Any) -> bool:
    """Whether Triton's cache returned PTX of another version than this process's assembler takes.

    Another process with another TRITON_PTXAS_PATH compiled it: its PTX may be refused here, and its cubin is that assembler's.
    """
    if kernel.metadata.ptx_version is not None:  # the launch asks for a version
        return False
    version = ptx_get_version(get_ptxas(kernel.metadata.target.arch).version)
    return f".version {version // 10}.{version % 10}" not in kernel.asm["ptx"]
