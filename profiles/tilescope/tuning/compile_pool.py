"""A pool of processes that compile without a GPU: one a config, forked from a host that has imported Triton.

The host is forked from this process, or started as a new one if this process already uses a GPU or has threads. It stays for later
searches. A config that crashes the compiler or takes too long ends its own process only, and its reason is returned. Imports torch
and triton.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import torch
from triton.runtime.cache import triton_key

from tilescope.execution import multiprocess
from tilescope.execution.parentage import WATCH, die_with
from tilescope.tuning.compile_jobs import Code, Maker, Specialization, build_launchers, one_line
from tilescope.tuning.memory import DEFAULT
from tilescope.tuning.search import Compiled

#: The longest time in seconds that one config may compile.
LONGEST = 60.0
#: Once nothing waits, a config may take this multiple of the others' median, and at least this many seconds. The default may
#: take ``LONGEST``, because the others are compared with it.
STRAGGLER, PATIENCE = 4.0, 10.0
#: Up to this number of configs, compiling them here is faster than starting a host.
_FEW = 2
#: The longest wait in seconds for a forked host to be ready.
_COMING_UP = 2.0
#: Added niceness of processes that compile, so that they yield to the one that times.
_NICE = 5

Jobs = Mapping[str, Sequence[Specialization]]


@dataclass
class Host:
    """The process that forks the compiling ones. ``process`` is set for a new one, which imports Triton first."""

    connection: Connection
    pid: int
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False

    def is_ready(self) -> bool:
        if not self.ready:
            with contextlib.suppress(OSError, EOFError):
                self.ready = (
                    self.connection.poll(0 if self.process else _COMING_UP) and self.connection.recv() == "ready"
                )
        return self.ready

    def end(self) -> None:
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self.process:
            self.process.wait()
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)


#: The host by the process that it belongs to: a fork must not use its parent's.
_hosts: dict[int, Host] = {}


def may_fork() -> bool:
    """Whether a fork of this process can compile: it has no other threads, which may hold locks, and uses no GPU."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    uses_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return sys.platform == "linux" and all(thread.name == WATCH for thread in others) and not uses_gpu


def prepare() -> None:
    """Forks the host now if that is still possible. Never raises."""
    if os.getpid() not in _hosts and may_fork():
        host()


def host() -> Host | None:
    """This process's host, started if there is none; None where none can be started."""
    known = _hosts.get(os.getpid())
    if known is None or known.connection.closed:
        try:
            known = _hosts[os.getpid()] = _forked() if may_fork() else _started()
        except OSError:
            return None
    return known


def forget() -> None:
    if there := _hosts.pop(os.getpid(), None):
        there.end()


