"""The script that this server watches, shared by all sessions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path

import panel as pn
from tilescope.notebook.watching import Version, Watch

from tilescope_dashboard.data.launched_code import Lines, numbered
from tilescope_dashboard.session import access
from tilescope_dashboard.session.jobs import Watched

LOG = logging.getLogger(__name__)


class Watching(Watched):
    """One script at a time, as timings disturb each other. ``error`` says why it is watched no longer."""

    def __init__(self) -> None:
        super().__init__()
        self.script: Watch | None = None
        self.error = ""
        self._task: asyncio.Task[None] | None = None

    def start(self, script: Watch) -> None:
        """Watch this script in place of the former one, in the server's event loop."""
        self.stop()
        self.script, self.error = script, ""
        self._task = asyncio.get_running_loop().create_task(self._follow(script))

    def begin(self, text: str) -> None:
        """Watch a user's script. Raises ValueError, with a message for the person, for one that this server does not run."""
        self.start(Watch(access.user_script(text)))

    def stop(self) -> None:
        """Run the script no more. Its versions stay."""
        if self._task:
            self._task.cancel()
            self._task = None
            self._tell()

    async def end(self) -> None:
        """Stop, and wait until its processes and threads have ended: the server could not end before them."""
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task})

    @property
    def on(self) -> bool:
        """Whether saves are followed."""
        return self._task is not None and not self._task.done()

    async def _follow(self, script: Watch) -> None:
        try:
            async with contextlib.aclosing(script.follow()) as versions:
                async for _ in versions:
                    self._tell()
        except Exception as error:
            LOG.exception("watching %s", script.script)
            self.error = f"{type(error).__name__}: {error}"
            self._tell()


def texts(version: Version, files: Iterable[Path] = ()) -> dict[str, Lines]:
    """The lines of the version's files by name; while it runs, those of ``files`` as they are now."""
    found = version.texts or {file: file.read_text(errors="replace") for file in files if file.is_file()}
    return {file.name: numbered(text) for file, text in found.items()}


def shared() -> Watching:
    return pn.state.as_cached("tilescope-watching", Watching)
