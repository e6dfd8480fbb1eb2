"""Compiles a case's kernels for any target, without a GPU: registers, shared memory, spills, occupancy.

The case runs on meta tensors, which have shapes but no data, and each Triton launch is caught and compiled. The artefact has the
figures, TTGIR, PTX and SASS, and the source files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd

from tilescope.collectors import assembly, compiled_text, layouts, shared_accesses
from tilescope.execution.not_applicable import NotApplicable, without_gpu
from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import occupancy
from tilescope.table import assumptions, kernel_faults, launch_configs, line_values, schema
from tilescope.table.case import Case

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch

SUFFIX = ".json.gz"
#: Most seconds for compiling a launch.
LIMIT = 120.0
TOO_SLOW = "compilers are slow where a thread holds much: smaller blocks, or more warps"
#: Stages that an artefact keeps, beside SASS.
STAGES = ("ttgir", "ptx")
#: Figures of a launch's record that are metrics of the same name.
_FIGURES = (
    "registers", "shared_memory", "spill_bytes_stored", "spill_bytes_loaded", "stack_bytes", "barriers",
    "block_threads", "grid_blocks", "widest_load", "widest_store", "tensor_instructions", "shared_wavefronts",
    "bank_conflicts", "conflict_line", *layouts.CURE, "compile_time",
    *assembly.SERIALIZED.values(),
)  # fmt: skip
#: Metrics of a line that accesses shared memory.
_WAVEFRONTS = ("code_wavefronts", "code_wavefronts_ideal")

parse_assumed, failure, warnings = assumptions.parse, kernel_faults.failure, kernel_faults.warnings


class CompilationFailed(Exception):
    """A kernel that does not compile for the target, or cannot be launched there. The message is one line."""


def unavailable() -> str | None:
    """Why kernels cannot be compiled here, or None."""
    if sys.platform != "linux" or importlib.util.find_spec("triton") is None:
        return "the compiler collector needs Triton, which runs on Linux: pip install triton"
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        return "TRITON_INTERPRET=1 makes Triton interpret instead of compile: unset it"
    return None


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Compiles every launch of the case for ``settings["target"]`` (``sm_90``) and writes the artefact.

    Raises NotApplicable where the case launches no Triton kernel, torch.compile would have to generate it, shapes depend on data, or
    compiling takes longer than ``LIMIT``. Raises CompilationFailed where a kernel does not compile or needs more shared memory than a
    block can have.
    """
    from tilescope.execution import offline  # noqa: PLC0415 (it imports torch and triton)

    target = settings.get("target", "sm_90")
    operators: list[str] = []
    caught, assumed = launches_of(case, spec, target, operators)
    with offline.targeting(target):
        records = [compile_launch(launch, target) for launch in caught]
    sources = {name: text for launch in caught for name, text in launch.source.items()}
    artefact: dict[str, Any] = {
        "target": target, **_versions(target), "launches": records, "sources": sources, "operators": operators,
        **({"assumed": assumed} if assumed else {}),
    }  # fmt: skip
    with gzip.open(out, "wt", encoding="utf-8", compresslevel=9) as file:
        json.dump(artefact, file, default=str)
    launch_configs.write(out, case, [_launched(launch, record) for launch, record in zip(caught, records, strict=True)])


def launches_of(
    case: Case, spec: Any, target: str, operators: list[str] | None = None
) -> tuple[list[Launch], dict[str, Any]]:
    """The Triton launches that the case makes on ``target``, and the assumption about a GPU.

    Names of PyTorch operators that move data are added to ``operators``. Raises NotApplicable as ``capture``.
    """
    from tilescope.execution import assumed_device, execute, launches, offline, pytorch_traffic  # noqa: PLC0415 (they import torch)

    beside = [] if operators is None else operators
    occupancy.limits(target)
    with (
        without_gpu(case),
        assumed_device.for_launcher(spec, case, target, "meta") as there,
        contextlib.nullcontext() if there else offline.targeting(target),
        pytorch_traffic.CountOperators(lambda moved: beside.append(moved.name)),
        launches.catch() as caught,
    ):
        run = execute.prepare(spec, case, "meta")
        caught.clear()  # launches of a forward pass that prepares a backward one
        run()
        made = list(caught)
        if operators is not None:
            beside.clear()  # the first call also draws the gradient of a loss
            run()
    if not made:
        raise NotApplicable(f"{case.impl} launches no Triton kernel")
    return made, there.as_data() if there else {}


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """A row for each figure of each launch, and its occupancy."""
    data = bounded_reading.data_of(artefact)
    return schema.frame(
        row for index, launch in enumerate(data["launches"]) for row in rows_of(case, index, launch, data["target"])
    )


