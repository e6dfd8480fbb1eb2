"""The rule on the distance of a measured case from its roof. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilescope.hardware import roofs
from tilescope.models.advice import waits
from tilescope.models.advice.finding import AT_ROOF, DISTANCE, IDLE, Evidence, Finding
from tilescope.models.advice.subject import Subject
from tilescope.table import units
from tilescope.table.metrics import stall_name

#: The share of the roof from which a case counts as at it, within the precision of clocks.
_REACHED = 0.97


def distance(subject: Subject, found: Iterable[Finding]) -> Iterator[Finding]:
    """The distance to the roof, and whether any finding in ``found`` explains it. It ranks last.

    A computation that needs two passes over its input is compared with the roof for two passes.
    """
    fraction = subject.row["floor_fraction"]
    rules = {finding.rule for finding in found if finding.bound is None or finding.bound.clock == "gpu_time"}
    if not (subject.measured and fraction > 0) or rules & set(AT_ROOF):
        return
    roof = roofs.of_roof(subject.row, subject.device).name
    needed = subject.needed
    if subject.two_passes and needed and subject.passes > needed:
        share = needed / subject.passes
        roof = f"{roof} for two passes over the input, which this computation needs ({share * 100:.0f} % of the roof)"
        fraction /= share
    if fraction >= _REACHED and IDLE in rules:
        return  # the roof is that of the wrong pipe
    said = "Still" if rules else "No known bottleneck found. Still"
    # A small problem may reach less than 1 % of the roof.
    digits = 0 if fraction >= 0.01 else 2
    title = f"{said} {(1 - fraction) * 100:.{digits}f} % below the {roof}"
    if fraction >= _REACHED:
        title = f"At the {roof}: {units.text(fraction, 'ratio')}"
    yield subject.finding(DISTANCE, title, _next(subject, fraction), _evidence(subject))


def _next(subject: Subject, fraction: float) -> str:
    if fraction >= _REACHED:
        return "Only less work helps: fewer bytes (fuse with a neighbour), fewer operations, or a narrower dtype."
    if not subject.launches:
        return "These kernels are a library's own: another implementation is the only change there is."
    if subject.launch_bound:
        return "So short a launch cannot come near its roof: measure a larger problem to judge the code in it."
    counted = [waits.shares(launch) for launch in subject.launches]
    if not any(counted):
        return "Profile it with ncu on a GPU: it counts what warps wait for."
    most = [(name, share) for name, share in max(counted, key=lambda shares: sum(shares.values())).items()][:2]
    said = " and ".join(f"{stall_name(name)} {share * 100:.0f} %" for name, share in most)
    return f"Its warps stall most on {said}. Try other tiles, num_warps and num_stages in a sweep, and measure again."


def _evidence(subject: Subject) -> list[Evidence | None]:
    pipe = roofs.of_roof(subject.row, subject.device).pipe
    work = ["algorithm_flops"] if pipe else ["algorithm_bytes_read", "algorithm_bytes_written"]
    return [
        subject.of_row("gpu_time", subject.row["time_source"]),
        *(subject.total(name, "model") for name in work),
        subject.roof(pipe or subject.row["memory_roof"]),
    ]
