"""Links that save Chrome traces of what the timeline shows."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence

import pandas as pd
import panel as pn
from tilescope.files import bounded_reading
from tilescope.models import chrome_trace
from tilescope.runs import artefacts
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.download import Download, link
from tilescope_dashboard.data.exports import stem

_OPEN = "Open the file in Perfetto (ui.perfetto.dev) or chrome://tracing."
_NONE = (
    "This run keeps no trace by torch.profiler: published runs leave out such large files. Profile the kernel to get one, with the "
    "CPU's operators."
)


def links(
    loaded: LoadedRun | None, launches: pd.DataFrame, origin: Sequence[str], called: Callable[[str], str]
) -> list[pn.viewable.Viewable]:
    """A link for a trace of ``launches`` (``tilescope.models.timeline``'s rows), and one for each trace that the run kept.

    ``origin`` is what the files are named after (``State.origin``), ``called`` gives an implementation's name.
    """
    if launches.empty or loaded is None:
        return []
    found = [_link("Chrome trace of what is shown", "timeline", origin, lambda: chrome_trace.made(launches))]
    for row in launches.drop_duplicates("impl").to_dict("records"):
        case = Case(row["kernel"], row["impl"], row["pass"], row["workload"], row["config"])
        path = chrome_trace.kept(loaded, case)
        if path is not None:
            what = f"{row['impl']}-{row['pass']}-{row['workload']}"
            read = functools.partial(bounded_reading.content, path, loaded.folder)
            found.append(_link(f"torch.profiler's trace of {called(row['impl'])}", what, origin, read))
    note = _OPEN if len(found) > 1 else f"{_OPEN} {_NONE}"
    said = [pressed.said for pressed in found]
    return [pn.FlexBox(*found, gap="4px", margin=(0, 2)), *said, html_text.pane(f'<p class="small quiet">{note}</p>')]


def kept(loaded: LoadedRun | None, collector: str, case: Case, origin: Sequence[str]) -> list[pn.viewable.Viewable]:
    """A link for the trace that a collector kept of the case; nothing where the run lacks it."""
    path = artefacts.find(loaded.folder, collector, case) if loaded else None
    if loaded is None or path is None:
        return []
    read = functools.partial(bounded_reading.content, path, loaded.folder)
    found = _link(
        "Chrome trace of the lanes", f"{collector}-{case.impl}-{case.direction}-{case.workload}", origin, read
    )
    return [found, found.said, html_text.pane(f'<p class="small quiet">{_OPEN}</p>')]


def _link(label: str, what: str, origin: Sequence[str], read: Callable[[], bytes]) -> Download:
    name = f"{stem(what, *origin)}{chrome_trace.SUFFIX}"
    return link(label, lambda: io.BytesIO(read()), lambda: name, f"Save {name}")
