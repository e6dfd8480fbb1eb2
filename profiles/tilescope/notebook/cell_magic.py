"""``%%tilescope``: runs a notebook's cell and profiles its launches. ``%load_ext tilescope`` registers it."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from tilescope.jobs import warm
from tilescope.notebook.capturing import LIMIT, Capture
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(
            f"%%tilescope: {message}; it takes --target sm_90, --collect NAME,…, --limit SECONDS, --title TEXT"
        )


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic with IPython, and starts the fork server for the first cell."""
    warm.prepare()

    def tilescope(line: str, cell: str) -> Profile | None:
        """Runs the cell and profiles the Triton kernels that it launches, each as it was launched."""
        from IPython.core.error import UsageError  # noqa: PLC0415 (only IPython calls this)

        try:
            return run_cell(shell, line, cell)
        except ValueError as error:  # IPython shows a usage error in one line, without its traceback
            raise UsageError(str(error)) from error

    shell.register_magic_function(tilescope, magic_kind="cell")


def run_cell(shell: Any, line: str, cell: str) -> Profile | None:
    """The finished run; None where the cell failed before it launched anything, which IPython has reported."""
    options = _Options(prog="%%tilescope", add_help=False)
    options.add_argument("--target", default="")
    options.add_argument("--collect", default="auto")
    options.add_argument("--limit", type=float, default=LIMIT)
    options.add_argument("--title", default="")
    chosen = options.parse_args(shlex.split(line))
    store.check_writable(store.runs_dir())
    with Capture(chosen.target, chosen.limit) as capture:
        done = shell.run_cell(cell)
    if not done.success:
        if not capture.records:
            return None
        print("%%tilescope: the cell failed: what it launched until then is profiled")
    return capture.profile([name.strip() for name in chosen.collect.split(",")], title=chosen.title)
