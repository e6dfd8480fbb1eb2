"""The roofs of a run's device: one measured roof for a device and a driver, the same in every run.

A measured roof is the rate of a plain program (``execution.measured_rates``). ``roofs.json`` beside the recordings has the best
rate of each roof over all recordings, by device and driver. A run on another device or driver has its own measurements.
A case may pass a roof: its share is then above 100 %, and ``models.bound`` gives the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

from tilescope.files import atomic_writing, json_shape
from tilescope.hardware import ceilings
from tilescope.hardware.ceilings import DATASHEET, MEASURED, MEMORY_LEVELS, UNREACHED
from tilescope.runs.reader import read_run
from tilescope.table.run import Ceiling, Device, Run

#: The file beside the recordings.
FILE = "roofs.json"


def settled(run: Run, recorded: Path) -> Run:
    """The run with today's datasheet, and with the measured roofs of its device and driver.

    ``recorded`` is the folder of the recordings.
    """
    device = run.device
    sheet = ceilings.datasheet(device.name) or tuple(c for c in device.ceilings if c.origin == DATASHEET)
    measured = shared(device, _driver(run), recorded) or own(run)
    found = (*sheet, *(measured if device.measured else ()))
    known = tuple(dataclasses.replace(c, unit=ceilings.unit(c.name)) for c in found)
    return dataclasses.replace(run, device=dataclasses.replace(device, ceilings=known))


def own(run: Run) -> tuple[Ceiling, ...]:
    """The roofs that were measured for the run, without those that no program of ours comes near."""
    return tuple(c for c in run.device.ceilings if c.origin == MEASURED and c.name not in UNREACHED)


def shared(device: Device, driver: str, recorded: Path) -> tuple[Ceiling, ...]:
    """The measured roofs of the device with this driver in ``roofs.json``; empty where it has none."""
    file = recorded / FILE
    kept = _read(file, file.stat().st_mtime_ns) if file.is_file() else {}
    return kept.get(device.name, {}).get(driver, ())


def best(recorded: Path) -> dict[str, dict[str, tuple[Ceiling, ...]]]:
    """The best rate of each measured roof over the recordings, by device and driver."""
    found: dict[str, dict[str, tuple[Ceiling, ...]]] = {}
    for run in (read_run(file.parent) for file in sorted(recorded.glob("*/run.json"))):
        of_device, driver = found.setdefault(run.device.name, {}), _driver(run)
        fastest: dict[str, Ceiling] = {}
        for roof in (*of_device.get(driver, ()), *own(run)):
            fastest[roof.name] = max(fastest.get(roof.name, roof), roof, key=lambda one: one.value)
        names = [*(name for name in MEMORY_LEVELS if name in fastest), *sorted(fastest.keys() - {*MEMORY_LEVELS})]
        of_device[driver] = tuple(fastest[name] for name in names)
    return {device: dict(sorted(drivers.items())) for device, drivers in sorted(found.items())}


def keep(recorded: Path) -> None:
    text = json.dumps(best(recorded), indent=1, default=dataclasses.asdict) + "\n"
    atomic_writing.replace(recorded / FILE, lambda to: to.write_text(text, encoding="utf-8"))


@functools.lru_cache(maxsize=2)
def _read(file: Path, changed: int) -> dict[str, dict[str, tuple[Ceiling, ...]]]:
    return json_shape.fit(json.loads(file.read_text(encoding="utf-8")), dict[str, dict[str, tuple[Ceiling, ...]]], "")


def _driver(run: Run) -> str:
    return str(run.versions.get("driver", ""))
