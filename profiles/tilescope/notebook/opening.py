"""Makes a run of another tool's file, which the command, the app and reports show like any other."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tilescope.collectors.foreign_files import formats, profiler_trace, rank_trace, step_trace
from tilescope.collectors.foreign_files.contents import Contents
from tilescope.collectors.foreign_files.rank_trace import Rank
from tilescope.files import bounded_reading
from tilescope.hardware import roofs
from tilescope.models import assumed_step, ledger, ranks
from tilescope.runs import steps, store
from tilescope.runs.store import LoadedRun, RunWriter, StoreError
from tilescope.table.run import Device, Run
from tilescope.table.schema import CASE_COLUMNS
from tilescope.table.step import KERNEL, Step
from tilescope.version import VERSION

#: What a launch has on any GPU.
_OF_LAUNCH = ("registers", "shared_memory", "block_threads", "grid_blocks")


def skew_of(paths: Sequence[Path]) -> ranks.Skew | None:
    """The skew between the ranks whose traces these files are; None where they are no traces of one program's ranks."""
    found = list[Rank]()
    for path in paths:
        with contextlib.suppress(OSError, bounded_reading.Unreadable):
            if formats.of(path).NAME == profiler_trace.NAME:
                found.append(rank_trace.read(path))
    return ranks.of(found) if len({rank.number for rank in found}) == len(found) else None


def open_file(
    path: Path | str, runs: Path | None = None, notes: Sequence[str] = (), assumed: Device | None = None
) -> LoadedRun:
    """Makes a run of the file and keeps it in ``runs`` (``$TILESCOPE_RUNS``). The format is found by the file's content.

    The run's settings have the file's name, digest and tool. ``started`` is the time of opening; a note has the file's own date
    where it has one, and ``notes`` are added. The step of a trace is predicted for the ``assumed`` GPU. Raises StoreError, in one line, for a file that is missing, damaged or in no known format.
    """
    path = Path(path)
    try:
        kind = formats.of(path)
        found = kind.read(path)
        step = step_trace.read(path) if kind.NAME == profiler_trace.NAME else None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise StoreError(f"no file {path}") from error
    except bounded_reading.Unreadable as error:
        raise StoreError(str(error).removesuffix(": collect it again")) from error
    named = bounded_reading.one_line(path.name)
    if assumed:
        found, step = _predicted(found, step, assumed, named)
    made = f", made {found.recorded}" if found.recorded else ""
    run = Run(
        id=store.new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=found.device,
        # The kernels of a step are part of it.
        kernels={} if step else {name: {**about, "passes": ["forward"]} for name, about in found.described().items()},
        versions={**found.versions, "tilescope": VERSION},
        settings={"target": found.device.target, "file": named, "file_sha256": digest, "tool": found.tool},
        title=named,
        notes=(
            f"opened from {named}, a file of {found.tool}{made} (sha256 {digest[:16]}…)",
            *_counted(found),
            *(_left_out(found) if kind.NAME == profiler_trace.NAME and step is None else ()),
            *found.notes,
            *notes,
        ),
        failures=tuple(found.failures),
    )
    with RunWriter(runs or store.runs_dir(), run) as writer:
        writer.append(found.table, store.MODEL)
        if step:
            steps.write(writer.folder, step)
        writer.append_configs(found.configs)
        for collector, case, suffix, content in found.artefacts:
            writer.artefact_path(collector, case, suffix).write_bytes(content)
        return store.open_run(writer.finish())


def _predicted(found: Contents, step: Step | None, assumed: Device, named: str) -> tuple[Contents, Step]:
    """The contents and the step for another GPU: no time of them was measured. Raises StoreError where nothing can be predicted."""
    if step is None:
        raise StoreError(f"{named} has no step to predict for {assumed.name}: give a trace of torch.profiler")
    if roofs.roof(found.device, "hbm") is None:
        raise StoreError(
            f"{named} is of {found.device.name}, whose roofs are not known, so {assumed.name} cannot be compared with it"
        )
    kernels = [launch for launch in step.launches if launch.kind == KERNEL]
    unknown = sum(ledger.floor(step, launch, found.device) is None for launch in kernels)
    if unknown == len(kernels):
        raise StoreError(
            f"{named} has no operators' shapes, so no kernel has a roof: record it with record_shapes=True"
        )
    notes = [
        f"predicted for {assumed.name} from a trace on {found.device.name}: each kernel keeps its distance from its roof, the CPU its pace",
        *([f"{unknown} of {len(kernels)} kernels have no known floor and keep their time"] if unknown else []),
    ]
    table = found.table[found.table["metric"].isin(_OF_LAUNCH)]
    made = dataclasses.replace(found, device=assumed, table=table, notes=[*notes, *found.notes])
    return made, assumed_step.on(step, found.device, assumed)


def _left_out(found: Contents) -> list[str]:
    """A note on a trace without a step, where it has too many launches for one."""
    if found.table["launch"].nunique() <= step_trace.MOST:
        return []
    return [f"what launched each kernel is not shown above {step_trace.MOST:,} launches a step: trace fewer calls"]


def _counted(found: Contents) -> list[str]:
    """A note on the number of launches, where a kernel has several of one size, whose values are added up."""
    launches, cases = found.table["launch"].nunique(), len(found.table[CASE_COLUMNS].drop_duplicates())
    if launches <= cases:
        return []
    return [f"{launches:,} launches: a kernel's time and bytes are the sums over its launches of one size"]
