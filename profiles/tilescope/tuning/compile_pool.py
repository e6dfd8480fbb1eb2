"""A pool of processes that compile and never touch a GPU: one a config, forked from a host that has imported Triton.

The host is forked from this process before that uses a GPU, or started anew where it is too late for that; it stays for the next
search. A config that crashes its compiler, or takes too long, costs only itself: its process ends, and the reason is told.
Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from triton.backends.nvidia.driver import CudaUtils
from triton.runtime.cache import triton_key

from tilescope.execution.parentage import WATCH, die_with
from tilescope.tuning.compile_jobs import Code, Compiled, Maker, Specialization

#: Longest that one config may take to compile, in seconds.
LONGEST = 60.0
#: Once nothing waits, a config that is left may take so many times the median of the others, and at least so many seconds. No
#: recorded sweep's best took more than 3.1 times the median.
STRAGGLER, PATIENCE = 4.0, 0.75
#: So few configs are compiled here sooner than a host is started.
_FEW = 2
#: Longest that building Triton's driver is waited for, in seconds.
_BUILDING = 3.0
#: Processes that compile run below the one that times.
_NICE = 5
_FORK = multiprocessing.get_context("fork") if sys.platform == "linux" else None


@dataclass
class Host:
    """The process that forks those that compile; ``connection`` leads to it."""

    connection: Connection
    pid: int
    #: Seconds that are worth waiting until it says that it is there: one that was started anew imports first.
    wait: float = 0.0
    ready: bool = False
    #: One that was started anew.
    process: subprocess.Popen[bytes] | None = None
    #: Ends when the process that builds Triton's driver for it has ended.
    building: Connection | None = None

    def alive(self) -> bool:
        return not self.connection.closed


@dataclass
class _Running:
    process: Any
    name: str
    began: float


@dataclass
class _Batch:
    """What the host has been asked to compile."""

    maker: Maker
    limit: float
    waiting: deque[tuple[str, Sequence[Specialization]]] = field(default_factory=deque)
    took: list[float] = field(default_factory=list)


#: This process's host, and the process that it belongs to: a fork has none.
_hosts: dict[int, Host] = {}


def may_fork() -> bool:
    """Whether a fork of this process can compile: no thread may hold a lock, and no GPU may be in use."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return _FORK is not None and all(thread.name == WATCH for thread in others) and not _uses_gpu()


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def prepare() -> None:
    """Forks the host now, where that is still possible. Never raises."""
    if os.getpid() not in _hosts and may_fork():
        with contextlib.suppress(OSError):
            _hosts[os.getpid()] = _forked()


def host() -> Host | None:
    """This process's host, started if there is none; None where there can be none."""
    known = _hosts.get(os.getpid())
    if known and known.alive():
        return known
    try:
        _hosts[os.getpid()] = found = _forked() if may_fork() else _started()
    except OSError:
        return None
    return found


def await_driver() -> None:
    """Waits until a process of the host has built Triton's driver, if one is building it: building it here too would be slower."""
    there = _hosts.get(os.getpid())
    if there and there.building and not hasattr(CudaUtils, "instance"):
        with contextlib.suppress(OSError):
            there.building.poll(_BUILDING)
            there.building.close()
        there.building = None


class Pool:
    """Compiles the configs of one search, ``processes`` at once."""

    def __init__(self, code: Code, processes: int = 0, limit: float = LONGEST) -> None:
        self._code, self._limit = code, limit
        self._processes = processes or len(os.sched_getaffinity(0))

    def compile(
        self, jobs: Mapping[str, Sequence[Specialization]], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[str, Compiled]]:
        """Each config by name and what became of it, as they come; begun in the order of ``jobs``.

        Configs that are the same to the compiler, as those that differ in their grid alone, are compiled once. ``meanwhile`` is
        called when the others have begun. While the host is not there yet, or where there is none, this process compiles them
        itself.
        """
        alike: dict[str, list[str]] = {}
        for name, kernels in jobs.items():
            alike.setdefault(repr(kernels), []).append(name)
        groups = {names[0]: names for names in alike.values()}
        for first, compiled in self._each({name: jobs[name] for name in groups}, meanwhile):
            yield first, compiled
            for other in groups[first][1:]:
                yield other, compiled.again()

    def _each(
        self, left: dict[str, Sequence[Specialization]], meanwhile: Callable[[], object]
    ) -> Iterator[tuple[str, Compiled]]:
        """Each of what is ``left``, which is taken from there."""
        own = None
        there = host() if len(left) > _FEW else _hosts.get(os.getpid())
        try:
            with tempfile.TemporaryDirectory(prefix="tilescope-compile-") as folder:
                while left:
                    if there and _is_ready(there):
                        try:
                            yield from self._asked(there, left, meanwhile)
                        except (OSError, EOFError):  # it is gone, by no config's fault
                            _forget(there)
                            there = None
                        continue
                    own = own or Maker(self._code, Path(folder))
                    name = next(iter(left))
                    yield name, own.compile(left.pop(name))
        finally:
            if left and there and there.ready:  # whoever asked has stopped listening: what is under way is of no use
                _forget(there)

    def _asked(
        self, there: Host, left: dict[str, Sequence[Specialization]], meanwhile: Callable[[], object]
    ) -> Iterator[tuple[str, Compiled]]:
        """The answers of the host to what is ``left``, which is taken from there."""
        there.connection.send(("compile", dict(os.environ), self._code, left, self._processes, self._limit))
        meanwhile()
        while left:
            name, compiled = there.connection.recv()
            del left[name]
            yield name, compiled


