"""Starts a worker process, reads its events, stops it, and reports how it ended.

A bounded part of its output is kept. At its end all processes that it started are killed. Its temporary folder is in use while a
process holds the lock on the folder's file ``lock``, which the system releases at the process's end; ``sweep`` removes folders that
killed processes left. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tilescope.jobs import warm, worker_output
from tilescope.jobs.worker_output import BoundedLog, EventLines

#: Changes a worker's command line; the wrapper may write into the folder.
Wrap = Callable[[list[str], Path], list[str]]
#: Least seconds that a worker has for its imports before its first case.
STARTUP = 120.0
#: Seconds that a worker has to end after SIGTERM before it is killed.
GRACE = 3.0
#: Bytes read at a time, and the most reads after the process has ended, because others may still write.
_PIECE, _LAST = 64 << 10, 64
#: The most looks at a process without an environment, and the seconds in between and between two looks at a cold process.
_LOOKS, _PAUSE = 5, 0.01

#: The start of these folders' names, which no person's folder is likely to have.
PREFIX = "tilescope-scratch-"
#: The file with the id of a process whose folder another command may take over.
PID = "pid"
#: Age in seconds from which a folder without a lock file counts as abandoned: its creator locks it at once.
_UNLOCKED = 3600.0
#: The same for the folder of a run.
_BEGUN = 60.0


class StartError(RuntimeError):
    """A worker that cannot be started. The message has the reason; ``lacking`` names the machine's lacking resource, if any."""

    def __init__(self, error: Exception) -> None:
        what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        super().__init__(f"the worker cannot be started: {what}")
        self.lacking = worker_output.lacking(error)


