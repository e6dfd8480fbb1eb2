"""``%%tilescope``: runs a notebook's cell and profiles what it launches. ``%load_ext tilescope`` makes it known."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from tilescope.jobs import resident
from tilescope.notebook.capturing import LIMIT, Capture
from tilescope.notebook.opened_run import Profile


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(
            f"%%tilescope: {message}; it takes --target sm_90, --collect NAME,…, --limit SECONDS, --title TEXT"
        )


def load_ipython_extension(shell: Any) -> None:
    """Makes the magic known to IPython, and starts what the first cell would wait for."""
    resident.prepare(gpu=True)

    def tilescope(line: str, cell: str) -> Profile | None:
        """Runs the cell and profiles the Triton kernels that it launches, each as it was launched."""
        from IPython.core.error import UsageError  # noqa: PLC0415 (only IPython calls this)

        try:
            return run_cell(shell, line, cell)
        except ValueError as error:  # ours are told in one line; IPython tells a usage error without its traceback
            raise UsageError(str(error)) from error

    shell.register_magic_function(tilescope, magic_kind="cell")


def run_cell(shell: Any, line: str, cell: str) -> Profile | None:
    """The finished run; None where the cell failed, which IPython has told already, before it launched anything."""
    options = _Options(prog="%%tilescope", add_help=False)
    options.add_argument("--target", default="")
    options.add_argument("--collect", default="auto")
    options.add_argument("--limit", type=float, default=LIMIT)
    options.add_argument("--title", default="")
    chosen = options.parse_args(shlex.split(line))
    with Capture(chosen.target, chosen.limit) as capture:
        done = shell.run_cell(cell)
    if not done.success:
        if not capture.records:
            return None
        print("%%tilescope: the cell failed: what it launched until then is profiled")
    return capture.profile([name.strip() for name in chosen.collect.split(",")], title=chosen.title)
