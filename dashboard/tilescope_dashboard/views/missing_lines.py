"""The message where no recording has source lines of a kernel: the commands that collect them."""

from __future__ import annotations

from html import escape

from tilescope_dashboard.session.state import State

#: Collectors of source lines without a GPU, and the one that adds stalls.
_ANYWHERE, _ON_GPU = "compiler,interpreter", "compiler,interpreter,ncu_source"


def otherwise(state: State) -> str:
    """How to collect source lines of the chosen kernel, as HTML."""
    anywhere, on_gpu = (
        escape(state.command("profile", "--collect", collectors)) for collectors in (_ANYWHERE, _ON_GPU)
    )
    return (
        f"<p>They come with the compiler and the interpreter, which need no GPU: <code>{anywhere}</code>. On a GPU "
        f"ncu_source adds the stalls of each line: <code>{on_gpu}</code>.</p>"
    )
