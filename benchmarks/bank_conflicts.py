"""Holds predicted bank conflicts of shared memory against ncu's counts, without a GPU: ``python -m benchmarks.bank_conflicts``.

Each kernel's recorded sizes are compiled for the GPU of the recording, ``--each`` of them in each direction. A line of the output is a
launch: conflicts by ncu, conflicts predicted, wavefronts predicted, and the function. Functions that have changed since they were
recorded are left out. ncu also counts requests that meet other traffic: about ``TRAFFIC`` of the wavefronts, at most ``NOISE`` of them,
and up to ``FLOOR`` in a kernel without shared memory.

The last lines are the rank correlation (Spearman) of ncu's counts with the predicted conflicts and traffic, over launches that ncu
counts any of, and the launches on which prediction and ncu disagree.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from tilescope.collectors import compiler
from tilescope.execution import execute
from tilescope.models.advice.compute import NOISE
from tilescope.runs import changes, recordings, store
from tilescope.table.case import Case
from tilescope_kernels import catalog

#: The median of ncu's counts over wavefronts in launches without conflicts, and the most that it counts without shared memory.
TRAFFIC, FLOOR = 0.04, 500


class Compared(NamedTuple):
    """A launch of a case: bank conflicts by ncu and predicted, and predicted wavefronts (NaN where they are unknown)."""

    case: str
    function: str
    counted: float
    predicted: float
    wavefronts: float

    @property
    def expected(self) -> float:
        """The count that the prediction lets one expect of ncu."""
        return self.predicted + TRAFFIC * self.wavefronts

    @property
    def contradicted(self) -> bool:
        """Whether the launch is predicted to be free while ncu counts more than its noise, or to conflict while it counts less."""
        noise = max(FLOOR, NOISE * self.wavefronts)
        return (self.counted > noise) != (self.predicted > noise)


def recorded(kernel: str, each: int) -> Iterator[tuple[Case, pd.DataFrame]]:
    """Cases of the library's own code with the rows of ncu's conflicts of their launches, the newest recording's."""
    seen: dict[str, int] = {}
    for found in recordings.of_kernel(kernel):
        loaded = store.open_run(found.path)
        table, changed = loaded.table, changes.changed_functions(loaded, kernel)
        rows = table[(table["metric"] == "bank_conflicts") & (table["source"] == "ncu") & (table["kernel"] == kernel)]
        rows = rows[(rows["impl"] == "triton") & (rows["config"] == "") & ~rows["function"].isin(changed)]
        for (direction, workload), of_case in rows.groupby(["pass", "workload"], sort=False):
            if seen.setdefault(direction, 0) < each:
                seen[direction] += 1
                yield Case(kernel, "triton", str(direction), str(workload)), of_case


def compare(case: Case, counted: pd.DataFrame, target: str = "sm_90") -> Iterator[Compared]:
    """The case's launches, matched to the rows ``counted`` by function and order."""
    with tempfile.TemporaryDirectory() as folder:
        artefact = Path(folder, "case.json.gz")
        compiler.capture(case, execute.load_spec(case.kernel), artefact, {"target": target})
        found = compiler.parse(artefact, case)
    wide = found.pivot_table(index=["launch", "function"], columns="metric", values="value").reset_index()
    wide = wide.reindex(columns=["launch", "function", "bank_conflicts", "shared_wavefronts"])
    for function, of_function in wide.groupby("function"):
        values = counted.loc[counted["function"] == function].sort_values("launch")["value"]
        for value, (conflicts, wavefronts) in zip(
            values, of_function[["bank_conflicts", "shared_wavefronts"]].itertuples(index=False), strict=False
        ):
            yield Compared(case.id, str(function), value, conflicts, wavefronts)


def correlation(launches: Sequence[Compared]) -> float:
    """Spearman's rank correlation of ncu's counts and those expected."""
    ranks = pd.DataFrame([(one.counted, one.expected) for one in launches]).rank()
    return float(ranks[0].corr(ranks[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*", help="names of the catalog (all)")
    parser.add_argument("--each", type=int, default=2, metavar="N")
    options = parser.parse_args()
    found: list[Compared] = []
    for kernel in options.kernels or [spec.name for spec in catalog.CATALOG]:
        for case, counted in recorded(kernel, options.each):
            for one in compare(case, counted):
                found.append(one)
                print(
                    f"{one.counted:14,.0f} {one.predicted:14,.0f} {one.wavefronts:16,.0f}  {one.function}  {one.case}",
                    flush=True,
                )
    known = [one for one in found if one.wavefronts == one.wavefronts]
    told = [one for one in known if one.counted and one.wavefronts]
    print(
        f"{len(found)} launches, {len(known)} predicted; rank correlation of the {len(told)} that ncu counts: {correlation(told):.3f}"
    )
    for one in known:
        if one.contradicted:
            print(f"disagree: {one.function} {one.case}: ncu {one.counted:,.0f}, predicted {one.predicted:,.0f}")


if __name__ == "__main__":
    main()
