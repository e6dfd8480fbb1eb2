"""Home: a row for each kernel, with how it compares and its published claim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd
from tilescope.models import baseline
from tilescope.models import claims as model
from tilescope.runs import store
from tilescope.table.units import several

from tilescope_dashboard.data.best_run import best_run
from tilescope_dashboard.data.columns import KERNEL, WORKLOAD, Column
from tilescope_dashboard.topics import claims
from tilescope_dashboard.topics.overview import Stat
from tilescope_dashboard.topics.sentence import Sentence

#: Columns of ``kernels``' frame, numbers first, as a phone shows three.
COLUMNS = (
    KERNEL, Column("state", "state"), Column("of_roof", "of roofline", "ratio"), Column("roof", "roof"), Column("quickest", "vs fastest other", "speedup"),
    Column("other", "fastest other"), Column("over_eager", "vs unfused", "speedup"), Column("family", "family"),
    Column("claim", "published claim"), Column("judged", "measured"), WORKLOAD, Column("origin", "from"),
)  # fmt: skip
#: Share of the roofline above which little is left to win.
NEAR = 0.9
#: Family of kernels outside the library.
OWN = "your own"
#: Origin of a kernel while the runs that measured it are being read.
READING = "reading its runs"
#: How a measurement compares with the claim, by verdict.
_AGAINST = (("more", "better"), ("less", "worse"))


def kernels(
    rows: pd.DataFrame, runs: Iterable[store.Summary], families: Mapping[str, str],
    own: pd.DataFrame | None = None, unread: Collection[str] = (), *, declared: baseline.Declared | None = None,
    failed: Mapping[str, tuple[str, str]] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A row a kernel, the user's own first and of these the newest, with its largest forward size. Columns are those of ``rows`` and of ``COLUMNS``.

    ``rows`` are ``tilescope.models.claims.best``'s; those of the user's runs, ``own``, are preferred. ``families`` and ``declared`` are by kernel.
    A kernel without measurements has a row without numbers, and so has a kernel that ``failed``: its run, and what failed where.
    Runs of the kernels ``unread`` are not in ``rows`` yet.
    """
    every = list(runs)
    recorded = {run.id for run in every if run.recorded}
    known = [own, rows] if own is not None and len(own) else [rows]
    named = dict.fromkeys([*families, *(name for run in every if not run.error for name in run.kernels)])
    declared = declared or {}
    judged = _judged(rows, declared)
    # Until the catalog is known, no kernel can be called foreign.
    other_family = OWN if families else ""
    found = []
    for name in named:
        of_kernel = next((one for one in (frame[frame["kernel"] == name] for frame in known) if len(one)), None)
        head: dict[str, Any] = {
            "kernel": name,
            "family": families.get(name, "") or other_family,
            **judged.get(name, {"judged": ""}),
        }
        fault_in, fault = (failed or {}).get(name, ("", ""))
        if fault:
            found.append({**head, "state": fault, "origin": "", "run": fault_in})
            continue
        if of_kernel is None:
            run = best_run(every, name)
            origin = READING if name in unread else _predicted(run) if run else "not profiled yet"
            state = "" if origin == READING else origin
            found.append({**head, "state": state, "origin": origin, "run": run.id if run else ""})
            continue
        row = _largest(of_kernel)
        others = {other: row[f"over_{other}"] for other in model.OVER if row[f"over_{other}"] > 0}
        other = min(others, key=lambda name: others[name], default="")
        whose = "" if row["run"] in recorded else "yours: "
        changed = " (changed since it was recorded)" if row["changed"] else ""
        found.append(
            {
                **row, **head, "quickest": others.get(other), "other": baseline.called(row["library"] if other == "library" else other, declared.get(name, {})),
                "origin": f"{whose}{row['device'].removeprefix('NVIDIA ')}, {row['started']}{changed}",
            }
        )  # fmt: skip
    order = list(dict.fromkeys([other_family, *families.values()]))
    shown = pd.DataFrame(found, columns=list(dict.fromkeys([*rows.columns, *(column.name for column in COLUMNS)])))
    shown["roof"] = shown["roof"].astype("str").str.removeprefix("measured ").replace("nan", "")
    shown["state"] = shown["state"].astype("str").replace("nan", "")
    for name in ("quickest", *(f"over_{other}" for other in model.OVER)):
        shown[name] = pd.to_numeric(shown[name])
    return shown.sort_values("family", key=lambda column: column.map(order.index), kind="stable").reset_index(drop=True)