class Pool:
    """Compiles the configs of one search in ``processes`` at once (0: one a processor), each for ``limit`` seconds at most.

    ``meanwhile`` is called once they compile, before the first result is waited for.
    """

    def __init__(
        self,
        code: Code,
        processes: int = 0,
        limit: float = LONGEST,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self._code, self._limit, self._meanwhile = code, limit, meanwhile
        self._processes = processes or len(os.sched_getaffinity(0))

    def compile(self, jobs: Jobs) -> Iterator[tuple[str, Compiled]]:
        """Yields each config's name and result as they finish; they begin in the order of ``jobs``.

        Configs with equal jobs, such as those that differ in their grid only, are compiled once. This process compiles by itself
        until the host is ready, or where there is none.
        """
        alike: dict[str, list[str]] = {}
        for name, kernels in jobs.items():
            alike.setdefault(repr(kernels), []).append(name)
        groups = {names[0]: names for names in alike.values()}
        for first, compiled in self._each({name: jobs[name] for name in groups}):
            yield first, compiled
            for other in groups[first][1:]:
                yield other, compiled.again()

    def _each(self, left: dict[str, Sequence[Specialization]]) -> Iterator[tuple[str, Compiled]]:
        """The result of each config of ``left``, which is emptied."""
        own = None
        there = host() if len(left) > _FEW else _hosts.get(os.getpid())
        try:
            while left:
                if there and there.is_ready():
                    try:
                        yield from self._asked(there, left)
                    except (OSError, EOFError):  # the host itself has died
                        forget()
                        there = None
                    continue
                own = own or Maker(self._code)
                name = next(iter(left))
                yield name, own.compile(left.pop(name))
        finally:
            if left and there and there.ready:  # the caller stopped iterating: drops the results under way
                forget()

    def _asked(self, there: Host, left: dict[str, Sequence[Specialization]]) -> Iterator[tuple[str, Compiled]]:
        """The host's result for each config of ``left``, which is emptied."""
        there.connection.send((dict(os.environ), self._code, left, self._processes, self._limit))
        self._meanwhile()
        while left:
            name, compiled = there.connection.recv()
            del left[name]
            yield name, compiled


def _forked() -> Host:
    ours, theirs = multiprocessing.Pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # About threads of libraries, which hold no lock that a compiler needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            gc.disable()  # inherited objects must not be finalised here
            serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    return Host(ours, pid)


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
    return Host(Connection(ours.detach()), process.pid, process)


def serve(connection: Connection) -> None:
    """Runs the host: answers each request with its configs' results, until the other end of ``connection`` closes."""
    triton_key()  # takes half a second, and every fork needs it
    with contextlib.suppress(OSError, EOFError):
        connection.send("ready")
        while True:
            environment, code, jobs, processes, limit = connection.recv()
            os.environ.clear()
            os.environ.update(environment)
            for answer in _compiled(connection, Maker(code), jobs, processes, limit):
                connection.send(answer)


def _compiled(
    caller: Connection, maker: Maker, jobs: Jobs, processes: int, limit: float
) -> Iterator[tuple[str, Compiled]]:
    """Each config's result, from a process each, ``processes`` at once. Raises EOFError when the caller goes."""
    waiting, running, took = deque(jobs.items()), dict[Connection, _Compiling](), list[float]()
    # A C compiler builds them, which the first launch would wait for.
    launchers = multiprocess.Child(functools.partial(build_launchers, itertools.chain(*jobs.values())))
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                begun = _Compiling(maker, *waiting.popleft())
                running[begun.answer] = begun
            for heard in wait([caller, *running], timeout=0.2):
                if heard is caller or not isinstance(heard, Connection):
                    raise EOFError
                ended = running.pop(heard)
                found = ended.result()
                if not found.reason:
                    took.append(ended.seconds)
                yield ended.name, found
            for answer, one in list(running.items()):
                others = [] if waiting or one.name == DEFAULT else took
                if reason := _too_long(one.seconds, others, limit):
                    running.pop(answer).stop()
                    # The limit is what a config costs anyone; beside others' median it may be this machine's load.
                    yield one.name, Compiled(reason, certain=one.seconds > limit)
        with contextlib.suppress(Exception):  # the launch itself says what is wrong
            launchers.result()
    finally:
        launchers.stop()
        for one in running.values():
            one.stop()


class _Compiling(multiprocess.Child):
    def __init__(self, maker: Maker, name: str, kernels: Sequence[Specialization]) -> None:
        self.name, self._began = name, time.monotonic()

        def work() -> Compiled:
            os.nice(_NICE)
            return maker.compile(kernels)

        super().__init__(work)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def result(self) -> Compiled:
        """The result after the process has answered or ended."""
        try:
            found: Compiled = super().result()
        except multiprocess.Ended as ended:
            code = ended.code or 0
            by = signal.Signals(-code).name if code < 0 else f"status {code}"
            # SIGKILL comes from outside, for example where memory ran out.
            found = Compiled(f"compiling it ended its process ({by})", certain=code != -signal.SIGKILL)
        except Exception as error:  # a broken process may leave anything in the pipe
            found = Compiled(one_line(error))
        self.stop()
        return found


def _too_long(took: float, others: Sequence[float], limit: float) -> str:
    """The reason to stop a config that has compiled for ``took`` seconds; empty where it may continue.

    ``others`` are the seconds of finished configs, empty while configs wait.
    """
    if took > limit:
        return f"compiling took more than {limit:g} s and was stopped"
    median = statistics.median(others) if others else took
    if took > max(PATIENCE, STRAGGLER * median):
        return f"compiling took {took:.1f} s where the others' median is {median:.1f} s, and was stopped"
    return ""


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