def rows_of(case: Case, index: int, launch: Mapping[str, Any], target: str) -> list[dict[str, Any]]:
    """Rows of one launch's record: the figures that it has, and its occupancy on ``target``."""
    figures = {name: launch[name] for name in _FIGURES if launch.get(name) is not None}
    held = ("registers", "shared_memory", "block_threads", "barriers")
    occupied = occupancy.blocks(target, *(launch[name] for name in held))
    figures["theoretical_occupancy"] = occupied.ratio
    figures |= {f"occupancy_limit_{name}": count for name, count in occupied.limits.items()}
    where = {"launch": index, "function": launch["function"]}
    return [case.row(name, float(value), "compiler", **where) for name, value in figures.items()]


@bounded_reading.parser
def parse_lines(artefact: Path, case: Case) -> tuple[pd.DataFrame, dict[str, str]]:
    """Values of source lines, and the source files by name."""
    data = bounded_reading.data_of(artefact)
    return lines_of(data["launches"], case), json_shape.fit(data["sources"], dict[str, str], "sources")


def lines_of(launches: Iterable[Mapping[str, Any]], case: Case) -> pd.DataFrame:
    """The SASS instructions of each source line, its wavefronts of shared memory and, for kernels with wgmma, the instructions that
    run while products are in flight.

    ``launches`` are the artefact's records.
    """
    rows: list[dict[str, Any]] = []
    for index, launch in enumerate(launches):
        function, file = launch["function"], launch["file"]
        code = compiled_text.read("sass", launch["stages"]["sass"], file)
        counted = Counter(text.line for text in code if text.line and text.address is not None)
        beside = compiled_text.products_in_flight(code)
        values: dict[int, dict[str, float]] = {line: {"sass_instructions": count} for line, count in counted.items()}
        if beside is not None:
            for line, known in values.items():
                known["sass_beside_wgmma"] = beside[line]
        ptx = compiled_text.read("ptx", launch["stages"].get("ptx", ""), file)
        for line, wavefronts in shared_accesses.by_line(ptx, launch["block_threads"]).items():
            values.setdefault(line, {}).update(zip(_WAVEFRONTS, wavefronts, strict=True))
        for line, known in sorted(values.items()):
            rows += line_values.rows(case, "compiler", known, launch=index, function=function, file=file, line=line)
    return line_values.frame(rows)


def _launched(launch: Launch, record: Mapping[str, Any]) -> launch_configs.Launched:
    """The config of a compiled launch. For an autotuner, which would time on a GPU, it is the first config."""
    given, parameters = launch.constants, launch.arguments
    options = {**given, "num_warps": record["num_warps"], "num_stages": record["num_stages"]}
    constants = {name: value for name, value in given.items() if name in parameters}
    return launch_configs.launched(launch.name, constants, SimpleNamespace(**options), launch.config)


