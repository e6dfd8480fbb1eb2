"""Compile jobs: a kernel's code and a specialization as data that another process can compile.

A ``Describer`` records what Triton would compile for a launch. A ``Maker`` in another process rebuilds the kernel from its code
and compiles it for the same target, which fills the entry of Triton's cache that the launcher looks up. Imports torch and
triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from tilescope_kernels._shared.compiling import LauncherMetadata
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaLauncher
from triton.compiler import ASTSource
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.cache import get_cache_manager
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from tilescope.collectors import assembly
from tilescope.execution import compiling
from tilescope.execution import kernel_code as code
from tilescope.files import user_cache
from tilescope.hardware import occupancy
from tilescope.tuning import pruning
from tilescope.tuning.search import Compiled

#: Number of arguments of Triton's ``_do_compile`` after the device: constants, options, attributes, and a flag for warm-up.
_ARGUMENTS = 4
#: Fields of ``kernel_code``'s description of a function that its compiled code depends on.
_IN_SOURCE_DIGEST = ("name", "kind", "options", "source", "defaults", "names", "missing")
#: Metadata that, beside the PTX, the machine code and the launch depend on.
_IN_CODE_DIGEST = (
    "enable_fp_fusion", "ptx_options", "shared", "num_warps", "num_ctas", "launch_cooperative_grid", "launch_pdl",
    "global_scratch_size",
)  # fmt: skip
#: Source locations and comments in PTX.
_PLACES = re.compile(r"^\s*\.loc\b.*$|//.*$", re.MULTILINE)
#: The file of Triton's cache that has a kernel's report of ptxas.
_REPORT = "ptxas-v.txt"
#: Fields of ``assembly.Resources`` that ``Compiled.kernels`` has under the same names.
_RESOURCES = ("registers", "spill_bytes_stored", "spill_bytes_loaded", "stack_bytes", "barriers")


@dataclasses.dataclass(frozen=True)
class Specialization:
    """One kernel that Triton would compile: the number of its ``function`` in ``Code``, and its arguments and options."""

    function: int
    signature: Mapping[str, Any]
    constexprs: Sequence[tuple[tuple[int, ...], Any]]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]
    target: tuple[str, Any, int]


@dataclasses.dataclass(frozen=True)
class Code:
    """The functions of ``Specialization``s as ``kernel_code`` writes them, and the texts of their files by name.

    ``keys`` are Triton's cache keys of the functions' sources, empty where none was computed. They depend on the order in which
    a process met the functions, so the compiling process takes them over instead of computing its own.
    """

    functions: list[dict[str, Any]]
    texts: dict[str, str]
    keys: list[str]


class Describer:
    """Records what launches would compile. ``code`` grows by the functions that they call."""

    def __init__(self) -> None:
        self._writer = code.Writer()
        #: ``source_digest`` of every kernel, in order.
        self.digests: dict[str, None] = {}

    @property
    def code(self) -> Code:
        keys = [str(getattr(function, "hash", None) or "") for function in self._writer.originals]
        return Code(self._writer.functions, self._writer.texts, keys)

    @contextlib.contextmanager
    def describing(self) -> Iterator[list[Specialization]]:
        """Describes kernels instead of compiling them while active; yields the list of descriptions, which grows.

        It is for launches with ``warmup=True`` that this process has not compiled yet. Raises CannotRecord where code cannot be
        recorded.
        """
        found: list[Specialization] = []

        def describe(function: Any, _key: Any, signature: Any, _device: Any, *of_source: Any) -> None:
            if len(of_source) != _ARGUMENTS:
                raise code.CannotRecord("this version of Triton compiles by other arguments")
            constexprs, options, attributes, _ = of_source
            target = driver.active.get_current_target()
            written = [(path, self._writer.value(value, function.__name__)) for path, value in constexprs.items()]
            function.cache_key  # noqa: B018 - has Triton compute its key before the code is recorded
            self.digests[source_digest(function)] = None
            found.append(
                Specialization(
                    function=self._writer.function(function),
                    signature=dict(signature),
                    constexprs=written,
                    attributes=dict(attributes),
                    options=dict(options.__dict__),
                    target=(target.backend, target.arch, target.warp_size),
                )
            )

        with mock.patch.object(JITFunction, "_do_compile", describe):
            yield found


class Maker:
    """Compiles a ``Describer``'s descriptions."""

    def __init__(self, known: Code) -> None:
        # Triton reads a function's text when the function is made, and no more.
        with tempfile.TemporaryDirectory(prefix="tilescope-compile-") as folder:
            for name, text in known.texts.items():
                Path(folder, name).write_text(text, encoding="utf-8")
            self._reader = code.Reader(list(known.functions), Path(folder))
            for number, data in enumerate(known.functions):
                function = self._reader.function(number)
                if hasattr(function, "raw_src"):
                    # Triton counts decorators among a function's lines.
                    function.raw_src = data["source"].splitlines(keepends=True)
                    function.starting_line_number = int(data["line"])
                    function.hash = known.keys[number] or None

    def compile(self, kernels: Sequence[Specialization]) -> Compiled:
        """Compiles the kernels of one config into Triton's cache. A compiler's error becomes the reason."""
        made: list[Mapping[str, Any]] = []
        for place, one in enumerate(kernels):
            try:
                # A kernel that is launched twice is compiled once.
                same = kernels.index(one)
                made.append(self._compile(one) if same == place else dict(made[same]))
            except pruning.Refused as refused:
                return Compiled(str(refused), made)
            except (OutOfResources, CompileTimeAssertionFailure, PTXASError, triton.CompilationError) as error:
                return Compiled(one_line(error), made)
            if reason := refusal(made[-1]):
                return Compiled(reason, made)
        return Compiled("", made)

    def _compile(self, one: Specialization) -> Mapping[str, Any]:
        function = self._reader.function(one.function)
        constexprs = {path: self._reader.value(value) for path, value in one.constexprs}
        kind = GluonASTSource if function.is_gluon() else ASTSource
        source = kind(function, dict(one.signature), constexprs, dict(one.attributes))
        target = GPUTarget(*one.target)
        began, said = time.perf_counter(), io.StringIO()
        with pruning.refusing(), contextlib.redirect_stdout(said), _telling_log():
            kernel = triton.compile(source, target=target, options=dict(one.options))
        elapsed = time.perf_counter() - began
        metadata = kernel.metadata
        fresh = f"'{metadata.name}'" in said.getvalue()
        report = _report(kernel, int(one.target[1]), said.getvalue() if fresh else "")
        used = assembly.resources(report, metadata.name)
        threads = assembly.block_threads(kernel.asm["ptx"]) or metadata.num_warps * occupancy.WARP_THREADS
        return {
            "function": function.__name__,
            "target": f"sm_{one.target[1]}",
            "block_threads": threads,
            "shared_memory": metadata.shared + used.static_shared_memory,
            **{name: getattr(used, name) for name in _RESOURCES},
            "code": _code_digest(kernel),
            **({"compile_time": elapsed} if fresh else {}),
        }


