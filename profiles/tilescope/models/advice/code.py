"""The rule on code that probably does not do what is meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilescope.models.advice.finding import WARNING, Finding
from tilescope.models.advice.subject import Subject
from tilescope.table import kernel_faults
from tilescope.table.run import Failure


def warned(subject: Subject, warnings: Iterable[Failure]) -> Iterator[Finding]:
    """A finding for each of the case's warnings. It has no bound: the result may be another than meant."""
    for message in dict.fromkeys(warning.message for warning in warnings):
        told = kernel_faults.read(message)
        title = f"{told.function}, line {told.line}: {told.what}" if told else message
        remedy = told.remedy if told else "decide whether that is meant"
        yield subject.finding(WARNING, title, f"{remedy[:1].upper()}{remedy[1:]}.", [])
