"""The rule on a sweep: a config is quicker than the default, what the implementation chooses by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilescope.models import compare
from tilescope.models.advice.finding import Bound, Finding
from tilescope.models.advice.subject import Subject
from tilescope.table import units
from tilescope.table.case import parse_config
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues

#: Less than this is no news: configs of one sweep that differ only in what their pass does not use, and so run the same
#: code, came out up to 0.8 % apart, and of every fifth such pair the interval leaves out 1 (norms, H200, 2026-11-24).
_WORTH = 1.01


def quicker_config(subject: Subject) -> Iterator[Finding]:
    """A config of the sweep beats the default, which ran beside it, beyond the noise of both. Bound: their ratio, as timed.

    Beyond the noise as ``compare`` has it: the interval of the ratio of medians leaves out 1. A sweep without the default
    says nothing: the first of the declared configs is no stand-in for a choice that depends on the shape.
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
    low, high = compare.interval(times, own)
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
    """The median of a case's GPU time and its 5 % and 95 % quantiles."""
    found = case.spread("gpu_time", source)
    return "{} ({} to {})".format(*(units.text(v, "second", 4) for v in found[:3])) if found else ""
