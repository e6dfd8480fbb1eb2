"""Processes that a script leaves behind, and those that ``multiprocessing`` starts without forking, whose launches a capture misses. POSIX only."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import popen_forkserver, popen_spawn_posix
from pathlib import Path
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


def end_within(seconds: float, compilers: float = 5.0) -> None:
    """Ends this process at the latest so many seconds after its main thread, whatever threads and children of a script still do.

    PyTorch waits 5 minutes for processes of ``torch.compile`` that hang: those get ``compilers`` seconds, now.
    """
    _end_compilers(compilers)

    def end() -> None:
        threading.main_thread().join()
        time.sleep(seconds)
        threads = [one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
        names = ", ".join([*(one.name for one in multiprocessing.active_children()), *threads])
        with contextlib.suppress(OSError):
            print(f"tilescope: ended without waiting for {names or 'what the script left behind'}", file=sys.stderr)
            sys.stderr.flush()
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(0)

    threading.Thread(target=end, daemon=True, name="tilescope end").start()


def _end_compilers(seconds: float) -> None:
    inductor = sys.modules.get("torch._inductor.async_compile")
    if inductor is None:
        return
    found = _compilers()
    ending = threading.Thread(target=inductor.shutdown_compile_workers, daemon=True)
    ending.start()
    ending.join(seconds)
    for process in _compilers() & found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    ending.join(seconds)


def _compilers() -> set[int]:
    """The processes in which this one's ``torch.compile`` compiles, also those whose parent has ended."""
    parent, found = f"--parent={os.getpid()}".encode(), set[int]()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            given = file.read_bytes().split(b"\0")
            if parent in given and any(b"compile_worker" in one for one in given[:2]):
                found.add(int(file.parent.name))
    return found
