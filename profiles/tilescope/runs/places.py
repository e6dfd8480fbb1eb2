"""Where runs are stored, and whether they can be. Needs no pandas, so that a command's worker starts before its imports."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tilescope.files import bounded_reading


class StoreError(ValueError):
    """A run that cannot be read or written. The message is one line and says what to do."""

    def __init__(self, message: object) -> None:
        super().__init__(bounded_reading.one_line(message, 2000))


def runs_dir() -> Path:
    """The folder of runs: ``$TILESCOPE_RUNS``, else ``$XDG_DATA_HOME/tilescope/runs``, else below ``~/.local/share``."""
    if chosen := os.environ.get("TILESCOPE_RUNS"):
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "tilescope" / "runs"


def check_writable(folder: Path) -> None:
    """Raises StoreError unless runs can be written into ``folder``, which is created if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"cannot write runs to {folder} ({reason}): set TILESCOPE_RUNS to a folder you may write to"
        ) from error
