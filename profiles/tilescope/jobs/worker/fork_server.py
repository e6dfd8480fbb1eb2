"""The worker's side of ``tilescope.jobs.warm``: the fork server, and a worker that stands by under a wrapper.

``python -P -m tilescope.jobs.worker.fork_server PATH SOCKET LOCK`` serves a socket that ``warm`` has bound. It never uses a GPU and
imports no kernel, so a worker begins like a new process. A worker dies with the server, and with its client.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tilescope.execution.parentage import die_with
from tilescope.hardware import device
from tilescope.jobs import warm

#: Exists where the NVIDIA driver is loaded. Some modules of torch open it when they are imported, after which no fork can use the GPU.
DRIVER = Path("/dev/nvidiactl")
#: Seconds without a worker after which the server ends, and for which a worker stands by.
IDLE = 300.0
#: Modules that every worker imports. Nothing is forked before them.
FIRST = ("torch", "triton", "triton.language", "tilescope.execution.execute")
_DIGESTED = "triton.runtime.cache"
#: Modules that most workers import. Workers are forked between these imports too. Those that are not torch's use no GPU and start no
#: thread.
THEN = (
    "pandas", _DIGESTED, "tilescope.jobs.worker.main", "tilescope.captures.replay", "tilescope.execution.launches",
    "tilescope.execution.offline", "tilescope.execution.pytorch_traffic", "tilescope.execution.undrawn",
    "tilescope.collectors.check", "tilescope.collectors.compiler", "tilescope.collectors.cupti.counters",
    "tilescope.collectors.events", "tilescope.collectors.interpreter", "tilescope.collectors.torch_profiler",
    "tilescope.interpreter.interpret", "torch.autograd.profiler", "tilescope.notebook.script_running",
    "tilescope.captures.recording", "tilescope.execution.describe", "tilescope.tuning.race", "tilescope.tuning.sweep",
    "triton.experimental.gluon", "tilescope_kernels._shared.online_softmax", "tilescope_kernels._shared.operators",
    "tilescope_kernels._shared.row_ends", "tilescope_kernels._shared.row_tiles",
    "sympy", "torch.fx.experimental.symbolic_shapes",  # which every backward pass with a given gradient imports
)  # fmt: skip
#: Imports of torch.compile and of torch's timers, done after ``_SPARE`` seconds without a request, by a fork that then serves in this
#: server's place, because they take many seconds.
LATER = ("torch._dynamo", "torch._inductor.compile_fx", "torch.utils.benchmark")
_SPARE = 2.0


class ForkServer:
    """Accepts requests from ``listening``. ``serve`` returns in every worker, and in the server at its end."""

    def __init__(self, listening: socket.socket, path: Path, lock: int) -> None:
        self._listening: socket.socket | None = listening
        self._path, self._lock = path, lock
        self._workers: dict[int, socket.socket] = {}
        #: Workers that wait for the file at a path before they begin.
        self._waiting: dict[int, Path] = {}
        #: The fork that will serve in this one's place, and the socket on which it says so.
        self._heir = 0
        self._will: socket.socket | None = None
        self._files, self._began = dict[str, tuple[int, int]](), time.time_ns()
        self._failed = self._refusal = ""
        self._quiet = time.monotonic()
        self._listen_to_children()
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> str | None:
        """The file of this process's job in a worker; None in the server at its end."""
        waiting, later = [*THEN], True
        for name in FIRST:
            self._import(name)
        while self._listening or self._workers or self._heir:
            left = None if self._workers or not self._listening else max(0.0, self._quiet + IDLE - time.monotonic())
            with selectors.PollSelector() as selector:  # not epoll, which forks would share
                selector.register(self._woken, selectors.EVENT_READ, "woken")
                if self._listening:
                    selector.register(self._listening, selectors.EVENT_READ, "new")
                if self._will:
                    selector.register(self._will, selectors.EVENT_READ, "heir")
                for pid, connection in self._workers.items():
                    selector.register(connection, selectors.EVENT_READ, pid)
                keys = [key.data for key, _ in selector.select(0.0 if waiting else _SPARE if later else left)]
            if "new" in keys and (job := self._accept()):
                return job
            self._attend(keys)
            if "heir" in keys and self._will:
                if self._will.recv(64):
                    self._leave_off()
                self._will.close()
                self._will = None
            if waiting:
                self._import(waiting.pop(0))
            elif keys or self._is_busy():
                continue
            elif later:
                later = False
                self._make_heir()
            elif self._listening and not self._workers and time.monotonic() >= self._quiet + IDLE:
                self._retire()
        return None

    def _is_busy(self) -> bool:
        """Whether a worker has begun, and may measure."""
        return any(pid not in self._waiting or self._waiting[pid].exists() for pid in self._workers)

    def _listen_to_children(self) -> None:
        """Makes the ends of a socket that wakes this process when a child ends."""
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def _make_heir(self) -> None:
        """Forks a server that imports ``LATER`` while this one serves. It dies with this one."""
        self._will, theirs = socket.socketpair()
        server, self._heir = os.getpid(), os.fork()
        if self._heir:
            theirs.close()
            return
        die_with(server)
        for end in (self._will, self._woken, self._wake, *self._workers.values()):
            end.close()
        self._will = None
        self._workers.clear()
        self._listen_to_children()
        for name in LATER:
            self._import(name)
        self._quiet = time.monotonic()
        _say(theirs, {})
        theirs.recv(1)  # until the other has stopped accepting
        theirs.close()

    def _leave_off(self) -> None:
        """Stops accepting requests; the heir does."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _import(self, name: str) -> None:
        """Imports a module, and notes the files that came with it. Leaves one of torch that would end forking to the workers.

        A trial imports a module twice, so others have none.
        """
        if name.startswith("torch.") and DRIVER.exists() and not harmless(name):
            return
        try:
            _load(name)
        except Exception as error:  # a worker that imports the module itself reports it
            if name in FIRST and not self._failed:
                self._failed = f"{name} does not import: {type(error).__name__}"
        for module in list(sys.modules.values()):
            if isinstance(file := getattr(module, "__file__", None), str) and file not in self._files:
                self._files[file] = _state(file)
        self._refusal = self._failed or _unsafe()
        # Freezes permanent objects, so that garbage collection in a worker does not touch and copy their pages.
        gc.collect()
        gc.freeze()

    def _changed(self) -> bool:
        """Whether an imported file has changed since. One that was modified after the start may differ from what was read."""
        return any(state[0] >= self._began or state != _state(file) for file, state in self._files.items())

    def _accept(self) -> str | None:
        """Answers a new client. Returns the job's file in the worker, None in the server."""
        assert self._listening is not None  # noqa: S101 - it is polled only while it is there
        connection, _ = self._listening.accept()
        files: list[int] = []
        try:
            connection.settimeout(2.0)  # it has its request ready
            said, files, _, _ = socket.recv_fds(connection, 4096, 3)
            request: dict[str, Any] = json.loads(said)
            if self._changed():
                self._retire()
            elif self._refusal:
                _say(connection, {"refused": self._refusal})
            elif len(files) == 3 and request.get("job"):
                job = Path(request["job"])
                waits = json.loads(job.read_text()).get("waits")
                self._quiet, server, pid = time.monotonic(), os.getpid(), os.fork()
                if pid == 0:
                    connection.close()
                    return self._become_worker(server, request["job"], files)
                self._workers[pid] = connection
                self._waiting |= {pid: job.with_name(warm.GO)} if waits else {}
                _say(connection, {"pid": pid})
                return None
            connection.close()
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
        finally:
            for file in files:
                os.close(file)
        return None

    def _become_worker(self, server: int, file: str, standard: list[int]) -> str:
        """Gives a fork the state of ``python -m tilescope.jobs.worker``; it ends with the server. Returns the job's file."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with(server)
            for end in filter(None, (self._listening, self._woken, self._wake, self._will, *self._workers.values())):
                end.close()
            os.close(self._lock)
            for number, given in enumerate(standard):
                os.dup2(given, number)
            job = json.loads(Path(file).read_text())
            os.environ.clear()
            os.environ.update(job["environment"])
            os.chdir(job["directory"])
            tempfile.tempdir = None
            sys.argv[:] = ["-m", file]
            sys.orig_argv[:] = [sys.executable, *warm.WORKER, file]
            if numpy := sys.modules.get("numpy"):
                numpy.random.seed()  # so that workers do not all draw the same numbers
        except BaseException:  # it must not go on as a server
            os._exit(1)
        return file

    def _attend(self, keys: list[Any]) -> None:
        """Kills workers whose clients have closed the connection, and reports workers that have ended."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        for pid in self._workers.keys() & set(keys):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._workers.pop(pid).close()
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._heir = 0 if pid == self._heir else self._heir
                self._quiet = time.monotonic()
                self._waiting.pop(pid, None)
                if connection := self._workers.pop(pid, None):
                    _say(connection, {"status": os.waitstatus_to_exitcode(status)})
                    connection.close()

    def _retire(self) -> None:
        """Stops accepting requests; the next one starts another server. Running workers finish."""
        if self._listening is not None:
            self._path.unlink(missing_ok=True)
            self._leave_off()
            if self._will:
                os.kill(self._heir, signal.SIGKILL)
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def _load(name: str) -> None:
    module = importlib.import_module(name)
    if name == _DIGESTED:
        module.triton_key()  # Triton's cache key, whose first computation takes half a second


