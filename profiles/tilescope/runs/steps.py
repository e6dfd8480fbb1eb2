"""The step of a model that a run is of, in a file of the run's folder. Imports neither torch nor triton."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

from tilescope.files import atomic_writing, bounded_reading, json_shape
from tilescope.runs.reader import STEP, damaged
from tilescope.table.step import Step


def write(folder: Path, step: Step) -> None:
    data = json_shape.storable(dataclasses.asdict(step))
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)
    atomic_writing.replace(folder / STEP, lambda to: to.write_bytes(packed))


def read(folder: Path) -> Step | None:
    """The run's step; None where it has none. Raises StoreError for a damaged file."""
    path = folder / STEP
    try:
        return json_shape.fit(bounded_reading.data_of(path, folder), Step, "")
    except FileNotFoundError:
        return None
    except (ValueError, LookupError) as error:
        raise damaged(path, error) from error
