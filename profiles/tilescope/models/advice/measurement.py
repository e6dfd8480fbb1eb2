"""The rule on the measurement itself: values that cannot be. Nothing else is concluded from a case that has some. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models import impossible
from tilescope.models.advice.finding import Evidence, Finding
from tilescope.models.advice.subject import Subject, evidence


def cannot_be(subject: Subject) -> Iterator[Finding]:
    """A finding for each reason why the case's measurements cannot be. It has no bound: what they would win is not known."""
    for reason in impossible.reasons(subject.case, subject.device, str(subject.row["pipe"])):
        values: list[Evidence | None] = [
            subject.roof_of(name, known) if name.startswith("roof_") else evidence(name, known)
            for name, known in reason.proof
        ]
        yield subject.finding(reason.rule, f"Impossible: {reason.said}", reason.remedy, values)