def _say(connection: socket.socket, what: dict[str, Any]) -> None:
    """Writes one message; a closed connection is noticed at the next poll."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(what).encode() + b"\n")


def _state(file: str) -> tuple[int, int]:
    """A file's time of modification and size."""
    try:
        seen = os.stat(file)  # noqa: PTH116 - two thousand of them a request
    except OSError:
        return (0, 0)
    return (seen.st_mtime_ns, seen.st_size)


def harmless(name: str) -> bool:
    """Whether this process can be forked after it has imported the module, as a fork finds."""
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
        os._exit(bool(_unsafe()))
    return os.waitpid(pid, 0)[1] == 0


def _unsafe() -> str:
    """The reason why a fork of this process may not work; empty where there is none."""
    if threading.active_count() > 1:
        return "an import started a thread"
    opened = (str(file.resolve()) for file in Path("/proc/self/fd").iterdir())
    return "an import opened the GPU" if any(file.startswith("/dev/nvidia") for file in opened) else ""


def stand_by(job: Path, *, kept: bool = False) -> None:
    """Imports a worker's modules, makes a CUDA context if the GPU can be shared, and returns once the job exists.

    Ends the process after ``IDLE`` seconds. One that is ``kept`` for another command has time for more modules, and uses the GPU once
    it is woken.
    """
    until, wake, asleep = time.monotonic() + IDLE, job.with_name(warm.WAKE), True
    waiting = [*FIRST, "tilescope.collectors.events", *(THEN if kept else ())]
    while not job.exists():
        with contextlib.suppress(Exception):
            if asleep and "torch" in sys.modules and (wake.exists() or not (kept or waiting)):
                asleep = False
                if device.shareable():
                    torch = importlib.import_module("torch")
                    torch.zeros(1, device="cuda")
                    torch.cuda.synchronize()
            elif waiting:
                _load(waiting.pop(0))
            else:
                time.sleep(0.005)
        if time.monotonic() > until:
            os._exit(0)


def main(arguments: list[str]) -> int:
    """Serves the socket whose path, descriptor and lock ``arguments`` name; runs the job in a fork. Returns the exit status."""
    path, end, lock = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    for inherited in (end, lock):
        os.set_inheritable(inherited, False)
    job = ForkServer(socket.socket(fileno=end), path, lock).serve()
    if job is None:
        return 0
    from tilescope.jobs.worker import main as worker  # noqa: PLC0415 - as a worker does, once it is one

    status = worker.main([job])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # a script may have closed it
            stream.flush()
    # Skips the clean-up of torch and the driver, as a cold worker does.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
