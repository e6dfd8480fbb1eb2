"""Compiles kernels with records and keeps what their launches write. Imports triton: worker-side only.

Records go to the buffer of Triton's profilers, which its launcher asks an allocator for.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import _allocation

from tilescope.collectors.lanes import buffer, lowering, records, sampling
from tilescope.execution import observe, offline
from tilescope.execution.not_applicable import NotApplicable

#: Bytes of records a warp, powers of two: those to begin with, the most and the least.
ROOM, LARGEST, _LEAST = 1 << 14, 1 << 19, 1 << 6
#: The most bytes of records of all programs of a launch: a GiB, and room for their heads.
_MOST = 9 << 27
#: The most bytes of records of all launches of a call.
_KEPT = 8 << 30
_ALIGNMENT = 128


class TooLarge(Exception):
    """The records of a launch do not fit. ``room`` is what would fit."""

    def __init__(self, room: int) -> None:
        super().__init__(f"{room} bytes a warp would fit")
        self.room = room


@dataclass
class Launched:
    """A launch with records: its kernel, its grid, its warps, what each scope's number stands for, and the code's stretches.

    ``buffer`` has ``size`` bytes for each program. Operations of the kinds ``without`` have no records.
    """

    function: str
    file: str
    grid: tuple[int, int, int]
    warps: int
    scopes: list[records.Operation | str]
    stretches: list[lowering.Stretch]
    size: int
    buffer: Any = None
    without: Sequence[str] = ()


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
    lowered: dict[str, lowering.Lowered] = field(default_factory=dict)
    launches: list[Launched] = field(default_factory=list)
    current: Launched = field(init=False)


@contextlib.contextmanager
def recording(kinds: Collection[str], room: int = ROOM) -> Iterator[Recording]:
    """While active, kernels are compiled with records of these kinds, and launches of them are kept.

    A warp has ``room`` bytes for its records. Triton's caches on disk stay as they are. While active, a compilation raises NotApplicable
    where the kernel cannot get records, and a launch raises NotApplicable or TooLarge where its records do not fit.
    """
    made = Recording(kinds, room)

    def hook(_backend: Any, stages: dict[str, Any]) -> None:
        to_ttgir, to_ptx = stages["ttgir"], stages["ptx"]

        def marked(source: Any, metadata: Any) -> Any:
            module = to_ttgir(source, metadata)
            made.compiled[metadata["hash"]] = found = records.insert(str(module), made.kinds)
            try:
                return offline.parsed(found.text, module.context)
            except RuntimeError as error:
                raise NotApplicable("Triton cannot read the kernel's code with records") from error

        def recorded(source: Any, metadata: Any) -> str:
            made.lowered[metadata["hash"]] = found = lowering.lower(to_ptx(source, metadata), room)
            metadata |= {"profile_scratch_size": found.size, "profile_scratch_align": _ALIGNMENT}
            return found.text

        stages |= {"ttgir": marked, "ptx": recorded}

    with (
        tempfile.TemporaryDirectory() as folder,
        observe.hooked(hook),
        knobs.compilation.scope(),
        knobs.cache.scope(),
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


@contextlib.contextmanager
def _launcher(made: Recording) -> Iterator[None]:
    """Notes each launch of a kernel with records and its buffer."""
    import torch  # noqa: PLC0415

    create, call = CudaLauncher.__init__, CudaLauncher.__call__

    def created(launcher: Any, source: Any, metadata: Any) -> None:
        create(launcher, source, metadata)
        launcher.recorded = None
        if known := made.compiled.get(metadata.hash):
            stretches = made.lowered[metadata.hash].stretches
            launcher.recorded = metadata.name, known, metadata.num_warps, stretches

    def called(launcher: Any, x: int, y: int, z: int, *args: Any) -> Any:
        if recorded := getattr(launcher, "recorded", None):
            name, known, warps, stretches = recorded
            size, grid = launcher.profile_scratch_size, (x, y, z)
            made.current = Launched(name, known.file, grid, warps, known.scopes, stretches, size, without=known.without)
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
        raise NotApplicable(f"records of {x * y * z:,} programs do not fit in memory: profile a smaller problem")
    return fit


def operations(launches: Sequence[Launched | records.Recorded]) -> list[records.Operation]:
    """The recorded operations of these launches or kernels."""
    return [one for launched in launches for one in launched.scopes if isinstance(one, records.Operation)]


def room_of(launches: list[Launched]) -> int:
    """The bytes a warp, a power of two, that hold all records of these launches."""
    needed = max(int(buffer.counts(sampling.heads(launched)).max()) for launched in launches) * 4
    return min(LARGEST, max(_LEAST, 1 << max(0, needed - 1).bit_length()))


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
