"""Compiles kernels with records and keeps what their launches write. Imports triton: worker-side only.

Proton's passes turn the records into code that writes to a buffer, which Triton's launcher asks an allocator for.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from triton import knobs
from triton._C.libtriton import ir, passes, proton
from triton.backends.nvidia.compiler import CUDABackend
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import _allocation

from tilescope.collectors.lanes import buffer, records, sampling
from tilescope.execution import stage_hooks

#: Bytes of records a warp, powers of two: those to begin with, the most and the least.
ROOM, LARGEST, _LEAST = 1 << 14, 1 << 19, 1 << 8
#: The most bytes of records of all programs of a launch, whose places Proton counts in 32 bits.
_MOST = 1 << 30
#: The most bytes of records of all launches of a call.
_KEPT = 8 << 30
#: Triton rounds the warps of a program with partitions up to a multiple.
_GROUP = 4
_ALIGNMENT = 128


class TooLarge(Exception):
    """The records of a launch do not fit. ``room`` is what would fit."""

    def __init__(self, room: int) -> None:
        super().__init__(f"{room} bytes a warp would fit")
        self.room = room


@dataclass
class Launched:
    """A launch with records: its kernel, its grid, its warps, and the recorded operations by scope's number.

    ``buffer`` has ``size`` bytes for each program.
    """

    function: str
    file: str
    grid: tuple[int, int, int]
    warps: int
    operations: dict[int, records.Operation | str]
    size: int
    buffer: Any = None


@dataclass
class Recording:
    """The kernels that were compiled with records, by the compilation's hash, and their launches.

    ``launches`` are those made while it is ``keeping`` them, as far as they fit in memory, and the number of others is ``left_out``.
    """

    kinds: Collection[str]
    room: int = ROOM
    keeping: bool = True
    left_out: int = 0
    compiled: dict[str, records.Recorded] = field(default_factory=dict)
    scopes: dict[str, dict[int, str]] = field(default_factory=dict)
    launches: list[Launched] = field(default_factory=list)
    current: Launched = field(init=False)


class _Passes:
    """Stands for Triton's instrumentation: the passes that turn records into code."""

    #: Bytes of records of a program of the kernel that is being compiled.
    room = 0

    def load_dialects(self, context: Any) -> None:
        proton.load_dialects(context)

    def patch(self, stage: str, manager: Any, _context: Any) -> None:
        if stage == "ttgpuir_to_llvmir":
            # Shared memory is the kernel's: records go to global memory. The last argument asks for a clock of 64 bits: one of 32 is
            # no faster.
            proton.add_convert_proton_to_protongpu(
                manager, proton.METRIC_TYPE.CYCLE, proton.SAMPLING_STRATEGY.NONE, "", proton.GRANULARITY.WARP,
                proton.BUFFER_STRATEGY.CIRCULAR, proton.BUFFER_TYPE.GLOBAL, self.room, 0, 1, _ALIGNMENT, True,
            )  # fmt: skip
            passes.common.add_cse(manager)
            proton.add_allocate_proton_shared_memory(manager)
        else:
            proton.add_allocate_proton_global_scratch_buffer(manager)
            proton.add_convert_proton_nvidia_gpu_to_llvm(manager)


@contextlib.contextmanager
def recording(kinds: Collection[str], room: int = ROOM) -> Iterator[Recording]:
    """While active, kernels are compiled with records of these kinds, and launches of them are kept.

    A warp has ``room`` bytes for its records. Triton's caches on disk stay as they are. While active, a compilation raises NotRecordable
    where the kernel cannot get records, and a launch raises NotRecordable or TooLarge where its records do not fit.
    """
    made = Recording(kinds, room)
    instrumentation = _Passes()

    def hook(_backend: Any, stages: dict[str, Any]) -> None:
        to_ttgir = stages["ttgir"]

        def recorded(source: Any, metadata: Any) -> Any:
            module = to_ttgir(source, metadata)
            return _with_records(module, metadata["hash"], made, instrumentation)

        stages["ttgir"] = recorded

    with (
        tempfile.TemporaryDirectory() as folder,
        stage_hooks.hooked(hook),
        knobs.compilation.scope(),
        knobs.cache.scope(),
        mock.patch.object(CUDABackend, "instrumentation", instrumentation),
        _launcher(made),
        _inductor_anew(),
    ):
        knobs.cache.dir = folder
        # The text is part of the keys of Triton's caches and of the library's own.
        knobs.compilation.instrumentation_mode = f"tilescope-lanes-{room}-{'-'.join(sorted(kinds))}"
        yield made


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """While active, launches are those of kernels without records, which were compiled before."""
    with knobs.compilation.scope():
        knobs.compilation.instrumentation_mode = ""
        yield


