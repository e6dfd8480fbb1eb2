"""What is said where no recording has lines of a kernel: the commands that make them."""

from __future__ import annotations

from html import escape

from tilescope_dashboard.session.state import State

#: What knows lines without a GPU, and what adds stalls to it.
_ANYWHERE, _ON_GPU = "compiler,interpreter", "compiler,interpreter,ncu_source"


def otherwise(state: State) -> str:
    """How to have lines of the state's kernel; escaped."""
    anywhere, on_gpu = (
        escape(state.command("profile", "--collect", collectors)) for collectors in (_ANYWHERE, _ON_GPU)
    )
    return (
        f"<p>They come with the compiler and the interpreter, which need no GPU: <code>{anywhere}</code>. On a GPU "
        f"ncu_source adds the stalls of each line: <code>{on_gpu}</code>.</p>"
    )
