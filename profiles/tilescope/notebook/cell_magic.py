"""``%%tilescope`` profiles the launches of a notebook's cell, ``%tilescope watch`` those of a script at every save.

``%load_ext tilescope`` registers both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
from collections.abc import Iterator
from typing import Any, NoReturn

from tilescope.jobs import warm
from tilescope.notebook import modelling, watch_text
from tilescope.notebook.capturing import LIMIT, Capture
from tilescope.notebook.opened_run import Profile
from tilescope.notebook.watching import Watch
from tilescope.runs import store


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(
            f"%%tilescope: {message}; it takes --target sm_90, --collect NAME,…, --limit SECONDS, --title TEXT"
        )


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic with IPython, and starts the fork server for the first cell."""
    warm.prepare()

    @contextlib.contextmanager
    def refused() -> Iterator[None]:
        from IPython.core.error import UsageError  # noqa: PLC0415 (only IPython calls this)

        try:
            yield
        except ValueError as error:  # IPython shows a usage error in one line, without its traceback
            raise UsageError(str(error)) from error

    @refused()
    def tilescope(line: str, cell: str) -> Profile | None:
        """Runs the cell and profiles the Triton kernels that it launches, each as it was launched."""
        return run_cell(shell, line, cell)

    @refused()
    def watch(line: str) -> None:
        """``%tilescope watch SCRIPT [ARGUMENTS]`` profiles a script at every save; ``%tilescope stop`` ends that."""
        run_line(line)

    shell.register_magic_function(tilescope, magic_kind="cell")
    shell.register_magic_function(watch, magic_kind="line", magic_name="tilescope")


def run_line(line: str) -> None:
    """Follows a script below the cell, beside the event loop of a notebook; without one it follows until it is interrupted."""
    action, *words = shlex.split(line) or [""]
    if (action, bool(words)) not in (("watch", True), ("stop", False)):
        raise ValueError("%tilescope takes 'watch SCRIPT [ARGUMENTS]' or 'stop'; %%tilescope profiles a cell")
    for task in _following:
        task.cancel()
    _following.clear()
    if words:
        watch = Watch(words[0], words[1:])
        try:
            _following.append(asyncio.get_running_loop().create_task(_show(watch)))
        except RuntimeError:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(watch_text.follow(watch))


#: What follows a script, of which there is one at a time.
_following: list[asyncio.Task[None]] = []


async def _show(watch: Watch) -> None:
    from IPython.display import display  # noqa: PLC0415 (only IPython calls this)

    shown: Any = None
    async for version in watch.follow():
        now = watch_text.mime(watch, version)
        if shown is None:
            shown = display(now, raw=True, display_id=True)
        else:
            shown.update(now, raw=True)


def run_cell(shell: Any, line: str, cell: str) -> Profile | None:
    """The finished run; None where the cell failed before it launched anything, which IPython has reported.

    After ``model`` the cell is one step of a model, and is run about 30 times.
    """
    if line.split() == ["model"]:
        program = compile(shell.transform_cell(cell), "<cell>", "exec")

        def step() -> None:
            exec(program, shell.user_ns)  # noqa: S102 (what the person asked for)

        return modelling.profile_model(step)
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
