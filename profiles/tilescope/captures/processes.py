"""Which processes multiprocessing starts anew while launches are captured. What a fork knows of the capture, they do not. POSIX only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from multiprocessing import popen_forkserver, popen_spawn_posix
from typing import Any
from unittest import mock


@contextlib.contextmanager
def started_anew() -> Iterator[list[str]]:
    """Yields the names of those that are started while it is active, as they are."""
    names: list[str] = []

    def noting(kind: Any) -> Any:
        launch = kind._launch

        def launched(popen: Any, process: Any) -> Any:
            names.append(str(process.name))
            return launch(popen, process)

        return mock.patch.object(kind, "_launch", launched)

    with noting(popen_spawn_posix.Popen), noting(popen_forkserver.Popen):
        yield names
