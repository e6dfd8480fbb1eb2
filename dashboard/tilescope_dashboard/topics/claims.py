"""Claims: what is published of fused kernels, against what was measured."""

from __future__ import annotations

import pandas as pd
from tilescope.models import claims as model

from tilescope_dashboard.data.columns import KERNEL, PASS, WORKLOAD, Column
from tilescope_dashboard.topics.sentence import Sentence


def _speedup(other: str, said: str) -> tuple[Column, ...]:
    """A speedup by GPU time with its 95 % interval, and the one by the interval between calls."""
    return (
        Column(f"over_{other}", f"speedup vs {said}", "times"), Column(f"low_{other}", "95 % from", "times"),
        Column(f"high_{other}", "to", "times"), Column(f"interval_{other}", "by the interval", "times"),
    )  # fmt: skip


#: Columns of ``listed``'s frame.
COLUMNS = (
    KERNEL, PASS, WORKLOAD, Column("claim", "published claim"), Column("claim_source", "where"),
    Column("verdict", "by GPU time"), Column("verdict_interval", "by the interval"),
    Column("bound", "traffic bound", "times"), *_speedup("eager", "eager"), *_speedup("compile", "compile"),
    *_speedup("library", "library"), Column("library", "library"), Column("library_version", "its version"),
    Column("of_roof", "of roofline", "ratio"), Column("roof", "roof"), Column("started", "measured"),
    Column("device", "GPU"),
)  # fmt: skip
_VERDICTS = {"holds": "hold", "more": "measured better", "less": "measured worse", "not measured": "not measured"}
_NOT_RECORDED = "not recorded"
_BOUND = "Traffic bound: the bytes of the unfused operations over those of the fused kernel."
_NOTHING = "Nothing is recorded here: 'make record' on a machine with a GPU records the library."


def listed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of ``tilescope.models.claims.best`` as the table has them: what was measured earlier, or has no version, says so."""
    earlier = rows["changed"].map({True: " (an earlier version)", False: ""})
    versions = rows["library_version"].mask(rows["library"].ne("") & rows["library_version"].eq(""), _NOT_RECORDED)
    return rows.assign(started=rows["started"] + earlier, library_version=versions)


def sentence(rows: pd.DataFrame) -> Sentence:
    """Counts of the claims that hold, where they were measured, and how often the two clocks disagree."""
    judged = model.verdicts(rows)
    counts = judged.map(lambda words: _VERDICTS.get(words, "depend on the size")).value_counts()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    title = f"Of {len(judged)} claims: {verdicts}" if verdicts else "Claims"
    return Sentence(title, f"{_measured_on(rows)} {_BOUND} {_clocks(rows)}" if len(rows) else _NOTHING)


def reading(recordings: int) -> Sentence:
    """The sentence while the recordings are still being read."""
    return Sentence("Claims", f"Reading {recordings} recordings …")


def _measured_on(rows: pd.DataFrame) -> str:
    """The GPUs and the days."""
    gpus, days = (sorted(set(rows[name])) for name in ("device", "started"))
    return f"Measured on {', '.join(gpus)}, {' to '.join(dict.fromkeys((days[0], days[-1])))}."


def _clocks(rows: pd.DataFrame) -> str:
    """In how many comparisons the two clocks name another winner."""
    apart = sum(int(model.disagree(rows, other).sum()) for other in model.OVER)
    return f"In {apart} comparisons the faster one by GPU time is the slower one by the interval between calls, which includes the CPU's delays."
