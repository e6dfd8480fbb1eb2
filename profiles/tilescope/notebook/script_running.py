"""Runs a person's script in this process as ``python script.py`` would, with what it launches captured."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import tokenize
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from unittest import mock

from tilescope.notebook.capturing import Capture


class _Left(BaseException):
    """``os._exit`` in a script: this process goes on, for what was captured until then is to be profiled."""


def run_script(path: str, arguments: Sequence[str], capture: Capture) -> str:
    """Runs the script to its end and returns how it ended where that was not well, in one line; else nothing.

    What it launched until then is in ``capture``. A failure's traceback goes to standard error, from the script's own lines on.
    Raises ValueError for what is no script that can be read.
    """
    file = Path(path)
    try:
        with tokenize.open(file) as stream:
            program = compile(stream.read(), str(file), "exec")
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be run: {said}") from error
    with _as_main(file, arguments) as module, capture, _no_way_out() as left:
        try:
            exec(program, vars(module))  # noqa: S102 (what the person asked for)
        except SystemExit as error:
            # What is no number goes to standard error, and the status is 1.
            status = error.code if isinstance(error.code, int) else f"1: {error.code}"
            return "" if error.code in (None, 0) else f"{path} ended with exit status {status}"
        except (_Left, KeyboardInterrupt):
            return f"{path} called os._exit({left[0]})" if left else f"{path} was interrupted"
        except Exception as error:
            _tell(error, str(file))
            return f"{path} ended with {type(error).__name__}: {error}".splitlines()[0]
    return ""


@contextlib.contextmanager
def _no_way_out() -> Iterator[list[int]]:
    """While active, ``os._exit`` ends the script and not this process. Yields the statuses that it was called with.

    In a process that was forked from this one it is what it always is.
    """
    statuses: list[int] = []
    own, leave = os.getpid(), os._exit

    def left(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        statuses.append(status)
        if threading.current_thread() is not threading.main_thread():
            _thread.interrupt_main()
            raise SystemExit  # of a thread: nobody is told of it
        raise _Left

    with mock.patch.object(os, "_exit", left):
        yield statuses


@contextlib.contextmanager
def _as_main(file: Path, arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """A module that stands as ``__main__``, with the script's arguments and its folder to import from."""
    module = types.ModuleType("__main__")
    module.__file__ = str(file)
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    sys.modules["__main__"], sys.argv = module, [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        yield module
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def _tell(error: Exception, file: str) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)
