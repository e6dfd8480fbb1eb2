"""Advice: the findings on one case of a kernel, ours and NVIDIA's."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilescope.models.advice import Finding
from tilescope.table.sources import lacking

from tilescope_dashboard.topics.sentence import Sentence

_ORDER = (
    "Ranked by potential speedup: 'up to' is an upper limit, 'by this alone' the estimate for one fix. Fix one, then measure again. "
    "Solid edge: measured. Dashed edge: predicted. Values in italics were not measured."
)
#: About a measurement that is physically impossible.
IMPOSSIBLE = "Ignore the other numbers until this is fixed. Fix the cause named below, then measure again."
#: About a case that is wrong or did not run.
FAULT = "Correct this first: the other numbers of this size are wrong until then."
_NOTHING = "This run has no data on {}."


def nothing(kernel: str) -> Sentence:
    """The sentence where there is no case to advise on, or no kernel."""
    return Sentence("Advice", _NOTHING.format(kernel) if kernel else "Choose a kernel to get advice on it.")


def sentence(found: Sequence[Finding], sources: Collection[str]) -> Sentence:
    """The first finding with its potential speedup; without one, which collectors besides ``sources`` would say more."""
    if not found:
        wanted = lacking(sources)
        more = (
            f"Profile it with {' and '.join(wanted)} to check more rules."
            if wanted
            else "All rules had the counters that they need."
        )
        return Sentence("No problem found", more)
    if found[0].fault:
        return Sentence(found[0].title, FAULT)
    if found[0].impossible:
        return Sentence(found[0].title, IMPOSSIBLE)
    bound = found[0].bound
    return Sentence(found[0].title + (f": {bound.text}" if bound else ""), _ORDER)


def nvidia_sentence(found: Sequence[Finding], command: str = "") -> Sentence:
    """The sentence above NVIDIA's findings, or the ``command`` that collects them."""
    if found:
        return Sentence("NVIDIA's rules", "Nsight Compute's findings on each launch, with Nsight Compute's estimates.")
    how = f" '{command}' collects them on a GPU." if command else ""
    return Sentence("NVIDIA's rules", f"Not collected for this case.{how}")