def build_launchers(kernels: Iterable[Specialization]) -> None:
    """Builds the launchers of kernels, one a signature, into Triton's cache. Raises where CUDA's driver is not installed."""
    for one in {repr(kernel.signature): kernel for kernel in kernels}.values():
        CudaLauncher(one, LauncherMetadata(one))


def _code_digest(kernel: Any) -> str:
    """A digest that is equal for kernels with the same instructions, assembled and launched alike on any grid."""
    # Source locations and debug sections do not matter.
    instructions = _PLACES.sub("", kernel.asm["ptx"].partition("\n\t.file\t")[0])
    return user_cache.digest([instructions, *(str(getattr(kernel.metadata, name, "")) for name in _IN_CODE_DIGEST)])


@functools.lru_cache(maxsize=1024)
def source_digest(function: Any) -> str:
    """The digest of a Triton function's code and of all functions that it calls, the same in every process.

    Triton's own ``cache_key`` depends on the order in which a process met the functions. It is returned where the code cannot be
    recorded.
    """
    writer = code.Writer()
    try:
        writer.function(function)
    except code.CannotRecord:
        return str(function.cache_key)
    told = [{name: one.get(name) for name in _IN_SOURCE_DIGEST} for one in writer.functions]
    return user_cache.digest([told])


def refusal(kernel: Mapping[str, Any]) -> str:
    """The reason why a compiled kernel cannot be launched; empty where it can."""
    return pruning.refusal(kernel["target"], threads=kernel["block_threads"], shared_memory=kernel["shared_memory"])


def one_line(error: BaseException) -> str:
    """The last line of an error that is not blank or a caret: Triton's messages begin with the source text."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip(" ^")), type(error).__name__)


@contextlib.contextmanager
def _telling_log() -> Iterator[None]:
    """Makes Triton print the report of ptxas while active."""
    before = os.environ.get("TRITON_DUMP_PTXAS_LOG")
    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        yield
    if before is None:
        os.environ.pop("TRITON_DUMP_PTXAS_LOG", None)


def _report(kernel: Any, capability: int, fresh: str) -> str:
    """The report of ``ptxas -v``, kept beside the kernel in Triton's cache: the ``fresh`` one, or that of a kernel from the cache."""
    cache = get_cache_manager(kernel.hash)
    if not fresh and (kept := cache.get_file(_REPORT)):
        return Path(kept).read_text(encoding="utf-8")
    if not fresh:
        with tempfile.TemporaryDirectory() as folder:
            done = compiling.assemble(kernel.asm["ptx"], compiling.assembler(kernel.metadata, capability), folder)
        fresh = done.stdout + done.stderr
    cache.put(fresh, _REPORT, binary=False)
    return fresh