def compile_launch(launch: Launch, target: str) -> dict[str, Any]:
    from tilescope.collectors import code_values, fault_rules  # noqa: PLC0415 (they import torch and triton)
    from tilescope.execution import compiling, launch_limits, offline  # noqa: PLC0415

    try:
        kernel, took = compiling.compiled(launch, LIMIT)
    except TimeoutError as error:
        line = f"{launch.file.name}, line {launch.function.starting_line_number}"
        raise NotApplicable(f"{error} ({line}): {TOO_SLOW}") from None
    except Exception as error:
        gist, place = _gist(error), _place(error, launch)
        raise CompilationFailed(f"{launch.name} does not compile for {target}: {place}{gist}") from error
    texts = {stage: kernel.asm[stage] for stage in ("ttir", *STAGES) if stage in kernel.asm}
    texts = assembly.of_file({**texts, "ptx": assembly.with_callers(texts["ptx"])}, launch.file.name)
    ptx, metadata = texts["ptx"], kernel.metadata
    command = compiling.assembler(metadata, offline.capability(target))
    report, sass = _assemble(assembly.attributed(ptx, launch.file.name), metadata.name, command)
    used = assembly.resources(report, metadata.name)
    shared_memory = metadata.shared + used.static_shared_memory
    most = occupancy.limits(target).block_shared_memory
    if shared_memory > most:
        raise CompilationFailed(
            f"{launch.name} needs {shared_memory} bytes of shared memory a block and {target} has {most}: "
            "use smaller blocks or fewer stages"
        )
    threads = assembly.block_threads(ptx) or metadata.num_warps * occupancy.WARP_THREADS
    if refusal := launch_limits.refusal(launch.grid, threads, metadata):
        raise CompilationFailed(f"{launch.name} cannot be launched: {refusal}")
    code = code_values.Code.of_launch(launch, texts.get("ttir", ""))
    return {
        "function": launch.name,
        "file": launch.file.name,
        **fault_rules.of_subject(fault_rules.Subject(launch, code=code)),
        "grid": launch.grid,
        "grid_blocks": launch.grid[0] * launch.grid[1] * launch.grid[2] * metadata.num_ctas,
        "block_threads": threads,
        "num_warps": metadata.num_warps,
        "num_stages": metadata.num_stages,
        "config": dict(launch.config),
        "constants": launch.constants,
        **dataclasses.asdict(used),
        "shared_memory": shared_memory,
        "widest_load": assembly.widest_access(ptx, "ld"),
        "widest_store": assembly.widest_access(ptx, "st"),
        "tensor_instructions": assembly.tensor_instructions(ptx),
        **_shared_memory(texts, kernel, launch, threads),
        **assembly.serialized_wgmma(ptx, report, metadata.name),
        "compile_time": took,
        "stages": {
            **{stage: assembly.portable(texts[stage]) for stage in STAGES if stage in texts},
            "sass": sass,
        },
    }


def _shared_memory(texts: Mapping[str, str], kernel: Any, launch: Launch, threads: int) -> dict[str, Any]:
    """Predicted wavefronts of shared memory and bank conflicts, as far as they are known, the transfers, and a layout with fewer."""
    ptx, file = texts["ptx"], launch.file.name
    code = compiled_text.read("ptx", ptx, file)
    found = shared_accesses.of_launch(code, threads, _scalars(kernel, launch), math.prod(launch.grid))
    try:
        moved = layouts.transfers(assembly.portable(texts["ttgir"]), ptx, file)
    except (AttributeError, ImportError, KeyError, TypeError, ValueError):  # the bindings of another Triton
        moved = []
    figures = {"shared_wavefronts": found.wavefronts, "bank_conflicts": found.conflicts}
    if found.conflicts and found.by_line:
        line = max(found.by_line, key=lambda one: found.by_line[one])
        figures |= {"conflict_line": line, **layouts.cured(moved, line, found.conflicts, found.by_line)}
    known = {name: value for name, value in figures.items() if value is not None}
    return {**known, "transfers": [dataclasses.asdict(one) for one in moved]}


def _scalars(kernel: Any, launch: Launch) -> dict[str, int]:
    """The grid and the integers among the arguments of the compiled function, by their names in PTX."""
    found = {f"%nctaid.{axis}": extent for axis, extent in zip("xyz", launch.grid, strict=True)}
    at = 0
    for name, kind in kernel.src.signature.items():
        value = launch.arguments.get(name)
        if isinstance(value, int) and kind != "constexpr":
            found[f"_param_{at}"] = int(value)
        # A descriptor takes a position, and two for each dimension.
        described = re.match(r"tensordesc<\w+\[([\d,\s]+)\]", str(kind))
        at += 0 if kind == "constexpr" else 1 + 2 * len(described[1].split(",")) if described else 1
    return found


