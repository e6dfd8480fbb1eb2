"""Rules on the measurement itself: impossible ones, from which nothing else is concluded, and wrong results. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models import bound, impossible
from tilescope.models.advice.finding import WRONG, Evidence, Finding
from tilescope.models.advice.subject import Subject, evidence


def cannot_be(subject: Subject) -> Iterator[Finding]:
    """A finding, without a bound, for each reason why the case's measurements are impossible."""
    for reason in impossible.reasons(subject.case, subject.device, str(subject.row["pipe"])):
        values: list[Evidence | None] = [
            subject.roof_of(name, known) if name.startswith("roof_") else evidence(name, known)
            for name, known in reason.proof
        ]
        yield subject.finding(reason.rule, f"Impossible: {reason.said}", reason.remedy, values)


def wrong_result(subject: Subject) -> Iterator[Finding]:
    """A finding where the results are farther from the reference's than they may be. It has no bound: nothing is won."""
    if found := bound.wrong_by(subject.row):
        title, *metrics = found
        remedy = "Set the results right first: what wrong code costs says little about the right one."
        yield subject.finding(WRONG, title, remedy, [subject.of_row(name, "check") for name in metrics])
