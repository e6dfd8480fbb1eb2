"""Answers ``pynvml`` for an assumed GPU, and ``nvidia-smi`` by a program of that name that comes first on PATH.

Libraries ask both for the GPU's vendor, name and memory. Tilescope's own queries keep the real ones. This module is that program, too,
so it imports the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shlex
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.execution.assumed_answers import Answers

#: Starts of the names of functions that ask NVML.
_ASKING = ("nvmlDevice", "nvmlSystem", "nvmlUnit", "nvmlEvent", "nvmlGpu", "nvmlVgpu")
#: Fields in mebibytes, which have their unit behind them.
_MEMORY = frozenset({"memory.total", "memory.free", "memory.used", "memory.reserved"})
_UNKNOWN = "[N/A]"


@contextlib.contextmanager
def imported(answers: Answers) -> Iterator[None]:
    """While active, ``import pynvml`` yields a module that describes the GPU of ``answers``; others fail with NVML's own error."""
    try:
        import pynvml  # noqa: PLC0415 - a machine without it has nothing to answer
    except ImportError:
        yield
        return
    module = types.ModuleType("pynvml", pynvml.__doc__)
    vars(module).update({name: _stand_in(answers, pynvml, name) for name in vars(pynvml) if not name.startswith("__")})
    vars(module)["__wrapped__"] = pynvml
    sys.modules["pynvml"] = module
    try:
        yield
    finally:
        sys.modules["pynvml"] = pynvml


def _stand_in(answers: Answers, nvml: Any, name: str) -> Any:
    known = _answers(answers, nvml).get(name)
    real = getattr(nvml, name)
    if known is None and not (name.startswith(_ASKING) and callable(real)):
        return real

    @functools.wraps(real)
    def call(*args: Any, **options: Any) -> Any:
        query = f"pynvml.{name}()"
        if known is None:
            answers.refuse(query)
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        value = known(*args, **options)
        if name.startswith(_ASKING) and "Handle" not in name:
            answers.tell(query, str(value) if hasattr(value, "_fields_") else value)
        return value

    return call


def _answers(answers: Answers, nvml: Any) -> dict[str, Callable[..., Any]]:
    total = answers.device.memory_bytes

    def handle(index: Any) -> int:
        if int(index):
            raise nvml.NVMLError(nvml.NVML_ERROR_INVALID_ARGUMENT)
        return 0

    return {
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), lambda *_: None),
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetIndex": lambda _: 0,
        "nvmlDeviceGetName": lambda _: answers.device.name,
        "nvmlDeviceGetCudaComputeCapability": lambda _: answers.capability,
        "nvmlDeviceGetMemoryInfo": lambda _, version=None: nvml.c_nvmlMemory_t(total=total, free=total, used=0),
    }


@contextlib.contextmanager
def on_path(answers: Answers) -> Iterator[None]:
    """While active, ``nvidia-smi`` describes the GPU of ``answers``, which get the queries at the end."""
    with tempfile.TemporaryDirectory(prefix="tilescope-nvidia-smi-") as name:
        folder = Path(name)
        total, capability = answers.device.memory_bytes >> 20, ".".join(map(str, answers.capability))
        fields = {
            "name": answers.device.name, "gpu_name": answers.device.name, "index": 0, "count": 1, "compute_cap": capability,
            "memory.total": total, "memory.free": total, "memory.used": 0,
        }  # fmt: skip
        (folder / "fields.json").write_text(json.dumps(fields))
        program = folder / "nvidia-smi"
        command = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).absolute()), name])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
        os.environ["PATH"] = os.pathsep.join(filter(None, [name, os.environ.get("PATH", os.defpath)]))
        try:
            yield
        finally:
            # A script may have changed or removed it.
            if "PATH" in os.environ:
                os.environ["PATH"] = os.pathsep.join(
                    part for part in os.environ["PATH"].split(os.pathsep) if part != name
                )
            _tell(answers, folder)


def _tell(answers: Answers, folder: Path) -> None:
    asked = folder / "asked.jsonl"
    for line in asked.read_text().splitlines() if asked.is_file() else ():
        query, said = json.loads(line)
        if said is None:
            answers.refuse(query)
        else:
            answers.tell(query, said)


def answer(arguments: Sequence[str], fields: dict[str, Any]) -> tuple[str, int, list[tuple[str, Any]]]:
    """What the program prints, its exit status, and the queries, each with its answer, None where it has none."""
    try:
        given, others = _options().parse_known_args(arguments)
    except argparse.ArgumentError:
        given, others = None, []
    if given is None or others or given.id != "0":
        return "No answer: this GPU is assumed, not there.\n", 6, [(shlex.join(["nvidia-smi", *arguments]), None)]
    name, layout = fields["name"], given.format.split(",")
    if given.list_gpus:
        return f"GPU 0: {name} (UUID: {_UNKNOWN})\n", 0, [("nvidia-smi -L", name)]
    if given.query_gpu is None:
        text = f"NVIDIA-SMI {_UNKNOWN}  Driver Version: {_UNKNOWN}  CUDA Version: {_UNKNOWN}\n  0  {name}  "
        return f"{text}{fields['memory.used']}MiB / {fields['memory.total']}MiB\n", 0, [("nvidia-smi", name)]
    asked = [one.strip() for one in given.query_gpu.split(",")]
    units = [one in _MEMORY and "nounits" not in layout for one in asked]
    titles = [f"{one} [MiB]" if unit else one for one, unit in zip(asked, units, strict=True)]
    values = [
        f"{fields.get(one, _UNKNOWN)}{' MiB' * (unit and one in fields)}"
        for one, unit in zip(asked, units, strict=True)
    ]
    printed = [values] if "noheader" in layout else [titles, values]
    queries = [(f"nvidia-smi --query-gpu={one}", fields.get(one)) for one in asked]
    return "".join(f"{', '.join(line)}\n" for line in printed), 0, queries


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--query-gpu")
    parser.add_argument("--format", default="csv")
    parser.add_argument("-i", "--id", default="0")
    parser.add_argument("-L", "--list-gpus", action="store_true")
    for ignored in (("-l", "--loop"), ("-lms", "--loop-ms"), ("-f", "--filename")):
        parser.add_argument(*ignored)
    return parser


def main() -> int:
    folder = Path(sys.argv[1])
    text, status, queries = answer(sys.argv[2:], json.loads((folder / "fields.json").read_text()))
    with (folder / "asked.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(query)}\n" for query in queries)
    sys.stdout.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
