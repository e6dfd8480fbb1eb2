"""The rule on impossible measurements, from which nothing else is concluded. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models import impossible
from tilescope.models.advice.finding import Evidence, Finding
from tilescope.models.advice.subject import Subject, evidence


def cannot_be(subject: Subject) -> Iterator[Finding]:
    """A finding, without a bound, for each reason why the case's measurements are impossible."""
    for reason in impossible.reasons(subject.case, subject.device, str(subject.row["pipe"])):
        values: list[Evidence | None] = [
            subject.roof_of(name, known) if name.startswith("roof_") else evidence(name, known)
            for name, known in reason.proof
        ]
        yield subject.finding(reason.rule, f"Impossible: {reason.said}", reason.remedy, values)
