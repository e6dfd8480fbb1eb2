"""Cases of one kernel: their names in the address and in selectors, and which one a partial choice means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

#: The columns that identify a case of a kernel.
OF_KERNEL = ["impl", "pass", "workload", "config"]


class KernelCase(NamedTuple):
    """A case without its kernel; ``direction`` is the pass, ``config`` is empty for the default."""

    impl: str
    direction: str
    workload: str
    config: str = ""

    @property
    def problem(self) -> tuple[str, str]:
        """Workload and pass."""
        return self.workload, self.direction


def case_name(case: Iterable[str]) -> str:
    """The name of a kernel's case in selectors and the address, made of its values of ``OF_KERNEL``."""
    return " · ".join(filter(None, case))


def named(name: str) -> KernelCase | None:
    """The case with this ``case_name``; None for a text that is no case's name."""
    parts = name.split(" · ")
    return KernelCase(*parts) if len(parts) in (3, 4) else None


def cases(table: pd.DataFrame) -> dict[str, KernelCase]:
    """The cases in one kernel's ``table``, by their names."""
    rows = table[OF_KERNEL].drop_duplicates()
    return {case_name(case): KernelCase(*case) for case in rows.itertuples(index=False, name=None)}


def functions(table: pd.DataFrame, case: KernelCase, *, swept: bool = False) -> list[str]:
    """The GPU functions that a case launches, in one kernel's ``table``: with its default config, or with those of its sweep."""
    rows = table[(table["config"] != "") == swept]
    own = rows.loc[(rows[OF_KERNEL[:3]] == list(case[:3])).all(axis="columns"), "function"]
    return [name for name in own.dropna().unique() if name]


def closest(known: Iterable[KernelCase], to: KernelCase, **parts: str) -> KernelCase | None:
    """The case with all of ``parts`` that is closest to ``to``; among equals Triton's, then the default config's, then the first."""

    def likeness(case: KernelCase) -> tuple[bool, ...]:
        alike = tuple(getattr(case, name) == getattr(to, name) for name in ("workload", "direction", "impl", "config"))
        return (*alike, case.impl == "triton", case.config == "")

    found = [case for case in known if all(getattr(case, name) == value for name, value in parts.items())]
    # max() keeps the first of equals.
    return max(found, key=likeness, default=None)
