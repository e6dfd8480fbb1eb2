"""A GPU of round figures, a run on it and the rows of a case, for tests that need some."""

import dataclasses
import json

import pandas as pd
from tilescope.hardware import ceilings, device
from tilescope.runs.store import RunWriter
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Run

CASE = Case("scale", "triton", "forward", "1000x1000-fp32")
MB = 1e6


def gpu(name="Made-up GPU", **roofs):
    """A GPU of 100 multiprocessors and 10 MB of L2, with these measured roofs; those called ``sheet_…`` are the datasheet's."""
    found = (
        Ceiling(roof, value, ceilings.unit(roof), "datasheet" if called != roof else "measured")
        for called, value in roofs.items()
        for roof in (called.removeprefix("sheet_"),)
    )
    return Device(name, "sm_90", 100, 10_000_000, 10_000_000_000, True, tuple(found))


#: 1 TB/s, 10 Tflop/s: a million bytes take a microsecond, and so do ten million flops.
GPU = gpu(hbm=1e12, l2=4e12, fp32=1e13, tf32=1e14, sheet_bf16=1e14)


def machine(monkeypatch, target="sm_90", ncu="/opt/ncu", **more):
    """Makes this a machine with the GPU of this target and with this ncu; ``more`` are other answers of ``device``, by function."""
    known = {"detect": device.for_target(target), "uuid": "GPU-made-up", "unavailable": None, "find_ncu": ncu}
    for name, answer in {**known, **more}.items():
        monkeypatch.setattr(device, name, lambda answer=answer: answer)


def html(shown):
    """What a notebook shows of an object; None for one that is shown as text."""
    from IPython.core.formatters import HTMLFormatter

    return HTMLFormatter()(shown)


def run(name="20261120-221530-3fa9", kernels=None, **fields):
    """The description of a run of these kernels."""
    return dataclasses.replace(Run(name, "2026-11-20T22:15:30+00:00", GPU, {}, {}, {}), kernels=kernels or {}, **fields)


def written(folder, rows, *about, **fields):
    """The folder of a run with these rows or this table that was written there; ``run`` says what else is given."""
    writer = RunWriter(folder, run(*about, **fields))
    writer.append(rows if isinstance(rows, pd.DataFrame) else schema.frame(rows))
    return writer.finish()


def redescribe(folder, **fields):
    """Writes these fields of its ``run.json`` into the run in a folder."""
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def artefact(folder, collector, name):
    """The place of an artefact of the run in a folder."""
    place = folder / "artefacts" / collector / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def cost(of=CASE, read=50 * MB, written=50 * MB, flops=MB):
    """What the case's algorithm cannot avoid."""
    needed = {"bytes_read": read, "bytes_written": written, "flops": flops}
    return [of.row(f"algorithm_{what}", value, "model") for what, value in needed.items()]


def values(given, launch=0, of=CASE, stem="f"):
    """Values of one launch, or of the whole case (None): keys are ``metric@source``."""
    place = {} if launch is None else {"launch": launch, "function": f"{stem}{launch}"}
    rows = []
    for key, value in given.items():
        metric, source = key.split("@")
        sample = {"sample": 0} if source in ("torch_profiler", "events") else {}
        rows.append(of.row(metric, value, source, **place, **sample))
    return rows


#: What the compiler says of a launch whose registers leave room for a quarter of an SM's warps.
OCCUPANCY = {
    "theoretical_occupancy@compiler": 0.25, "grid_blocks@compiler": 10_000, "block_threads@compiler": 128,
    "registers@compiler": 128, "shared_memory@compiler": 0, "occupancy_limit_registers@compiler": 4,
    "occupancy_limit_shared_memory@compiler": 200, "occupancy_limit_warps@compiler": 16,
}  # fmt: skip