class Scratch:
    """A folder for temporary files, or one that another process has made; ``close`` removes it. Raises OSError where none can be made."""

    def __init__(self, made: Path | None = None) -> None:
        self.path = made or Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            self.lock = (self.path / warm.LOCK).open("w")
            fcntl.flock(self.lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        """Removes the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exception: object) -> None:
        self.close()


class Place:
    """A worker's temporary folder, and the two pipes for its events and its output. Raises OSError.

    ``job`` is the file of the job's description, ``wrapped`` the folder for the wrapper's output. An ``attached`` worker has this
    process's standard input and output, and its pipe stays empty. ``made`` is the folder of a worker that another process started.
    """

    def __init__(self, attached: bool = False, made: Path | None = None) -> None:
        self.events = self.output = -1
        self._attached = attached
        self._scratch = Scratch(made)
        folder = self._scratch.path
        self.mark, self.job, self.wrapped = folder.name, folder / "job.json", folder / "wrapped"
        try:
            if made is None:
                self.wrapped.mkdir()
                (folder / "tmp").mkdir()
                # A pipe needs no disk and slows a writer that is too fast. It has a name because a wrapper may close inherited
                # descriptors, and because another process may read it later.
                os.mkfifo(folder / "events")
                os.mkfifo(folder / "output")
            # Also open for writing, so that reading never sees an end of file.
            self.events = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
            self.output = os.open(folder / "output", os.O_RDWR | os.O_NONBLOCK)
            for pipe in (self.events, self.output):
                with contextlib.suppress(OSError, AttributeError):  # where the system allows it, to read less often
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        except BaseException:
            self.close()
            raise

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """The worker's whole environment; ``more`` are its collector's variables."""
        return warm.environment({**more, warm.MARK: self.mark})

    def describe(self, job: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        """Writes the job's description atomically, because a standby worker may be waiting for the file."""
        folder, written = self.job.parent, self.job.with_suffix(".part")
        pipes = {"events": str(folder / "events"), "temporary": str(folder / "tmp"), "supervisor": os.getpid()}
        written.write_text(json.dumps({**job, **pipes, "environment": dict(variables), "directory": str(Path.cwd())}))
        written.rename(self.job)

    async def fork(self, variables: Mapping[str, str]) -> warm.Forked | None:
        """A worker of the fork server; None where it must be started cold."""
        with self._standard() as files:
            return await warm.fork(self.job, variables, files)

    def start(self, wrap: Wrap | None, variables: Mapping[str, str], *more: str) -> StartedProcess:
        """A worker in a process group of its own, with further arguments ``more``. One that stands by holds the folder's lock too.

        Raises OSError.
        """
        held = [self._scratch.lock.fileno()] if warm.STAND_BY in more else []
        own = [sys.executable, *warm.WORKER, str(self.job), *more]
        with self._standard() as (given, out, error):
            started = subprocess.Popen(
                wrap(own, self.wrapped) if wrap else own, stdin=given, stdout=out, stderr=error, env=variables,
                start_new_session=True, pass_fds=held,
            )  # fmt: skip
        return StartedProcess(started)

    @contextlib.contextmanager
    def _standard(self) -> Iterator[tuple[int, int, int]]:
        """The worker's standard input, output and error."""
        if self._attached:
            yield 0, 1, 2
            return
        null, written = os.open(os.devnull, os.O_RDONLY), os.open(self.job.with_name("output"), os.O_RDWR)
        try:
            yield null, written, written
        finally:
            os.close(null)
            os.close(written)

    def close(self) -> None:
        """Closes the pipes and removes the folder."""
        for number in (self.events, self.output):
            if number >= 0:
                os.close(number)
        self.events = self.output = -1
        self._scratch.close()


class StartedProcess:
    """A started process, with the part of ``asyncio.subprocess.Process`` that a supervisor needs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        """The exit status, negative for a signal, once it has ended."""
        while (status := self.returncode) is None:
            await asyncio.sleep(_PAUSE)
        return status


class KeptProcess(StartedProcess):
    """A process that another one started, by the file ``pid`` in its folder. Only that one learns its exit status: here it is 0."""

    def __init__(self, folder: Path) -> None:
        self.pid = int((folder / PID).read_text())
        self._sign = f"{warm.MARK}={folder.name}".encode()

    @property
    def returncode(self) -> int | None:
        with contextlib.suppress(OSError):
            if self._sign in Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0"):
                return None
        return 0


class Standby:
    """A wrapped worker that was started before its job is known: it imports torch and makes a CUDA context meanwhile.

    Raises OSError where it cannot be started. ``end`` kills it, unless it has got a job. ``kept`` is the folder of a worker that
    another command has left (``kept_standby``).
    """

    def __init__(self, wrap: Wrap, environment: Mapping[str, str], kept: Path | None = None) -> None:
        self.place = Place(made=kept)
        try:
            self.variables = self.place.variables(environment)
            self.process = (
                KeptProcess(kept) if kept else self.place.start(wrap, self.variables, warm.STAND_BY, str(os.getpid()))
            )
        except BaseException:
            self.place.close()
            raise
        self.taken = False

    def end(self) -> None:
        """Kills the worker and its wrapper, and removes its folder."""
        if not self.taken:
            _signal_group(self.process.pid, signal.SIGKILL)
            while self.process.returncode is None:
                time.sleep(_PAUSE)
            self.place.close()


class WorkerProcess:
    """A process ``python -m tilescope.jobs.worker`` on one job, in a process group of its own.

    It is the ``standby`` worker, or forked from the fork server, or started cold. ``wrap`` may change the command line (ncu goes
    in front of it); ``environment`` adds variables. An ``attached`` one has this process's standard input and output, and no log.
    Use it as an asynchronous context manager, which stops the process at its end. ``status`` is the exit status once ``events`` has
    ended; ``silent`` is True when it was killed for not answering.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        wrap: Wrap | None = None,
        environment: Mapping[str, str] | None = None,
        standby: Standby | None = None,
        on_output: Callable[[bytes], object] = bytes,
        *,
        attached: bool = False,
    ) -> None:
        self.on_output, self._attached = on_output, attached
        self._job, self._wrap, self._environment, self._standby = job, wrap, environment or {}, standby
        self._lines, self._log = EventLines(), BoundedLog()
        self._place: Place | None = None
        self._process: StartedProcess | warm.Forked | None = None
        #: Seconds without a new event after which it is killed.
        self.patience = 0.0
        self._left = False
        self.status: int | None = None
        self.silent = False

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid if self._process else 0

    @property
    def forked(self) -> bool:
        """Whether the fork server made it."""
        return isinstance(self._process, warm.Forked)

    async def __aenter__(self) -> WorkerProcess:
        """Raises StartError when the command cannot be started."""
        try:
            standby = self._standby if self._standby and self._standby.process.returncode is None else None
            self._place = place = standby.place if standby else Place(self._attached)
            variables = standby.variables if standby else place.variables(self._environment)
            place.describe(self._job, variables)
            if standby:
                standby.taken, self._process = True, standby.process
            elif self._wrap is None:
                self._process = await place.fork(variables)
            self._process = self._process or place.start(self._wrap, variables)
            asyncio.get_running_loop().add_reader(place.output, self._take_output)
        except BaseException as error:
            self._close()
            if isinstance(error, Exception):
                raise StartError(error) from error
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self.stop()
        finally:
            self._close()

    def _take_output(self) -> None:
        """Adds one piece of output to the log."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._place.output, _PIECE) if self._place else b""
            self._log.write(piece)
            self.on_output(piece)

    async def events(self, patience: float) -> AsyncGenerator[dict[str, Any]]:
        """The worker's events until it has ended. Kills it after ``patience`` seconds without a new event, which may be changed.

        Before its first event, and after ``start``, it has at least ``STARTUP`` seconds.
        """
        assert self._process is not None and self._place is not None  # noqa: S101 - only used inside the context
        self.patience = patience
        loop = asyncio.get_running_loop()
        come, last = asyncio.Event(), None
        heard, limit = loop.time(), max(patience, STARTUP)
        ended = asyncio.ensure_future(self._process.wait())
        ended.add_done_callback(lambda _: come.set())
        try:
            while True:
                # Only while waiting: otherwise the callback would fire repeatedly while an event is handled.
                loop.add_reader(self._place.events, come.set)
                # Not ``asyncio.wait_for``: before Python 3.12 it drops a cancellation that comes with an event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, heard + limit - loop.time())):
                        await come.wait()
                loop.remove_reader(self._place.events)
                come.clear()
                done = ended.done()
                for event in self.drain() if done else self._take_events() or ():
                    fresh, last = event != last, event  # repeated events are no progress
                    yield event
                    if fresh:
                        least = STARTUP if event["event"] == "start" else 0.0
                        heard, limit = loop.time(), max(self.patience, least)
                if done or self._left:
                    break
                if loop.time() - heard > limit:
                    self.silent, heard = True, loop.time()
                    _signal_group(self._process.pid, signal.SIGKILL)
            self.status = 0 if self._left else ended.result()
        finally:
            loop.remove_reader(self._place.events)
            ended.cancel()

    def _take_events(self) -> list[dict[str, Any]] | None:
        """Events completed by the next piece of the pipe; None when the pipe is empty."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._place.events, _PIECE) if self._place else b""
            return self._lines.feed(piece) if piece else None
        return None

    def drain(self) -> list[dict[str, Any]]:
        """All events in the pipe."""
        found: list[dict[str, Any]] = []
        for _ in range(_LAST):
            fresh = self._take_events()
            if fresh is None:
                break
            found += fresh
        return found

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def current(self) -> bool:
        """Whether it is alive, in the environment and the folder that a worker would have that is started now."""
        if self.alive and self._place:
            with contextlib.suppress(OSError):  # the folder may be gone
                told, now = json.loads(self._place.job.read_text()), self._place.variables(self._environment)
                return (told["environment"], told["directory"]) == (now, str(Path.cwd()))
        return False

    def let_go(self, *_: object) -> None:
        """Lets the worker begin with its job, or a part of it, that waits."""
        if self._place:
            self._place.job.with_name(warm.GO).touch()

    def leave(self) -> None:
        """Stops waiting for the exit of a worker that is done, which would take as long as a small case.

        A cold process is still waited for.
        """
        self._left = self.forked

    async def stop(self) -> None:
        """Ends the process group: SIGTERM, then SIGKILL after ``GRACE`` seconds, or at once after ``leave`` or a cancellation."""
        process = self._process
        if process is None:
            return
        try:
            if process.returncode is None and not self._left:
                _signal_group(process.pid, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE):
                        await process.wait()
        finally:
            # Also kills processes that the worker left behind, even in groups of their own.
            _signal_group(process.pid, signal.SIGKILL)
            if self._place:
                kill_marked(self._place.mark)
            if not self._left:
                await process.wait()

    def take_wrapped(self, folder: Path) -> None:
        """Moves the wrapper's files into ``folder``. Raises OSError."""
        for file in self._place.wrapped.iterdir() if self._place else ():
            shutil.move(file, folder / file.name)

    def log(self) -> str:
        """The output of the worker and its wrapper; the beginning and the end where it is long."""
        if self._place:
            # Not until its end, because a process that outlives the worker may hold the pipe open.
            for _ in range(_LAST):
                known = self._log.written
                self._take_output()
                if self._log.written == known:
                    break
        said, ignored = self._log.text(), self._lines.ignored
        return f"{said}\n[{ignored} lines in the worker's stream of events were no events]" if ignored else said

    @property
    def signal(self) -> str:
        """The name of the signal that ended the process; empty where none did."""
        status = self.status or 0
        # A shell or ncu reports a signal of its child as 128 + its number.
        if status < 0 or 128 < status < 160:
            with contextlib.suppress(ValueError):
                return signal.Signals(-status if status < 0 else status - 128).name
        return ""

    def ending(self) -> str:
        """The process's end as text: ``was killed (SIGKILL)``, ``ended with status 1``."""
        if self.silent:
            return f"did not answer for {self.patience:g} s and was killed"
        if name := self.signal:
            return f"{'was killed' if name in worker_output.FROM_OUTSIDE else 'crashed'} ({name})"
        return f"ended with status {self.status or 0}"

    def _close(self) -> None:
        if isinstance(self._process, warm.Forked):
            self._process.close()
        if self._place:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._place.output)
            self._place.close()
            self._place = None


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_marked(mark: str) -> None:
    """Kills processes that a worker started and that left its group, as daemons do. They are found by their environment."""
    sign = f"{warm.MARK}={mark}".encode()
    with contextlib.suppress(OSError):
        unclear = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
        for _ in range(_LOOKS):
            unclear = [process for process in unclear if not _kill_if_marked(process, sign)]
            if not unclear:
                break
            time.sleep(_PAUSE)


