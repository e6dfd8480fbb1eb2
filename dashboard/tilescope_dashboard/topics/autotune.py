"""What a sweep over configs says: which is the best, and how many failed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data import sweeps
from tilescope_dashboard.data.units import write

#: What the view is for, where it has nothing to show.
ABOUT = html_text.heading("Autotune", "Every config of a kernel, measured or compiled.")
#: The label in the profile form.
_TICK = "every config (autotune)"


def headline(rows: pd.DataFrame, shown: pd.DataFrame, label: str, unit: str) -> str:
    """The best of ``sweeps.ranked``'s rows by its ``label``, of which ``sweeps.over`` shows ``shown``."""
    best = sweeps.best(rows)
    # One collector may fail where another has the value.
    failed = int((rows["reason"].ne("") & rows["value"].isna()).sum())
    said = [f"{len(rows)} configs" + (f", {failed} failed (hatched: hover to see why)." if failed else ".")]
    if len(shown) < len(rows):
        said.append("Each cell is the best over the parameters not held.")
    if best is None:
        return html_text.heading(f"No config has a known {label}", " ".join(said))
    if sweeps.alike(rows):
        return html_text.heading(
            f"All alike: {write(best['value'], unit)} {label}", f"{said[0]} It tells none of them apart."
        )
    if sweeps.close(shown["value"]):
        apart = write(sweeps.spread(shown["value"]), "ratio", 2)
        said.append(f"The cells lie within {apart}: what they differ in hardly matters here.")
    said.insert(0, f"{best['config'].replace(',', ', ')}.")
    return html_text.heading(f"Best {label}: {write(best['value'], unit)}", " ".join(said))


def nothing(kernel: str, implementations: Mapping[str, Mapping[str, Any]], command: str, form: bool) -> str:
    """How to have configs in the view: by the profile ``form``, where there is one, or a command. Escaped.

    ``implementations`` are as the kernel declares them, empty where that is not known.
    """
    name = escape(kernel or "a kernel")
    if implementations and not any(known.get("configs") for known in implementations.values()):
        return f"<p>{name} declares none.</p>"
    by_form = f"tick '{_TICK}' in the form and profile it, or " if form else ""
    return f"<p>To have those of {name}, {by_form}run <code>{escape(command)}</code>.</p>"


def under_way(kernel: str) -> str:
    """That they are being made; escaped."""
    return f"<p>Those of {escape(kernel)} are being profiled: the progress stands above the views.</p>"
