"""Answers ``nvidia-smi`` for an assumed GPU, by a program of that name that comes first on PATH.

Libraries ask it for the GPU's vendor, name and memory. This module is that program, too, so it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.execution.assumed_answers import Answers

#: Fields in mebibytes, which have their unit behind them.
_MEMORY = frozenset({"memory.total", "memory.free", "memory.used", "memory.reserved"})
_UNKNOWN = "[N/A]"
#: Options whose value follows: those that change nothing here.
_PERIODS = ("-l", "--loop", "-lms", "--loop-ms", "-f", "--filename")


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
    given = _options(arguments)
    if given is None or given.pop("-i", given.pop("--id", "0")) not in ("0", ""):
        return "No answer: this GPU is assumed, not there.\n", 6, [(_query(arguments), None)]
    layout = given.pop("--format", "csv").split(",")
    if "--query-gpu" in given and len(given) == 1:
        names = [name.strip() for name in given["--query-gpu"].split(",")]
        values = [_cell(name, fields, "nounits" in layout) for name in names]
        header = [] if "noheader" in layout else [", ".join(_titled(name, "nounits" in layout) for name in names)]
        queries = [(f"nvidia-smi --query-gpu={name}", fields.get(name)) for name in names]
        return "\n".join([*header, ", ".join(values)]) + "\n", 0, queries
    if given.keys() <= {"-L", "--list-gpus"} and given:
        return f"GPU 0: {fields['name']} (UUID: {_UNKNOWN})\n", 0, [("nvidia-smi -L", fields["name"])]
    if not given:
        text = f"NVIDIA-SMI {_UNKNOWN}  Driver Version: {_UNKNOWN}  CUDA Version: {_UNKNOWN}\n  0  {fields['name']}  "
        return f"{text}{fields['memory.used']}MiB / {fields['memory.total']}MiB\n", 0, [("nvidia-smi", fields["name"])]
    return "No answer: this GPU is assumed, not there.\n", 1, [(_query(arguments), None)]


def _query(arguments: Sequence[str]) -> str:
    return shlex.join(["nvidia-smi", *arguments])


def _options(arguments: Sequence[str]) -> dict[str, str] | None:
    """The options by name, with their values; None where an argument is no option."""
    found: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        name, separator, value = waiting.pop(0).partition("=")
        if not name.startswith("-"):
            return None
        if not separator and waiting and not waiting[0].startswith("-"):
            value = waiting.pop(0)
        if name not in _PERIODS:
            found[name] = value
    return found


def _cell(name: str, fields: dict[str, Any], plain: bool) -> str:
    if name not in fields:
        return _UNKNOWN
    return f"{fields[name]}{'' if plain or name not in _MEMORY else ' MiB'}"


def _titled(name: str, plain: bool) -> str:
    return f"{name} [MiB]" if name in _MEMORY and not plain else name


def main() -> int:
    folder = Path(sys.argv[1])
    text, status, queries = answer(sys.argv[2:], json.loads((folder / "fields.json").read_text()))
    with (folder / "asked.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(query)}\n" for query in queries)
    sys.stdout.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
