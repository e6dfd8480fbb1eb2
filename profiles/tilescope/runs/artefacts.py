"""Where a run keeps what a collector wrote of a case. Imports neither torch nor triton."""

from __future__ import annotations

import glob
from pathlib import Path

from tilescope.files import bounded_reading, names
from tilescope.table.case import Case


def find(folder: Path, collector: str, case: Case, suffix: str) -> Path | None:
    """The artefact of a case in the run at ``folder``; None where it was not kept, as an ordinary file in the run.

    ``case.kernel`` is the kernel's name as the run's table has it.
    """
    place = folder / "artefacts" / names.file_name(collector, "a collector's name")
    path = place / f"{case.slug}{suffix}"
    if bounded_reading.is_inside(path, folder):
        return path
    # A person's own kernel is called by its file when it is captured: the name's end is the same, the digest is not.
    readable = glob.escape(case.slug.rpartition("-")[0])
    found = sorted(place.glob(f"*py_{readable}-????????{suffix}"))
    return next((path for path in found if bounded_reading.is_inside(path, folder)), None)