def _is_ready(there: Host) -> bool:
    """Whether the host has imported what it needs."""
    if not there.ready:
        with contextlib.suppress(OSError, EOFError):
            there.ready = there.connection.poll(there.wait) and there.connection.recv() == "ready"
    return there.ready


def _forget(there: Host) -> None:
    there.connection.close()
    if there.building:
        there.building.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(there.pid, signal.SIGKILL)
    if there.process:
        there.process.wait()
    else:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(there.pid, 0)
    _hosts.pop(os.getpid(), None)


def _forked() -> Host:
    """A host that is a fork of this process."""
    ours, theirs = multiprocessing.Pipe()
    built, building = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()
    with warnings.catch_warnings():
        # Of threads that are not Python's, which hold no lock of anything that a compiler uses.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            built.close()
            die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            serve(theirs, building)
        finally:
            os._exit(0)
    theirs.close()
    building.close()
    return Host(ours, pid, wait=2.0, building=built)


def _started() -> Host:
    """A host that is a process of its own, for where a fork would have the GPU's context, or another thread's locks."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "tilescope.tuning.compile_pool", str(theirs.fileno())]
        paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
        )  # fmt: skip
    return Host(Connection(ours.detach()), process.pid, process=process)


def serve(connection: Connection, building: Connection | None = None) -> None:
    """The host: forks a process for each config that it is asked for, until whoever asks is gone.

    ``building`` is held open by a process that builds Triton's driver.
    """
    gc.disable()  # what this process inherited is not its to free
    running: dict[Connection, _Running] = {}
    batch: _Batch | None = None
    processes = 1
    with tempfile.TemporaryDirectory(prefix="tilescope-compile-") as folder:
        try:
            _build_driver()
            if building:
                building.close()
            # Triton reads all of itself for the names of its cache's entries, for half a second: once, and not in every fork.
            triton_key()
            connection.send("ready")
            while True:
                while batch and batch.waiting and len(running) < processes:
                    name, kernels = batch.waiting.popleft()
                    answer, process = _begin(batch.maker, kernels)
                    running[answer] = _Running(process, name, time.monotonic())
                for heard in wait([connection, *running], timeout=0.2 if running else None):
                    if heard is connection:
                        _, environment, code, jobs, processes, limit = connection.recv()
                        os.environ.clear()
                        os.environ.update(environment)
                        place = Path(tempfile.mkdtemp(dir=folder))
                        batch = _Batch(Maker(code, place), limit, deque(jobs.items()))
                    elif isinstance(heard, Connection) and batch:
                        connection.send(_end(batch, heard, running.pop(heard)))
                for answer, one in list(running.items()):
                    if batch and (reason := _too_long(batch, time.monotonic() - one.began)):
                        _stop(answer, running.pop(answer))
                        connection.send((one.name, Compiled(reason)))
        except (OSError, EOFError):
            for answer, one in running.items():
                _stop(answer, one)


def _build_driver() -> None:
    """Starts a process in which Triton builds its driver's C module, so that the first launch finds it in the cache."""
    assert _FORK is not None  # noqa: S101 - there is no host elsewhere

    def work() -> None:
        with contextlib.suppress(Exception):  # without NVIDIA's driver it is not built
            CudaUtils()

    _FORK.Process(target=work, daemon=True).start()


def _begin(maker: Maker, kernels: Sequence[Specialization]) -> tuple[Connection, Any]:
    """A process that compiles, and where its answer comes from."""
    assert _FORK is not None  # noqa: S101 - there is no host elsewhere
    answer, write = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()

    def work() -> None:
        os.setsid()  # ptxas and whatever else it starts goes with it
        die_with(parent)
        os.nice(_NICE)
        write.send(maker.compile(kernels))

    process = _FORK.Process(target=work, daemon=False)
    process.start()
    write.close()
    return answer, process


def _end(batch: _Batch, answer: Connection, one: _Running) -> tuple[str, Compiled]:
    """What became of a config whose process has answered, or ended without."""
    try:
        found: Compiled = answer.recv()
        batch.took.append(time.monotonic() - one.began)
    except Exception:  # whatever a broken process left in the pipe
        one.process.join(1.0)
        code = one.process.exitcode
        by = signal.Signals(-code).name if code and code < 0 else f"status {code}"
        # What is killed from outside may have been in the way of something else.
        found = Compiled(f"compiling it ended its process ({by})", certain=code != -signal.SIGKILL)
    _stop(answer, one)
    return one.name, found


def _too_long(batch: _Batch, took: float) -> str:
    """Why a config that has been compiled for ``took`` seconds is given up; empty where it may go on."""
    if took > batch.limit:
        return f"compiling took more than {batch.limit:g} s and was stopped"
    if not batch.waiting and batch.took:
        median = statistics.median(batch.took)
        if took > max(PATIENCE, STRAGGLER * median):
            return f"compiling took {took:.1f} s where the others' median is {median:.1f} s, and was stopped"
    return ""


def _stop(answer: Connection, one: _Running) -> None:
    answer.close()
    one.process.join(0.05)
    if one.process.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.kill()
        one.process.join()


def main(arguments: Sequence[str]) -> int:
    """A host that was started, on the connection that the arguments name; at its end the host ends too."""
    serve(Connection(int(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
