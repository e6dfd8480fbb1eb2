"""The rule on a sweep: a config is faster than the default, which the implementation chooses by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilescope.models import compare
from tilescope.models.advice.finding import Bound, Finding
from tilescope.models.advice.subject import Subject
from tilescope.table import units
from tilescope.table.case import parse_config
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues

#: The least ratio that makes a finding. Configs that run the same code, because they differ only in parameters of another pass,
#: differed by up to 0.8 %, and the interval of every fifth such pair excludes 1 (norms, H200, 2026-11-24).
_WORTH = 1.01


def quicker_config(subject: Subject) -> Iterator[Finding]:
    """A config that is significantly faster than the default of the same sweep. Bound: the ratio of their times.

    It is significant if the interval of the ratio of medians excludes 1. A sweep without the default yields nothing,
    because the default may depend on the shape.
    """
    clocks = (("gpu_time", source) for source in GPU_TIME_SOURCES)
    clock = next((known for known in clocks if subject.case.totals.get(known)), None)
    if subject.case.key["config"] or clock is None:
        return
    timed = [(np.array(totals), other) for other in subject.configs if (totals := other.totals.get(clock))]
    times, best = min(timed, key=lambda known: float(np.median(known[0])), default=(np.array([]), None))
    if best is None or np.median(times) <= 0:
        return
    own = np.array(subject.case.totals[clock])
    ratio = float(np.median(own) / np.median(times))
    low, high = compare.interval(baseline=own, candidate=times)
    if low <= 1 or ratio < _WORTH:
        return
    config, key = parse_config(best.key["config"]), subject.case.key
    yield subject.finding(
        "quicker-config",
        f"A config of the sweep takes {_text(best, clock[1])}, the default {_text(subject.case, clock[1])}",
        f"Pass config={config} at {key['workload']}, or make it the default for such shapes. Only the {key['pass']} pass "
        "was timed with it here.",
        [subject.of_row("gpu_time", clock[1])],
        Bound(ratio, f"the default's median / the config's, 95 % interval {low:.3f} to {high:.3f}", timed=True),
    )


def _text(case: CaseValues, source: str) -> str:
    found = case.spread("gpu_time", source)
    return "{} ({} to {})".format(*(units.text(v, "second", 4) for v in found[:3])) if found else ""
