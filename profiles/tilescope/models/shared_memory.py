"""Source lines whose accesses to shared memory conflict, as the compiler collector predicts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from tilescope.table import units

_PLACE = ["kernel", "impl", "function", "file", "line"]


def conflicted(lines: pd.DataFrame) -> pd.DataFrame:
    """Lines with predicted bank conflicts, the worst first.

    ``lines`` is a frame of ``table.line_values``. The columns are the line's place, ``wavefronts`` and ``ideal`` of one warp (each
    access counted once), and their ``ratio``: the worst case's, where cases share a line.
    """
    own = lines[lines["metric"].isin(["code_wavefronts", "code_wavefronts_ideal"])]
    found = own.pivot_table(index=[*_PLACE, "pass", "workload", "config", "launch"], columns="metric", values="value")
    found = found.reindex(columns=["code_wavefronts", "code_wavefronts_ideal"]).set_axis(
        ["wavefronts", "ideal"], axis="columns"
    )
    found = found[found["wavefronts"] > found["ideal"]].reset_index()
    found["ratio"] = found["wavefronts"] / found["ideal"]
    return found.sort_values("ratio", ascending=False, kind="stable").drop_duplicates(_PLACE, ignore_index=True)


def remarks(lines: pd.DataFrame) -> Iterator[str]:
    """A line of text for each line of ``conflicted``."""
    for row in conflicted(lines).itertuples():
        yield (
            f"bank conflicts (predicted): {row.function}, {row.file} line {row.line}: shared memory takes "
            f"{units.times(row.ratio)} the wavefronts that its bytes need"
        )
