"""Advice: the findings on one case of a kernel, ours and NVIDIA's."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilescope.models.advice import Finding

from tilescope_dashboard.data.units import times
from tilescope_dashboard.topics.sentence import Sentence

_ORDER = (
    "Ranked by potential speedup. Estimates are upper limits: fix one, then measure again. "
    "A solid edge was measured, a dashed one is predicted; values in italics were not measured."
)
_IMPOSSIBLE = "This measurement is impossible, so nothing else is concluded from it: fix the cause named below, then measure again."
_NOTHING = "This run says nothing about {}: profile it with the compiler collector, or with ncu on a GPU."


def nothing(kernel: str) -> Sentence:
    """The sentence where there is no case to advise on, or no kernel."""
    return Sentence("Advice", _NOTHING.format(kernel) if kernel else "Choose a kernel to get advice on it.")


def sentence(found: Sequence[Finding], sources: Collection[str]) -> Sentence:
    """The first finding with its potential speedup; without one, which collectors besides ``sources`` would say more."""
    if not found:
        wanted = [name for name in ("compiler", "interpreter", "ncu") if name not in sources]
        more = f"Profile it with {' and '.join(wanted)} to know more." if wanted else "Every rule had its counters."
        return Sentence("No known bottleneck found", more)
    if found[0].impossible:
        return Sentence(found[0].title, _IMPOSSIBLE)
    bound = found[0].bound
    return Sentence(found[0].title + (f": {bound.most}{times(bound.ratio)}" if bound else ""), _ORDER)


def nvidia_sentence(found: Sequence[Finding]) -> Sentence:
    """The sentence above NVIDIA's findings, or how to collect them."""
    if found:
        return Sentence("NVIDIA's rules", "Nsight Compute's own, for each launch; its estimates are its own too.")
    how = "on a GPU, 'tilescope profile KERNEL --collect ncu_rules' asks for them"
    return Sentence("NVIDIA's rules", f"Not collected for this case: {how}.")
