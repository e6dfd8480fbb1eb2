"""The places of artefacts in a run. Imports neither torch nor triton."""

from __future__ import annotations

import dataclasses
import glob
from pathlib import Path

from tilescope.files import bounded_reading, names
from tilescope.table import launch_configs
from tilescope.table.case import USUAL, Case


def find(folder: Path, collector: str, case: Case) -> Path | None:
    """The artefact of a case in the run at ``folder``; None where none was kept as an ordinary file in the run.

    ``case.kernel`` is the kernel's name as the run's table has it.
    """
    place = folder / "artefacts" / names.file_name(collector, "a collector's name")
    slug = glob.escape(case.slug)
    # A person's own kernel is called by its file when it is captured: the name's end is the same, the digest is not.
    of_file = case.kernel.endswith(".py")
    captured = dataclasses.replace(case, kernel=f"{case.kernel}:{USUAL}").slug if of_file else f"py_{case.slug}"
    own = f"*{glob.escape(captured.rpartition('-')[0])}-????????"
    found = [path for stem in (slug, own) for path in sorted(place.glob(f"{stem}.*"))]
    # The launches' configs lie beside the artefact.
    return next(
        (p for p in found if not p.name.endswith(launch_configs.SUFFIX) and bounded_reading.is_inside(p, folder)), None
    )


def of_collector(folder: Path, collector: str, suffix: str) -> list[Path]:
    """All that the run keeps of a collector's, as ordinary files in the run."""
    found = sorted((folder / "artefacts" / collector).glob(f"*{suffix}"))
    return [path for path in found if bounded_reading.is_inside(path, folder)]
