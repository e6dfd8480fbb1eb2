"""What a watched script's page shows, by a recorded study: a copy before and after its accesses are coalesced."""

from __future__ import annotations

import dataclasses

import pandas as pd
from tilescope.models import versions as model
from tilescope.models.versions import Pair
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.recordings import Question

KERNEL = "strided_copy"
#: Before and after.
CASES = tuple(KernelCase(impl, "forward", "4194304x32-fp32") for impl in ("strided", "triton"))


def example(loaded: LoadedRun, kernel: str = KERNEL) -> Pair | None:
    """Both copies; None where the run does not have both with counted accesses."""
    rows = loaded.table[loaded.table["kernel"] == kernel]
    rows = pd.concat([rows[(rows[OF_KERNEL] == list(case)).all(axis="columns")] for case in CASES])
    cases = model.cases(dataclasses.replace(loaded, table=rows))
    counted = [case for case in cases if "sector_efficiency_read" in case.values]
    return Pair(counted[0], counted[1]) if len(counted) == len(CASES) else None


#: The best recording of the study.
QUESTION = Question(example)
