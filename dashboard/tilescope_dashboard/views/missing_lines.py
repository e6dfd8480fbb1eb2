"""Lines of a kernel that the open run lacks: the run that has them, or the commands that make one."""

from __future__ import annotations

from html import escape

import pandas as pd
from tilescope.runs import store
from tilescope.table.sources import MEASURED

from tilescope_dashboard.data.recordings import with_lines, with_measured
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.missing import Missing

#: What knows lines without a GPU, and what adds stalls to it.
_ANYWHERE, _ON_GPU = "compiler,interpreter", "compiler,interpreter,ncu_source"


class MissingLines(Missing):
    """Offers the run with lines, else the commands; where all lines are predicted, the run with measured ones."""

    def show(self, known: pd.DataFrame) -> None:
        """Say where to find what is missing beside the ``known`` lines (``tilescope.table.line_values``) of the state's kernel."""
        if known.empty:
            self.seek(with_lines, lines_from, otherwise=_made(self.state))
        elif not known["source"].isin(MEASURED).any():
            self.seek(with_measured, lines_from, what="lines that were measured, such as where warps stall")
        else:
            self.say("")


def lines_from(run: store.LoadedRun, kernel: str) -> str:
    """Collectors that know the kernel's lines, in words."""
    return f"lines from {', '.join(dict.fromkeys(run.lines.loc[run.lines['kernel'] == kernel, 'source']))}"


def _made(state: State) -> str:
    anywhere, on_gpu = (
        escape(state.command("profile", "--collect", collectors)) for collectors in (_ANYWHERE, _ON_GPU)
    )
    return (
        f"<p>They come with the compiler and the interpreter, which need no GPU: <code>{anywhere}</code>. On a GPU "
        f"ncu_source adds the stalls of each line: <code>{on_gpu}</code>.</p>"
    )