def _with_records(module: Any, key: str, made: Recording, instrumentation: _Passes) -> Any:
    """The module with records."""
    text, context = str(module), module.context
    found = records.insert(text, made.kinds)
    proton.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "recorded.ttgir")
        file.write_text(found.text)
        try:
            parsed = ir.parse_mlir_module(str(file), context)
        except RuntimeError as error:
            raise records.NotRecordable("Triton cannot read the kernel's code with records") from error
    parsed.context = context
    made.compiled[key] = found
    made.scopes[key] = dict(proton.get_scope_id_names(parsed))
    warps = -(-found.warps // _GROUP) * _GROUP if found.partitions else found.warps
    instrumentation.room = made.room * warps
    return parsed


@contextlib.contextmanager
def _launcher(made: Recording) -> Iterator[None]:
    """Notes each launch of a kernel with records and its buffer."""
    import torch  # noqa: PLC0415

    create, call = CudaLauncher.__init__, CudaLauncher.__call__

    def created(launcher: Any, source: Any, metadata: Any) -> None:
        create(launcher, source, metadata)
        launcher.recorded = None
        if known := made.compiled.get(metadata.hash):
            by_scope = {one.scope: one for one in known.operations}
            operations = {number: by_scope.get(name, name) for number, name in made.scopes[metadata.hash].items()}
            launcher.recorded = metadata.name, known.file, metadata.num_warps, operations

    def called(launcher: Any, x: int, y: int, z: int, *args: Any) -> Any:
        if recorded := getattr(launcher, "recorded", None):
            name, file, warps, operations = recorded
            made.current = Launched(name, file, (x, y, z), warps, operations, launcher.profile_scratch_size)
        return call(launcher, x, y, z, *args)

    def allocate(size: int, _alignment: int, _stream: int | None) -> Any:
        if size > _MOST:
            raise TooLarge(_fitting(made.current, size, made.room))
        made.current.buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
        if made.keeping and size + sum(one.buffer.numel() for one in made.launches) <= _KEPT:
            made.launches.append(made.current)
        else:
            made.left_out += made.keeping
        return made.current.buffer

    before = _allocation._profile_allocator.get()
    _allocation.set_profile_allocator(allocate)
    try:
        with mock.patch.object(CudaLauncher, "__init__", created), mock.patch.object(CudaLauncher, "__call__", called):
            yield
    finally:
        _allocation.set_profile_allocator(before)


def _fitting(launched: Launched, size: int, room: int) -> int:
    """The most bytes a warp with which the records of a launch fit, which need ``size`` bytes with ``room``."""
    fit = room
    while size > _MOST and fit > _LEAST:
        fit, size = fit // 2, size // 2
    if size > _MOST:
        x, y, z = launched.grid
        raise records.NotRecordable(
            f"records of {x * y * z:,} programs do not fit in memory: profile a smaller problem"
        )
    return fit


def operations(launches: list[Launched]) -> list[records.Operation]:
    """The recorded operations of these launches."""
    return [one for launched in launches for one in launched.operations.values() if isinstance(one, records.Operation)]


def room_of(launches: list[Launched]) -> int:
    """The bytes a warp, a power of two, that hold all records of these launches."""
    needed = max(buffer.longest(sampling.heads(launched)) for launched in launches) * 4
    return min(LARGEST, 1 << max(0, needed - 1).bit_length())


@contextlib.contextmanager
def _inductor_anew() -> Iterator[None]:
    """Has torch.compile generate and compile its kernels again, in this process and with Triton's launcher."""
    if "torch._inductor.config" not in sys.modules:
        yield
        return
    import torch  # noqa: PLC0415
    import torch._inductor.config as inductor  # noqa: PLC0415
    from torch._inductor.utils import fresh_inductor_cache  # noqa: PLC0415

    torch.compiler.reset()
    with fresh_inductor_cache(), inductor.patch(compile_threads=1, use_static_cuda_launcher=False):
        yield
    torch.compiler.reset()
