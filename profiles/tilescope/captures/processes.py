"""Notes processes that ``multiprocessing`` starts without forking: a capture does not see their launches. POSIX only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing import popen_forkserver, popen_spawn_posix
from typing import Any
from unittest import mock


@contextlib.contextmanager
def started_anew() -> Iterator[list[str]]:
    """While active, notes such processes. Yields the list of their names so far."""
    names: list[str] = []

    def noting(kind: Any) -> Any:
        launch = kind._launch

        def launched(popen: Any, process: Any) -> Any:
            names.append(str(process.name))
            return launch(popen, process)

        return mock.patch.object(kind, "_launch", launched)

    with noting(popen_spawn_posix.Popen), noting(popen_forkserver.Popen):
        yield names
