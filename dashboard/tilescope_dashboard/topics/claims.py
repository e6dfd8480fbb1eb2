"""Claims: published speedups of fused kernels, against measured ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from tilescope.models import baseline
from tilescope.models import claims as model
from tilescope.table.units import several

from tilescope_dashboard.data.columns import KERNEL, PASS, WORKLOAD, Column
from tilescope_dashboard.topics.sentence import Sentence


def _speedup(other: str, said: str) -> tuple[Column, ...]:
    """Columns of a speedup by GPU time with its 95 % interval, and of one by the interval between calls."""
    return (
        Column(f"over_{other}", f"speedup vs {said}", "times"), Column(f"low_{other}", "95 % from", "times"),
        Column(f"high_{other}", "to", "times"), Column(f"interval_{other}", "by the interval", "times"),
    )  # fmt: skip


#: Columns of ``listed``'s frame.
COLUMNS = (
    KERNEL, PASS, WORKLOAD, Column("standing", "vs the fastest other"), Column("claim", "published claim"), Column("claim_source", "where"),
    Column("verdict", "by GPU time"), Column("verdict_interval", "by the interval"),
    Column("bound", "traffic ratio", "times"), *_speedup("eager", "unfused"), *_speedup("compile", "torch.compile"),
    *_speedup("library", "library"), Column("library", "library"), Column("library_version", "its version"),
    Column("of_roof", "of roofline", "ratio"), Column("roof", "roof"), Column("started", "measured"),
    Column("device", "GPU"),
)  # fmt: skip
#: Standings to filter by.
STANDINGS = ("faster", "on par", "slower")
_VERDICTS = {"holds": "hold", "more": "measured better", "less": "measured worse", "not measured": "not measured"}
_NOT_RECORDED = "not recorded"
_BOUND = "Traffic ratio: bytes of the unfused operations divided by bytes of the fused kernel."
_NOTHING = "There are no recordings here. 'make record' records the library on a machine with a GPU."


def named(rows: pd.DataFrame, declared: baseline.Declared) -> pd.DataFrame:
    """Rows of ``tilescope.models.claims.best`` with the libraries' names, as their kernels are ``declared``."""
    names = [
        baseline.called(impl, declared.get(kernel, {}))
        for kernel, impl in zip(rows["kernel"], rows["library"], strict=True)
    ]
    return rows.assign(library=names)


def listed(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows for the table, with remarks on changed code and unknown versions."""
    changed = np.where(rows["changed"], " (changed since it was recorded)", "")
    versions = rows["library_version"].mask(rows["library"].ne("") & rows["library_version"].eq(""), _NOT_RECORDED)
    return rows.assign(standing=model.standings(rows), started=rows["started"] + changed, library_version=versions)


def chosen(rows: pd.DataFrame, text: str, standing: str, families: Mapping[str, str]) -> pd.DataFrame:
    """Rows whose kernel or family contains the text, with that standing. Empty texts match all. ``families`` maps kernels."""
    wanted = " ".join(text.lower().split())
    if wanted:
        names = rows["kernel"].map(lambda kernel: f"{kernel}\n{families.get(kernel, '')}".lower())
        # A family's name has underscores where users write spaces.
        rows = rows[[wanted in name or wanted.replace(" ", "_") in name for name in names]]
    return rows[model.standings(rows) == standing] if standing else rows


def count(shown: pd.DataFrame, every: pd.DataFrame, text: str, standing: str) -> str:
    """How many rows are shown and how they stand; or what the filter asked for, if none are."""
    if shown.empty:
        asked = " and ".join(filter(None, [f"“{text.strip()}”" if text.strip() else "", standing]))
        return f"None of {len(every)} rows matches {asked}."
    counts = model.standings(shown).value_counts()
    said = {
        "faster": "faster than every other implementation we timed",
        "on par": "on par (within 5 %)",
        "slower": "slower",
    }
    parts = ", ".join(f"{counts[word]} {said[word]}" for word in STANDINGS if word in counts)
    return f"{len(shown)} of {len(every)} rows: {parts}."


def sentence(rows: pd.DataFrame) -> Sentence:
    """The sentence on the claims: how many hold, where they were measured, and how often the two clocks disagree."""
    judged = model.verdicts(rows)
    counts = judged.map(lambda words: _VERDICTS.get(words, "depend on the size")).value_counts()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    title = f"{several(len(judged), 'published claim')}: {verdicts}" if verdicts else "Claims"
    return Sentence(title, f"{_measured_on(rows)} {_BOUND} {_clocks(rows)}" if len(rows) else _NOTHING)


def reading(recordings: int) -> Sentence:
    """The headline while the recordings are being read."""
    return Sentence("Claims", f"Reading {recordings} recordings…")


def _measured_on(rows: pd.DataFrame) -> str:
    """GPUs and dates of the measurements."""
    gpus, days = (sorted(set(rows[name])) for name in ("device", "started"))
    return f"Measured on {', '.join(gpus)}, {' to '.join(dict.fromkeys((days[0], days[-1])))}."


def _clocks(rows: pd.DataFrame) -> str:
    """In how many comparisons GPU time and interval disagree about the winner."""
    apart = sum(int(model.disagree(rows, other).sum()) for other in model.OVER)
    return (
        f"GPU time and the interval between calls name different winners in {apart} comparisons: the interval includes the "
        "CPU's delays."
    )
