"""Where a run keeps what a collector wrote of a case. Imports neither torch nor triton."""

from __future__ import annotations

import glob
from pathlib import Path

from tilescope.case import Case


def find(folder: Path, collector: str, case: Case, suffix: str) -> Path | None:
    """The artefact of a case in the run at ``folder``; None where it was not kept.

    ``case.kernel`` is the kernel's name as the run's table has it.
    """
    place = folder / "artefacts" / collector
    path = place / f"{case.slug}{suffix}"
    if path.is_file():
        return path
    # A person's own kernel is called by its file when it is captured: the name's end is the same, the digest is not.
    readable = glob.escape(case.slug.rpartition("-")[0])
    return next(iter(sorted(place.glob(f"*py_{readable}-????????{suffix}"))), None)
