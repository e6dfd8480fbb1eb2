"""What other packages change: a run under each, the launches that got worse, and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from tilescope.models import code_change, compare, summary
from tilescope.models.code_change import Launch
from tilescope.models.compare import CompareError, Side
from tilescope.table import units
from tilescope.table.case import readable
from tilescope.table.run import Failure
from tilescope.table.schema import NAMED, named


@dataclass(frozen=True)
class Upgrade:
    """The same launches under two sets of packages. ``names`` are the packages of the two, as a user wrote them."""

    baseline: Side
    candidate: Side
    names: tuple[str, str]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """``compare.compare`` of the two; empty where no case succeeded under both."""
        try:
            return compare.compare(self.baseline, self.candidate)
        except CompareError:
            return pd.DataFrame(columns=list(compare.COLUMNS))

    @cached_property
    def launches(self) -> list[Launch]:
        return code_change.launches(self.baseline, self.candidate, self.rows)

    @property
    def worse(self) -> list[Launch]:
        """The launches that got worse. Times decide where both sides were timed, the compiled code elsewhere."""
        slower = [launch for launch in self.launches if launch.row["verdict"] == "slower"]
        return slower + [launch for launch in self.launches if launch.worse and launch not in slower]

    def again(self, other: Upgrade) -> str:
        """What another upgrade from the same baseline says of the launch that got worst in this one; empty where it is not worse."""
        worst = self.worse[0]
        metrics = {one.metric for one in worst.worse[:1]}
        for one in other.worse:
            slower = worst.row["verdict"] == one.row["verdict"] == "slower"
            same = (one.case, one.candidate.function) == (worst.case, worst.candidate.function)
            if same and (slower or metrics & {change.metric for change in one.worse}):
                return said(one)
        return ""

    @property
    def broken(self) -> list[Failure]:
        """The failures that only the candidate has."""
        # A captured kernel's case names the folder of its run.
        before = {(one.collector, readable(one.case)) for one in self.baseline.loaded.run.failures}
        return [one for one in self.candidate.loaded.run.failures if (one.collector, readable(one.case)) not in before]

    @cached_property
    def alone(self) -> list[str]:
        """The cases that one side alone has and that did not fail, and the functions that a case launches on one side alone, a line each."""
        sides, found = (self.baseline.loaded, self.candidate.loaded), []
        gone = {readable(one.case) for side in sides for one in side.run.failures}
        tables = [side.table for side in sides]
        for columns in (NAMED, [*NAMED, "function"]):
            held = [set(table[columns].itertuples(index=False, name=None)) for table in tables]
            for name, only in zip(self.names, (held[0] - held[1], held[1] - held[0]), strict=True):
                new = [_text(key) for key in sorted(only) if _text(key[: len(NAMED)]) not in gone]
                found += [f"only under {name}: {said}" for said in new]
            gone |= {_text(key) for key in held[0] ^ held[1]}
            tables = [table[table["source"] == "compiler"] for table in tables]
        return found

    @property
    def configs(self) -> list[str]:
        """The cases that chose another config, a line each."""
        rows = (summary.of_run(side.loaded, side.loaded.table) for side in (self.baseline, self.candidate))
        chosen = [dict(zip(named(of), of["chosen"], strict=True)) for of in rows]
        return [
            f"{_text(case)} chose {after}, and {chosen[0][case]} under {self.names[0]}"
            for case, after in chosen[1].items()
            if after and chosen[0].get(case) and after != chosen[0][case]
        ]

    @property
    def verdict(self) -> str:
        """What got worse, in a sentence: what is broken first."""
        before, after = self.names
        failed = units.several(len(self.broken), "case")
        code = code_change.sentence(self.launches)
        code += f"; {len(self.alone)} cases or functions are of one side alone" if self.alone else ""
        return f"{failed} failed under {after} and not under {before}; otherwise {code}" if self.broken else code


def _text(key: tuple[str, ...]) -> str:
    return "/".join(filter(None, key))


def said(launch: Launch) -> str:
    """``gemm (gemm triton forward 512x512-fp16) at s.py:10: 128-bit global loads 4 → 0``, with the time's interval first."""
    told = launch.worse[:2]
    if any(one.metric == "theoretical_occupancy" for one in told):
        told += [one for one in launch.moved if one.metric in ("registers", "shared_memory", "block_threads")]
    changes = [f"{one.label} {' → '.join(one.texts()[:2])}" for one in told]
    if launch.row["verdict"] == "slower":
        low, high = (100 * (1 / launch.row[end] - 1) for end in ("speedup_high", "speedup_low"))
        changes.insert(0, f"takes {low:.1f} to {high:.1f} % longer")
    return f"{launch.candidate.function} ({launch.case}) at {launch.place}: {', '.join(changes)}"


def bisected(good: str, bad: str, releases: Sequence[str], tried: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Each of the ``releases`` between the two that was tried, with what ``tried`` says of it, then the first that is worse.

    ``tried`` returns an empty text for a release that is not worse.
    """
    while releases:
        place = len(releases) // 2
        middle, before, after = releases[place], releases[:place], releases[place + 1 :]
        worse = tried(middle)
        yield middle, f"worse: {worse}" if worse else "not worse"
        good, bad, releases = (good, middle, before) if worse else (middle, bad, after)
    yield bad, f"the first that is worse; {good} is not"
