"""A run in a notebook, which shows its summary and has the app's views as methods.

Imports neither torch, triton nor panel; a view imports the dashboard when it is called.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, Self

import pandas as pd

from tilescope.files.bounded_reading import printable
from tilescope.models import faults, headline, terminal, text_table
from tilescope.models.summary import of_run
from tilescope.notebook import opening
from tilescope.runs import store
from tilescope.runs.recordings import of_kernel
from tilescope.runs.store import LoadedRun
from tilescope.table.case import readable
from tilescope.table.run import Device, Failure

#: The entry-point group of functions that draw a view: they take the run, the view's name and a kernel.
VIEWS = "tilescope.views"
#: Rows of a summary in a notebook's output; the app shows them all.
_ROWS = 20
#: Columns of ``text_table`` that a summary has.
_COLUMNS = (
    "fault",
    "gpu_time",
    "floor_fraction",
    "bytes_ratio",
    "registers",
    "theoretical_occupancy",
    "relative_error",
)
_VIEWS = "Its views: .advice(), .source(), .roofline(), .traffic(), .occupancy(), .timeline(), .inside(), .autotune()."


class Profile(LoadedRun):
    """A ``LoadedRun`` that a notebook shows as a table, with the app's views as methods."""

    @classmethod
    def of(cls, loaded: LoadedRun) -> Self:
        return cls(loaded.run, loaded.table, loaded.folder)

    @property
    def frame(self) -> pd.DataFrame:
        """The tidy table: one row a value, with its unit and its source (``table.schema.COLUMNS``)."""
        return self.table

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures of cases and collectors."""
        return self.run.failures

    @property
    def summary(self) -> pd.DataFrame:
        """One row a case: ``tilescope.models.summary.summarise``."""
        return of_run(self, self.table)

    def advice(self, kernel: str = "") -> Any:
        """The app's view of the kernel's bottlenecks, with the potential speedup of each piece of advice."""
        return self._view("advice", kernel)

    def roofline(self, kernel: str = "") -> Any:
        """The app's roofline view of one kernel (the run's first). Raises ValueError for one the run does not have."""
        return self._view("roofline", kernel)

    def traffic(self, kernel: str = "") -> Any:
        """The app's view of the bytes moved by each launch."""
        return self._view("traffic", kernel)

    def autotune(self, kernel: str = "") -> Any:
        """The app's view of a sweep over configs."""
        return self._view("autotune", kernel)

    def occupancy(self, kernel: str = "") -> Any:
        """The app's view of the limits on resident blocks of an SM."""
        return self._view("occupancy", kernel)

    def timeline(self, kernel: str = "") -> Any:
        """The app's view of a call's launches in order, and the GPU's idle time between them."""
        return self._view("timeline", kernel)

    def inside(self, kernel: str = "") -> Any:
        """The app's view of what each warp of a program does and what it waits for."""
        return self._view("inside", kernel)

    def source(self, kernel: str = "") -> Any:
        """The app's view of the kernel's source with the cost of each line, beside its compiled code."""
        return self._view("source", kernel)

    def _view(self, name: str, kernel: str) -> Any:
        for entry in importlib.metadata.entry_points(group=VIEWS):
            return entry.load()(self, name, kernel)
        raise ValueError("no installed package draws views: pip install tilescope")

    def __repr__(self) -> str:
        notes = (f"note: {note}" for note in faults.notes(self.run))
        # A step's text begins with its own sentences.
        first = filter(None, ["" if self.of_step else headline.headline(self)])
        return terminal.plain("\n".join([*first, self._title(), *self._failed(), text_table.text(self), *notes]))

    def _repr_html_(self) -> str:
        """The summary as a table; a model's step as text. The run's texts are escaped."""
        if self.of_step:
            return f"<pre>{escape(repr(self))}</pre>"
        rows = self.summary
        shown = rows.head(_ROWS)
        headings, cells, _ = text_table.cells(text_table.marked(shown, self.run), columns=_COLUMNS)
        lines = [[*line, _why(row)] for line, row in zip(cells, shown.to_dict("records"), strict=True)]
        with pd.option_context("display.max_colwidth", None):
            table = pd.DataFrame(lines, columns=[*headings, "why"]).to_html(index=False, border=0)
        more = f"<p>{len(rows) - _ROWS} more cases: .summary has them all.</p>" if len(rows) > _ROWS else ""
        failed, notes = _list("Failed:", self._failed()), _list("Notes:", faults.notes(self.run))
        first = f"<p><b>{escape(headline.headline(self))}</b></p>"
        return printable(f"{first}<p>{escape(self._title())}</p>{failed}{table}{more}{notes}<p>{_VIEWS}</p>")

    def _title(self) -> str:
        device = self.run.device
        kind = "measured" if device.measured else "no such GPU took part"
        whole = "" if self.run.complete else ", interrupted"
        return f"{self.run.title} {device.where} ({kind}){whole}, run {self.run.id}"

    def _failed(self) -> list[str]:
        found = []
        for failure in faults.distinct(self.failures):
            said, fault = faults.message(failure).rstrip("."), faults.of_failure(failure)
            more = (
                text
                for text in (fault.explanation, fault.code, fault.remedy)
                if failure.case and text and text not in f"{said}."
            )
            found.append(" ".join([f"{readable(failure.case) or 'every case'}, {failure.collector}: {said}.", *more]))
        return found


def load(name: str = "latest") -> Profile:
    """Opens a run or a recording by its id, the start of it, its folder, or ``latest``. Raises StoreError if there is none."""
    return Profile.of(store.open_run(store.find(name)))


def recordings(kernel: str) -> Iterator[Profile]:
    """Opens the recordings of a kernel, each when it is asked for, in the order of ``runs.recordings.of_kernel``.

    ``next(recordings("softmax"))`` tells the most of softmax. Raises StoreError where there is none.
    """
    return (Profile.of(store.open_run(found.path)) for found in of_kernel(kernel))


def open_file(
    path: str | Path, runs: Path | None = None, notes: Sequence[str] = (), assumed: Device | None = None
) -> Profile:
    """Makes a run of another tool's file and keeps it in ``runs`` (``$TILESCOPE_RUNS``).

    The file is ncu's report or CSV, a trace of torch.profiler, Proton's profile, tritonparse's events, Inductor's autotuning
    results, or Helion's autotuning log. The run gets these ``notes``, too. The step of a trace is predicted for the
    ``assumed`` GPU. Raises StoreError for a file that is missing, damaged or in no known format.
    """
    return Profile.of(opening.open_file(path, runs, notes, assumed))


def _why(row: dict[Any, Any]) -> str:
    sources = ", ".join(dict.fromkeys(filter(None, (row["time_source"], row["bytes_source"]))))
    said = "; ".join(filter(None, (str(row["chosen"]).replace(",", ", "), f"from {sources}" if sources else "")))
    return " ".join(filter(None, (str(row["why"]), f"({said})" if said else ""))) or text_table.ABSENT


def _list(title: str, lines: Iterable[str]) -> str:
    points = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<p>{title}</p><ul>{points}</ul>" if points else ""