def _largest(rows: pd.DataFrame) -> dict[str, Any]:
    """The row of the largest forward size, else of another pass's largest. Rows come smallest first."""
    forward = rows[rows["pass"].eq("forward")]
    last = (forward if len(forward) else rows).iloc[-1]
    return {str(name): value for name, value in last.items()}


def _judged(rows: pd.DataFrame, declared: baseline.Declared) -> dict[str, dict[str, str]]:
    """Published claim and verdict over all sizes, by kernel."""
    verdicts = model.verdicts(rows)
    said: dict[str, dict[str, str]] = {}
    claimed = rows[rows["claim"] != ""].drop_duplicates(["kernel", "pass"])
    for row in claimed.to_dict("records"):
        words = verdicts.get((row["kernel"], row["pass"]), "")
        over = baseline.called(row["claim_over"], declared.get(row["kernel"], {}))
        for word, meaning in _AGAINST:
            words = words.replace(word, meaning)
        said.setdefault(row["kernel"], {"claim": f"{row['claim']} vs {over}", "judged": words})
    return said


def newest(runs: Iterable[store.Summary], library: Collection[str]) -> dict[str, store.Summary]:
    """The newest run of each of the user's own kernels. Runs come newest first."""
    own = [(name, run) for run in runs if not run.error and not run.recorded for name in run.kernels]
    return {name: run for name, run in reversed(own) if name not in library}


def _predicted(run: store.Summary) -> str:
    what = "nothing timed" if run.measured else "predicted"
    return f"{what}: {run.device.removeprefix('NVIDIA ')}, {run.started[:10]}"


def chosen(rows: pd.DataFrame, text: str, family: str, standing: str) -> pd.DataFrame:
    """Rows of ``kernels`` with that family and standing whose kernel or family contains the text. Empty texts match all."""
    of_family = rows[rows["family"] == family] if family else rows
    return claims.chosen(of_family, text, standing, dict(zip(rows["kernel"], rows["family"], strict=True)))


def sentence(rows: pd.DataFrame) -> Sentence:
    """How many kernels there are, and how they compare with the fastest other implementation."""
    if rows["origin"].eq(READING).any():
        return Sentence(several(len(rows), "kernel"), "Reading the runs that measured them.")
    counts = model.standings(rows).value_counts()
    said = {"faster": "faster than every other implementation we timed", "on par": "within 5 %", "slower": "slower"}
    parts = [f"{counts[word]} {said[word]}" for word in claims.STANDINGS if word in counts]
    if parts:
        verb = "is" if counts.get("faster", counts.iloc[0]) == 1 else "are"
        parts[0] = parts[0].replace(" ", f" {verb} ", 1)
        parts += [f"{counts['']} not compared"] if counts.get("", 0) else []
    kernels = several(len(rows), "kernel")
    title = f"Of {kernels}, {', '.join(parts)}" if parts else kernels
    text = "Click a kernel to open its page."
    if rows["quickest"].notna().any():
        text = f"Speedups are at the largest forward size, by GPU time. {text}"
    return Sentence(title, text if len(rows) else "No kernel is known here yet.")


def stats(rows: pd.DataFrame, verdicts: pd.Series) -> list[Stat]:
    """The large numbers above the table. ``verdicts`` are those of ``tilescope.models.claims.verdicts``."""
    measured = rows["of_roof"].notna()
    judged = verdicts[verdicts != "not measured"]
    met = judged.isin(["holds", "more"]).sum()
    found = []
    if measured.any():
        near = (rows["of_roof"] >= NEAR).sum()
        found.append(Stat("at 90 % of roofline or more", str(near), f"of {measured.sum()} measured"))
    if rows["quickest"].notna().any():
        ahead = rows["quickest"].median()
        found.append(Stat("median speedup", f"{ahead:.2f}×", "vs the fastest other implementation"))
    if len(judged):
        found.append(Stat("published claims that are met", f"{met} of {len(judged)}", "at every size, by GPU time"))
    return found


def count(shown: pd.DataFrame, every: pd.DataFrame, asked: Iterable[str]) -> str:
    """How many rows are shown; what the filter ``asked`` for, if none are; empty if all are."""
    if len(shown) == len(every):
        return ""
    if shown.empty:
        return f"None of {several(len(every), 'kernel')} matches {' and '.join(filter(None, asked))}."
    return f"{len(shown)} of {several(len(every), 'kernel')}."