def _place(error: BaseException, launch: Launch) -> str:
    """The line where Triton's compiler stopped, as the start of a message; empty where it is unknown. One in another file names that.

    Where the compiler stopped in one of Triton's functions, it is the kernel's line that calls that function. The error then loses its
    cause, which quotes the function itself.
    """
    functions = {one.src: one for one in launch.functions if getattr(one, "src", None)}
    while getattr(error.__cause__, "src", None) in functions:  # in a function that the kernel calls
        error = error.__cause__  # type: ignore[assignment]
    line, function = getattr(getattr(error, "node", None), "lineno", 0), functions.get(getattr(error, "src", ""))
    if not line or function is None:
        return ""
    if hasattr(error.__cause__, "src"):
        error.__cause__ = None
    # Line numbers count from the ``def``, below the decorators.
    decorators = next((n for n, text in enumerate(function.raw_src) if text.lstrip().startswith("def ")), 0)
    file = Path(function.fn.__code__.co_filename)
    elsewhere = "" if file == launch.file else f" of {file.name}"
    return f"line {function.starting_line_number + decorators + line - 1}{elsewhere}: "


def _gist(error: BaseException) -> str:
    """The line of an error that says what is wrong. Triton's messages begin with source code."""
    while error.__cause__ is not None:
        error = error.__cause__
    # The assembler's output stands between Triton's text and the command, which names temporary files.
    said = str(error).rpartition("`ptxas` stderr:")[2].partition("Repro command:")[0]
    lines = [line.strip() for line in said.splitlines() if line.strip(" ^")]
    lines = [line for line in lines if line.startswith("ptxas") and "aborted" not in line][:1] or lines
    foreign = (
        re.search(r"Unresolved extern function '((?:__ocml|__ockl|__triton_hip)_\w+)'", lines[0]) if lines else None
    )
    if foreign:
        return f"it calls {foreign[1]}, which is of AMD's device library and of no NVIDIA GPU"
    # Triton prints Python's errors by their repr.
    written = re.fullmatch(r"\w+\((['\"])(.*)\1\)", lines[-1]) if lines else None
    return written[2] if written else lines[-1] if lines else type(error).__name__


@functools.lru_cache(maxsize=64)
def _assemble(ptx: str, name: str, command: tuple[str, ...]) -> tuple[str, str]:
    """The report of ``ptxas -v``, and the SASS. A case may launch one kernel many times. Raises CompilationFailed."""
    from tilescope.execution import compiling  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        done = compiling.assemble(ptx, command, folder)
        if done.returncode:
            raise CompilationFailed(f"ptxas failed on {name}: {assembly.complaint(done.stderr)}")
        return done.stdout + done.stderr, _disassemble(str(Path(folder, "kernel.cubin")))


def _disassemble(cubin: str) -> str:
    """SASS with its source lines; empty where Triton came without nvdisasm."""
    from triton import knobs  # noqa: PLC0415

    try:
        tool = knobs.nvidia.nvdisasm.path
    except RuntimeError:
        return ""
    # -ndf leaves out the data-flow analysis, which is slow and only labels indirect jumps.
    done = subprocess.run([tool, "-c", "-g", "-ndf", cubin], capture_output=True, text=True, check=False)
    return assembly.sass(done.stdout)


def _versions(target: str) -> dict[str, str]:
    import triton  # noqa: PLC0415
    from triton.backends.nvidia.compiler import get_ptxas  # noqa: PLC0415

    from tilescope.execution import offline  # noqa: PLC0415

    tool = get_ptxas(offline.capability(target))
    return {"triton": triton.__version__, "ptxas": f"{Path(tool.path).name} {tool.version}"}
