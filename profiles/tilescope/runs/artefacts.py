"""Finds the artefacts in a run's folder. Imports neither torch nor triton."""

from __future__ import annotations

import dataclasses
import glob
from pathlib import Path

from tilescope.files import bounded_reading, names
from tilescope.table import launch_configs, sources
from tilescope.table.case import USUAL, Case


def find(folder: Path, collector: str, case: Case) -> Path | None:
    """The artefact of a case in the run at ``folder``, or None. Only ordinary files in the run count.

    ``case.kernel`` is the kernel's name in the run's table.
    """
    place = folder / "artefacts" / names.file_name(collector, "a collector's name")
    slug = glob.escape(case.slug)
    # A user's own kernel is captured under the path of its file: the end of that slug is the same, the digest is not.
    of_file = case.kernel.endswith(".py")
    captured = dataclasses.replace(case, kernel=f"{case.kernel}:{USUAL}").slug if of_file else f"py_{case.slug}"
    own = f"*{glob.escape(captured.rpartition('-')[0])}-????????"
    found = [path for stem in (slug, own) for path in sorted(place.glob(f"{stem}.*"))]
    # The launches' configs lie beside the artefact.
    return next(
        (p for p in found if not p.name.endswith(launch_configs.SUFFIX) and bounded_reading.is_inside(p, folder)), None
    )


def of_collector(folder: Path, collector: str, suffix: str) -> list[Path]:
    """Every artefact of a collector in the run, sorted. Only ordinary files in the run count."""
    found = sorted((folder / "artefacts" / collector).glob(f"*{suffix}"))
    return [path for path in found if bounded_reading.is_inside(path, folder)]


def shown_elsewhere(folder: Path) -> list[sources.Collector]:
    """The collectors with artefacts in the run whose findings are no values of the table."""
    return [one for one in sources.OPTIONAL if not one.measured and of_collector(folder, one.name, "")]
