"""What Tilescope makes of kernels that other people wrote: ``python -m benchmarks.foreign``.

It installs nothing: it calls the functions of those libraries of ``benchmarks.foreign_kernels`` that can be imported, unchanged, while
``tilescope.capture`` looks on. Each call, with its backward pass where an argument asks for one, is a process of its own, and a line:

captured      distinct launches and their kernels, and what the call raised
compiled      launches whose compiled kernel is in the table, of those captured
interpreted   launches whose accesses were counted, of those captured
agreed        the relative error of the results against plain PyTorch, where there is a reference
accused       what is called impossible, or is noted as wrong or doubtful, of kernels that are in daily use

Without a GPU launches are interpreted, for ``--target``. Where a library or a GPU is needed and absent, that is said. Status 1 where an
entry missed one of the first four, or was accused.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tilescope
import torch
from tilescope.models import impossible

from benchmarks import foreign_kernels
from benchmarks.foreign_kernels import Entry
from benchmarks.forking import forked

#: What every process needs, and nothing that asks for a GPU when it is imported: the libraries are imported by each for itself.
_FIRST = (
    "torch._dynamo",
    "tilescope.captures.recording",
    "tilescope.tuning.autotuning",
    "tilescope.execution.describe",
)
#: What makes a note of a run an accusation.
_BLAMING = ("race", "out of bounds", "outside", "wrong")


def looked_at(entry: Entry, target: str, limit: float, runs: Path) -> dict[str, Any]:
    """What became of one entry, in this process."""
    torch.manual_seed(0)
    said: dict[str, Any] = {"library": entry.library, "name": entry.name}
    began = time.perf_counter()
    capture = tilescope.capture(target, limit)
    results, copies = list[torch.Tensor](), list[Any]()
    with capture:
        given = entry.given()
        copies = [copied(one) for one in given]
        try:
            results = tensors(entry.call(*given))
            if results and results[0].requires_grad:
                results[0].float().sum().backward()
        except Exception as error:
            said["raised"] = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"[:300]
    said["seconds"] = time.perf_counter() - began
    said["captured"], said["kernels"] = len(capture.records), len({one.function for one in capture.records})
    said["notes"] = capture.notes
    if entry.reference and results:
        expected = tensors(entry.reference(*copies))
        said["error"] = max(distance(one, other) for one, other in zip(results, expected, strict=False))
    if capture.records:
        said |= compiled(capture, runs)
    return said


def compiled(capture: Any, runs: Path) -> dict[str, Any]:
    """What the compiler and the interpreter have of the captured launches, and what is accused."""
    found = capture.profile(["compiler", "interpreter"], runs_dir=runs, on_event=lambda event: None)
    table = found.table

    def launches(metric: str) -> int:
        cases = table[table["metric"] == metric][["kernel", "workload"]]
        return len(cases.drop_duplicates())

    blamed = [note for note in found.run.notes if any(word in note for word in _BLAMING)]
    accused = [reason.said for _, reason in impossible.of_table(table, found.run.device, found.run.kernels)]
    accused += [warning.message for warning in found.run.warnings]
    return {
        "compiled": launches("registers"),
        "interpreted": launches("unique_bytes_read"),
        "failures": [f"{failure.case}: {failure.message}"[:300] for failure in found.failures],
        "accused": [*accused, *blamed],
    }


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors among what a call returned."""
    return [
        one for one in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(one, torch.Tensor)
    ]


def copied(given: Any) -> Any:
    """A dense tensor of its own, for calls may write into what they are given; anything else as it is."""
    dense = isinstance(given, torch.Tensor) and given.layout == torch.strided
    return given.detach().clone() if dense else given


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error in norm."""
    wanted = expected.detach().double()
    return float((found.detach().double() - wanted).norm() / wanted.norm().clamp(min=1e-30))


def line(entry: Entry, said: Mapping[str, Any] | None) -> str:
    """The table's line of an entry."""
    if said is None:
        return f"| {entry.library} {entry.name} | died, or took too long | | | | | |"
    of = said["captured"]
    counted = f"{of} launches, {said['kernels']} kernels"
    captured = f"{counted}; {said['raised']}" if "raised" in said else counted
    agreed = f"{said['error']:.1e}" if "error" in said else "no reference" if not entry.reference else "no result"
    cells = [
        f"{entry.library} {entry.name}",
        captured,
        f"{said.get('compiled', 0)} of {of}",
        f"{said.get('interpreted', 0)} of {of}",
        agreed if missed(entry, said) != "agreed" else f"{agreed}, not within {entry.allowed:.0e}",
        "; ".join(said.get("accused", ())),
        f"{said['seconds']:.1f} s",
    ]
    return f"| {' | '.join(cells)} |"


def missed(entry: Entry, said: Mapping[str, Any] | None) -> str:
    """The first of the columns that an entry missed; empty where it missed none."""
    if said is None or not said["captured"]:
        return "captured"
    for column in ("compiled", "interpreted"):
        if said.get(column, 0) < said["captured"]:
            return column
    if entry.reference and not said.get("error", float("inf")) <= entry.allowed:
        return "agreed"
    return "accused" if said.get("accused") else ""


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Looks at every entry. Status 1 where one missed something, 2 where no library can be imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="libraries, or beginnings of entries; all unless named"
    )
    parser.add_argument("--target", default="", help="compile for it: this machine's GPU unless named, else sm_90")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of interpreting, an entry")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that an entry may take in all")
    parser.add_argument("--list", action="store_true", help="name the entries and look at none")
    parser.add_argument("--out", type=Path, help="a JSON file of everything that was found")
    arguments = parser.parse_args(argv)
    absent = [name for name in foreign_kernels.LIBRARIES if not foreign_kernels.importable(name)]
    for name in absent:
        write(f"{name} is not installed: its kernels are left out")
    entries = [one for one in foreign_kernels.every() if _asked(one, arguments.names)]
    if arguments.list:
        for one in entries:
            write(f"{one.library} {one.name}")
        return 0
    if not entries:
        write("there is nothing to look at")
        return 2
    write("| kernel | captured | compiled | interpreted | agreed | accused | took |")
    write("|---|---|---|---|---|---|---|")
    for name in _FIRST:
        importlib.import_module(name)
    found: list[dict[str, Any]] = []
    misses: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        for one in entries:
            said = forked(
                lambda one=one: quietly(
                    lambda: looked_at(one, arguments.target, arguments.limit, Path(scratch, "runs"))
                ),
                Path(scratch),
                arguments.patience,
            )
            write(line(one, said))
            misses.setdefault(missed(one, said), []).append(f"{one.library} {one.name}")
            found.append(said or {"library": one.library, "name": one.name})
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1))
    referenced = sum(one.reference is not None for one in entries)
    write(f"\n{len(entries)} entries, {referenced} with a reference: {len(misses.get('', []))} whole.")
    for column, names in misses.items():
        if column:
            write(
                f"{column}: {', '.join(names)} did not pass."
                if column != "accused"
                else f"accused: {', '.join(names)}."
            )
    return 1 if set(misses) - {""} else 0


def quietly(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` answers; what libraries print while they are imported is not shown."""
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return work()


def _asked(entry: Entry, names: Sequence[str]) -> bool:
    return not names or any(f"{entry.library} {entry.name}".startswith(name) or entry.name == name for name in names)


if __name__ == "__main__":
    sys.exit(main())
