"""A pool of processes that compile without a GPU: one a config, forked from a host that has imported Triton.

The host is forked from this process, or started as a new one if this process already uses a GPU. It stays for later searches. A
config that crashes the compiler or takes too long ends its own process only, and its reason is returned. Imports torch and
triton.
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

#: The longest time in seconds that one config may compile.
LONGEST = 60.0
#: Once nothing waits, a config may take this multiple of the others' median, and at least this many seconds. The best config of
#: a recorded sweep took at most 3.1 times the median.
STRAGGLER, PATIENCE = 4.0, 0.75
#: Up to this number of configs, compiling them here is faster than starting a host.
_FEW = 2
#: The longest wait in seconds for Triton's driver to be built.
_BUILDING = 3.0
#: Added niceness of processes that compile, so that they yield to the one that times.
_NICE = 5
_FORK = multiprocessing.get_context("fork") if sys.platform == "linux" else None


@dataclass
class Host:
    """The process that forks the compiling ones.

    ``wait`` is how long to wait for it to be ready, in seconds: 0 for a new ``process``, which imports Triton first. The other
    end of ``building`` closes when Triton's driver is built.
    """

    connection: Connection
    pid: int
    wait: float = 0.0
    ready: bool = False
    process: subprocess.Popen[bytes] | None = None
    building: Connection | None = None


@dataclass
class _Running:
    process: Any
    name: str
    began: float


@dataclass
class _Batch:
    """The host's present request. ``took`` are the seconds of finished configs."""

    maker: Maker
    limit: float
    waiting: deque[tuple[str, Sequence[Specialization]]] = field(default_factory=deque)
    took: list[float] = field(default_factory=list)


#: The host by the process that it belongs to: a fork must not use its parent's.
_hosts: dict[int, Host] = {}


def may_fork() -> bool:
    """Whether a fork of this process can compile: it has no other threads, which may hold locks, and uses no GPU."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return _FORK is not None and all(thread.name == WATCH for thread in others) and not _uses_gpu()


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def prepare() -> None:
    """Forks the host now if that is still possible. Never raises."""
    if os.getpid() not in _hosts and may_fork():
        with contextlib.suppress(OSError):
            _hosts[os.getpid()] = _forked()


def host() -> Host | None:
    """This process's host, started if there is none; None where none can be started."""
    known = _hosts.get(os.getpid())
    if known and not known.connection.closed:
        return known
    try:
        _hosts[os.getpid()] = found = _forked() if may_fork() else _started()
    except OSError:
        return None
    return found


def await_driver() -> None:
    """Waits for Triton's driver if the host is building it, which is faster than building it here too."""
    there = _hosts.get(os.getpid())
    if there and there.building and not hasattr(CudaUtils, "instance"):
        with contextlib.suppress(OSError):
            there.building.poll(_BUILDING)
            there.building.close()
        there.building = None


class Pool:
    """Compiles the configs of one search in ``processes`` at once (0: one a processor), each for ``limit`` seconds at most."""

    def __init__(self, code: Code, processes: int = 0, limit: float = LONGEST) -> None:
        self._code, self._limit = code, limit
        self._processes = processes or len(os.sched_getaffinity(0))

    def compile(
        self, jobs: Mapping[str, Sequence[Specialization]], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[tuple[str, Compiled]]:
        """Yields each config's name and result as they finish; they begin in the order of ``jobs``.

        Configs with equal jobs, such as those that differ in their grid only, are compiled once. ``meanwhile`` is called once
        the host has begun. This process compiles by itself until the host is ready, or where there is none.
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
        """The result of each config of ``left``, which is emptied."""
        own = None
        there = host() if len(left) > _FEW else _hosts.get(os.getpid())
        try:
            with tempfile.TemporaryDirectory(prefix="tilescope-compile-") as folder:
                while left:
                    if there and _is_ready(there):
                        try:
                            yield from self._asked(there, left, meanwhile)
                        except (OSError, EOFError):  # the host itself has died
                            _forget(there)
                            there = None
                        continue
                    own = own or Maker(self._code, Path(folder))
                    name = next(iter(left))
                    yield name, own.compile(left.pop(name))
        finally:
            if left and there and there.ready:  # the caller stopped iterating: drops the results under way
                _forget(there)

    def _asked(
        self, there: Host, left: dict[str, Sequence[Specialization]], meanwhile: Callable[[], object]
    ) -> Iterator[tuple[str, Compiled]]:
        """The host's result for each config of ``left``, which is emptied."""
        there.connection.send(("compile", dict(os.environ), self._code, left, self._processes, self._limit))
        meanwhile()
        while left:
            name, compiled = there.connection.recv()
            del left[name]
            yield name, compiled


def _is_ready(there: Host) -> bool:
    """Whether the host has finished its imports."""
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
        # About threads of libraries, which hold no lock that a compiler needs.
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
    """A host that is a new process, where a fork would have the GPU's context or another thread's locks."""
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
    """Runs the host: forks a process for each config, until the other end of ``connection`` closes.

    The process that builds Triton's driver holds ``building`` open.
    """
    gc.disable()  # inherited objects must not be finalised here
    running: dict[Connection, _Running] = {}
    batch: _Batch | None = None
    processes = 1
    with tempfile.TemporaryDirectory(prefix="tilescope-compile-") as folder:
        try:
            _build_driver()
            if building:
                building.close()
            # Computed once here, not in every fork: it takes half a second.
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
    """Starts a process that builds the C module of Triton's driver, so that the first launch finds it in the cache."""
    assert _FORK is not None  # noqa: S101 - there is no host elsewhere

    def work() -> None:
        with contextlib.suppress(Exception):  # it needs NVIDIA's driver
            CudaUtils()

    _FORK.Process(target=work, daemon=True).start()


def _begin(maker: Maker, kernels: Sequence[Specialization]) -> tuple[Connection, Any]:
    """Starts a process that compiles; returns the connection of its answer, and the process."""
    assert _FORK is not None  # noqa: S101 - there is no host elsewhere
    answer, write = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()

    def work() -> None:
        os.setsid()  # one signal then ends it with ptxas
        die_with(parent)
        os.nice(_NICE)
        write.send(maker.compile(kernels))

    process = _FORK.Process(target=work, daemon=False)
    process.start()
    write.close()
    return answer, process


def _end(batch: _Batch, answer: Connection, one: _Running) -> tuple[str, Compiled]:
    """The result of a config whose process has answered or ended."""
    try:
        found: Compiled = answer.recv()
        batch.took.append(time.monotonic() - one.began)
    except Exception:  # a broken process may leave anything in the pipe
        one.process.join(1.0)
        code = one.process.exitcode
        by = signal.Signals(-code).name if code and code < 0 else f"status {code}"
        # SIGKILL comes from outside, for example where memory ran out.
        found = Compiled(f"compiling it ended its process ({by})", certain=code != -signal.SIGKILL)
    _stop(answer, one)
    return one.name, found


def _too_long(batch: _Batch, took: float) -> str:
    """The reason to stop a config that has compiled for ``took`` seconds; empty where it may continue."""
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


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
