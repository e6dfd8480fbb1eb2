"""Runs a user's script in this process as ``python script.py`` would, and captures its launches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import sys
import sysconfig
import threading
import tokenize
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import tilescope_kernels

from tilescope.captures import SPEC_FILE
from tilescope.jobs.job import Job
from tilescope.notebook.capturing import LIMIT, Capture


def captured(
    script: str,
    settings: Mapping[str, Any],
    *,
    arguments: Sequence[str] = (),
    target: str = "",
    collect: Sequence[str] = (),
    title: str = "",
    runs_dir: Path | None = None,
) -> tuple[Capture, Job, str]:
    """Runs the script; returns its captured launches, the job that profiles them, and how the script ended badly, or an empty text.

    A bad end after a launch that was not made, whose results the script lacked, is a note of the job. ``collect`` and ``settings``
    are those of ``Capture.job``. Raises ValueError for a script that cannot be run, and for one that launches nothing.
    """
    limit, not_finite = settings.get("interpreter_limit", LIMIT), bool(settings.get("not_finite"))
    capture = Capture(target, limit, not_finite=not_finite)
    ended = run_script(script, arguments, capture)
    if not capture.calls:
        why = f" ({'; '.join(capture.notes)})" if capture.notes else ""
        if ended:
            raise ValueError(f"{ended}, before it launched a Triton kernel{why}{capture.unassumed}")
        cure = f"to profile one that it declares, name it: {script}:SPEC"
        raise ValueError(f"{script} launched no Triton kernel{why}: {cure}{capture.unassumed}")
    job = capture.job(collect or ("auto",), title=title or script, runs_dir=runs_dir, settings=settings)
    if ended and capture.unmade:
        # The script went on with values that the launch would have written, so its end tells nothing.
        job = dataclasses.replace(job, notes=[*job.notes, f"{ended}, after {capture.unmade} was not made"])
        print(f"tilescope: {capture.unmade} was not made before this, so its results were missing", file=sys.stderr)
        ended = ""
    return capture, job, ended


class _Left(BaseException):
    """``os._exit`` in a script. This process continues, because the captured launches are still to be profiled."""


def run_script(
    path: str,
    arguments: Sequence[str],
    within: contextlib.AbstractContextManager[Any],
    then: Callable[[types.ModuleType], object] = lambda module: None,
) -> str:
    """Runs the script to its end ``within`` a context, and ``then`` with its module; returns one line on a bad end, or an empty text.

    A failure's traceback goes to standard error, from the script's own frames on.
    Raises ValueError for a file that cannot be read or compiled.
    """
    file = Path(path).absolute()  # as Python does: the script may change the folder
    try:
        with tokenize.open(file) as stream:
            program = compile(stream.read(), str(file), "exec")
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else placed(error)
        raise ValueError(f"{path} cannot be run: {said}") from error
    with _as_main(file, arguments) as module, within, _no_way_out() as left:
        try:
            exec(program, vars(module))  # noqa: S102 (what the person asked for)
            then(module)
        except SystemExit as error:
            if error.code in (None, 0):
                then(module)
                return ""
            # Python prints other values than numbers, and exits with status 1.
            status = error.code if isinstance(error.code, int) else f"1: {error.code}"
            return f"{file.name} ended with exit status {status}"
        except (_Left, KeyboardInterrupt):
            return f"{file.name} called os._exit({left[0]})" if left else f"{file.name} was interrupted"
        except Exception as error:
            _tell(error, str(file))
            return f"{file.name} ended with {type(error).__name__}: {placed(error)}"
    return ""


def placed(error: Exception) -> str:
    """The first line of the error's message, or the code that raised it without one, with the line of the user's code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    message = str(error) or next((frame.line or "" for frame in frames[-1:]), "")
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        message, places = error.msg, [(error.filename, error.lineno)]
    where = [f"line {line} of {Path(file).name}" for file, line in places[-1:]]
    return ", ".join(filter(None, [*message.splitlines()[:1], *where]))


def is_own(file: str) -> bool:
    """Whether a file is the user's: neither of an installed package, nor of Python, nor of Tilescope."""
    path = Path(file).resolve()
    installed = {"site-packages", "dist-packages", SPEC_FILE} & {*path.parts}
    return not installed and _others().isdisjoint((path, *path.parents)) and path.is_file()


@functools.cache
def _others() -> frozenset[Path]:
    """Python's library, Tilescope, and the launchers' own file."""
    internal = Path(tilescope_kernels.__file__).resolve().with_name("dispatch.py")
    return frozenset((Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[1], internal))


@contextlib.contextmanager
def _no_way_out() -> Iterator[list[int]]:
    """Makes ``os._exit`` end the script and not this process. Yields the list of statuses that it was called with.

    Processes forked from this one still exit.
    """
    statuses: list[int] = []
    own, leave = os.getpid(), os._exit

    def left(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        statuses.append(status)
        if threading.current_thread() is not threading.main_thread():
            # A signal wakes the main thread where it waits; ``_thread.interrupt_main`` would not.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            raise SystemExit  # ends a thread silently
        raise _Left

    before = signal.getsignal(signal.SIGINT)
    # A process in the background may ignore SIGINT, which has to wake the main thread.
    if ignored := before == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with mock.patch.object(os, "_exit", left):
            yield statuses
    finally:
        if ignored:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _as_main(file: Path, arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """Installs a module as ``__main__``, with the script's arguments and its folder on ``sys.path``; yields it.

    Afterwards the current folder and the filters of warnings are as before, and so are variables of the environment that the script
    removed.
    """
    module = types.ModuleType("__main__")
    module.__file__ = str(file)
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    folder, environment = Path.cwd(), dict(os.environ)
    sys.modules["__main__"], sys.argv = module, [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with warnings.catch_warnings():
            yield module
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before
        os.chdir(folder)
        os.environ.update(environment | os.environ)


def _tell(error: Exception, file: str) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)