def _kill_if_marked(process: Path, sign: bytes) -> bool:
    """Kills the process of this folder of /proc if its environment has the sign. False where it must be looked at again."""
    with contextlib.suppress(OSError):
        environment = (process / "environ").read_bytes()
        if sign in environment.split(b"\0"):
            os.kill(int(process.name), signal.SIGKILL)
        if not environment:
            # The environment is empty for a moment during exec. The system's own processes have no program and fail here.
            (process / "exe").readlink()
            return False
    return True


def sweep(runs: Path) -> int:
    """Removes folders of dead processes: temporary ones, and runs in ``runs`` without anything to resume.

    Returns their number. Never raises; folders of other users stay.
    """
    from tilescope.runs import journal, store  # noqa: PLC0415 - the worker starts before these imports

    swept = 0
    for folder in _folders(Path(tempfile.gettempdir()), PREFIX):
        swept += _remove(folder, warm.LOCK, _UNLOCKED)
    for folder in _folders(runs, store.PARTIAL):
        holds = journal.kept(folder) or any((folder / "parts").glob("*"))
        swept += 0 if holds else _remove(folder, ".lock", _BEGUN)
    return swept


def _folders(place: Path, prefix: str) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(place):
            mine = entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
            if mine and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.append(Path(entry.path))
    return found


def _remove(folder: Path, lock: str, unlocked: float) -> bool:
    """Removes the folder unless a process holds its lock. Returns whether it is gone."""
    try:
        handle: Any = (folder / lock).open("r+")
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < unlocked:
                return False
            shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except OSError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
