"""The fork server: keeps torch and Triton imported, and forks a worker for each job in milliseconds.

``python -P -m tilescope.jobs.worker.fork_server SOCKET [gpu]`` starts one, which ``tilescope.jobs.resident`` does. It never uses a
GPU and imports no kernel, so that a worker begins like a new process with the caller's environment, folder and output. A worker
dies with the server, and with its client. For later requests on the GPU, or if started for them, the server prepares a worker
with a CUDA context (``tilescope.jobs.worker.ready``).

The server retires when an imported file changes, after ``IDLE`` seconds without work, and when ``MOST`` newer ones run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tilescope.execution.parentage import die_with
from tilescope.jobs import resident, standby
from tilescope.jobs.worker import ready
from tilescope.jobs.worker.imported_files import ImportedFiles

#: Seconds without a worker after which the server ends.
IDLE = 600.0
#: The most servers of one user: each holds half a gigabyte, and every change of a variable starts a new one.
MOST = 3
#: Seconds that a client has to send its request, which it has ready when it connects.
_ASKING = 2.0
#: Modules that every worker imports. Nothing is forked before them.
_FIRST = ("torch", "triton", "triton.language", "tilescope.execution.execute")
_DIGESTED = "triton.runtime.cache"
#: Modules that most workers import. Workers are forked between these imports too.
_THEN = (
    _DIGESTED, "tilescope.jobs.worker.main", "tilescope.captures.replay", "tilescope.execution.launches",
    "tilescope.execution.offline", "tilescope.collectors.check", "tilescope.collectors.compiler",
    "tilescope.collectors.cupti.counters", "tilescope.collectors.events", "tilescope.collectors.interpreter",
    "tilescope.collectors.torch_profiler", "tilescope.interpreter.interpret", "torch.autograd.profiler",
    "tilescope.tuning.race", "tilescope.tuning.compile_pool", "triton.experimental.gluon",
    "tilescope_kernels._shared.online_softmax", "tilescope_kernels._shared.operators", "tilescope_kernels._shared.row_ring",
    "tilescope_kernels._shared.row_tiles",
)  # fmt: skip
#: PyTorch's import for the first gradient of a process, done during the first job on the GPU, when requests are rare.
_MEANWHILE = ("torch.fx.experimental.symbolic_shapes",)
#: torch.compile's imports, done after ``_SPARE`` seconds without a request, because a request has to wait for them. ``_LATER`` may
#: open a GPU: where there may be one, each worker imports it itself, and ``_COMPILER`` waits for ``_UNASKED`` seconds, so that it
#: does not delay a person at work.
_COMPILER, _LATER = ("torch._dynamo",), ("torch._inductor.compile_fx",)
_SPARE, _UNASKED = 2.0, 20.0


@dataclass
class Client:
    """A client's connection, and the process of its worker."""

    connection: socket.socket
    pid: int = 0


class ForkServer:
    """Accepts requests from ``listening``. ``serve`` returns in every worker, and in the server at its end."""

    def __init__(self, listening: socket.socket, path: Path, lock: int, gpu: bool = False) -> None:
        self._listening: socket.socket | None = listening
        self._path, self._lock = path, lock
        self._clients: list[Client] = []
        self._mark = _mark_address()
        self._woken, self._wake = socket.socketpair()
        self._imported, self._pid = ImportedFiles(), os.getpid()
        self._failed = self._refusal = ""
        self._ready: ready.ReadyWorker | None = None
        self._gpu_wanted, self._gpu_used = gpu and ready.DRIVER.exists(), False
        self._quiet = time.monotonic()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> dict[str, Any] | None:
        """The request of this process in a worker; None in the server at its end."""
        waiting, later, spare = [*_FIRST, *_THEN], [*_COMPILER, *_LATER], _SPARE
        meanwhile: list[str] = []
        if ready.DRIVER.exists():
            later, spare = [*_COMPILER], _UNASKED
            meanwhile = [*_MEANWHILE] if standby.roomy() else []
        while self._listening or self._clients:
            left = None if self._clients else max(0.0, self._quiet + IDLE - time.monotonic())
            able = len(waiting) <= len(_THEN)
            soon = waiting or (self._gpu_wanted and not self._clients)
            keys = self._poll(0.0 if soon else spare if later else left, accept=able)
            for request in self._attend(keys):
                return request
            if self._gpu_used:
                waiting, meanwhile = [*waiting, *meanwhile], []
            if waiting:
                self._import(waiting.pop(0))
            elif self._gpu_wanted and self._listening and not self._clients:
                if (given := self._make_ready()) is not None:
                    return given
            elif later and not keys and not self._clients:
                self._import(later.pop(0))
            elif not keys and not self._clients and time.monotonic() >= self._quiet + IDLE:
                self._retire()
        return None

    def _import(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
            if name == _DIGESTED:
                # Triton's cache key, whose first computation takes half a second.
                module.triton_key()
        except Exception as error:  # a worker that imports the module itself reports it
            if name in _FIRST and not self._failed:
                self._failed = f"{name} does not import: {type(error).__name__}"
        self._imported.add()
        self._refusal = self._failed or _unsafe()
        # Freezes permanent objects, so that garbage collection in a worker does not touch and copy their pages.
        gc.collect()
        gc.freeze()

    def _poll(self, timeout: float | None, *, accept: bool) -> list[Any]:
        # Not epoll, which forks would share.
        with selectors.PollSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, "woken")
            if self._listening and accept:
                selector.register(self._listening, selectors.EVENT_READ, "new")
            for client in self._clients:
                selector.register(client.connection, selectors.EVENT_READ, client)
            return [key.data for key, _ in selector.select(timeout)]

    def _attend(self, keys: list[Any]) -> list[dict[str, Any]]:
        """Handles the connections' requests. Returns a list of one request in a worker, an empty one in the server."""
        for key in keys:
            if key == "woken":
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key == "new":
                request = self._accept()
                if request is not None:
                    return [request]
            else:
                self._hear(key)
        self._reap()
        return []

    def _accept(self) -> dict[str, Any] | None:
        assert self._listening is not None  # noqa: S101 - it is looked at only while it is there
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection, _ = self._listening.accept()
            try:
                connection.settimeout(_ASKING)
                return self._answer(connection)
            except BaseException:
                connection.close()
                raise
        return None

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        """Forks a worker, or answers why not. Returns the request in the worker, None in the server."""
        if resident.peer(connection) != os.getuid():
            connection.close()
            return None
        said, files, _, _ = socket.recv_fds(connection, resident.LONGEST, 1)
        try:
            request: dict[str, Any] = json.loads(said)
            if request.get("leave"):
                self._retire()
            elif changed := self._imported.changed():
                self._retire()
                resident.say(connection, {"stale": changed})
            elif self._refusal:
                resident.say(connection, {"refused": self._refusal})
            elif files and request.get("job"):
                return self._fork(connection, request, files[0])
            connection.close()
            return None
        finally:
            for file in files:
                os.close(file)

    def _fork(self, connection: socket.socket, request: dict[str, Any], output: int) -> dict[str, Any] | None:
        self._quiet = time.monotonic()
        asked, self._gpu_wanted = _asked(request), bool(request.get("gpu"))
        self._gpu_used |= self._gpu_wanted
        waiting = self._ready if self._gpu_wanted else None
        if waiting and waiting.give(request, output):
            pid, self._ready = waiting.pid, None
        else:
            pid = os.fork()
        if pid == 0:
            connection.close()
            self._leave_server()
            return self._become_worker(asked, output)
        with contextlib.suppress(OSError):
            os.utime(self._path)
        client = Client(connection, pid)
        self._clients.append(client)
        with contextlib.suppress(OSError):  # a closed connection is noticed at the next poll
            resident.say(connection, {"pid": pid})
        return None

    def _make_ready(self) -> dict[str, Any] | None:
        """Forks a worker that prepares a CUDA context. Returns its request in that worker, None in the server."""
        self._gpu_wanted = False
        if self._ready:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._leave_server()
            ready.prepare()
            request, output = ready.wait(theirs)
            return self._become_worker(_asked(request), output)
        theirs.close()
        self._ready = ready.ReadyWorker(pid, ours)
        return None

    def _leave_server(self) -> None:
        """Closes the server's descriptors in a fork, and makes the fork end with the server."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(self._pid)
        others = [client.connection for client in self._clients] + ([self._ready.connection] if self._ready else [])
        for end in (self._listening, self._woken, self._wake, *others):
            if end is not None:
                end.close()
        os.close(self._lock)

    def _become_worker(self, asked: dict[str, Any], output: int) -> dict[str, Any]:
        """Gives a fork the state of ``python -m tilescope.jobs.worker``. Returns the request."""
        null = os.open(os.devnull, os.O_RDONLY)
        for given, number in ((null, 0), (output, 1), (output, 2)):
            os.dup2(given, number)
        os.close(null)
        os.environ.clear()
        os.environ.update(asked["environment"])
        self._sign(asked["environment"].get(resident.MARK, ""))
        tempfile.tempdir = None
        os.chdir(asked["folder"])
        sys.argv[:] = ["-m", asked["job"]]
        sys.orig_argv[:] = [sys.executable, *resident.WORKER, asked["job"]]
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # so that workers do not all draw the same numbers
        return asked

    def _sign(self, mark: str) -> None:
        """Writes the mark into the environment in /proc, which is the one that the process was started with."""
        said = mark.encode()
        if self._mark and len(said) == len(resident.UNMARKED):
            ctypes.memmove(self._mark, said, len(said))

    def _hear(self, client: Client) -> None:
        """Kills the worker of a closed client. A client sends nothing more, so its connection is only readable when it closes."""
        with contextlib.suppress(OSError):
            if client.connection.recv(4096):
                return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(client.pid, signal.SIGKILL)
        client.connection.close()
        self._clients.remove(client)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._ready and pid == self._ready.pid:
                self._ready.connection.close()
                self._ready = None
            self._quiet = time.monotonic()
            for client in [client for client in self._clients if client.pid == pid]:
                with contextlib.suppress(OSError):
                    resident.say(client.connection, {"status": os.waitstatus_to_exitcode(status)})
                client.connection.close()
                self._clients.remove(client)

    def _retire(self) -> None:
        """Stops accepting requests; the next one starts another server. Running workers finish."""
        if self._listening is not None:
            self._path.unlink(missing_ok=True)
            self._listening.close()
            self._listening = None
            fcntl.flock(self._lock, fcntl.LOCK_UN)


def _asked(request: dict[str, Any]) -> dict[str, Any]:
    """The request beside the job's file: the job, its environment and its folder."""
    found: dict[str, Any] = json.loads(Path(request["job"]).with_name(resident.REQUEST).read_text())
    return found


def _unsafe() -> str:
    """The reason why a fork of this process may not work; empty where there is none."""
    if threading.active_count() > 1:
        return "an import started a thread"
    with contextlib.suppress(OSError):
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith("/dev/nvidia"):
                    return "an import opened the GPU"
    return ""


def _mark_address() -> int:
    """The address of the mark in this process's first environment, which /proc shows; 0 where it is not found."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    address = getenv(resident.MARK.encode())
    same = address and os.environ.get(resident.MARK, "") == resident.UNMARKED
    return int(address) if same else 0


def _listen(path: Path) -> tuple[socket.socket, int] | None:
    """The socket at ``path`` and its lock; None where another server has it."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(64)
    return listening, lock


def _make_room(own: Path) -> None:
    """Asks the least recently used servers to end, until ``MOST`` are left with the one at ``own``."""
    others = [(path.stat().st_mtime, path) for path in own.parent.glob("*.socket") if path != own]
    for _, path in sorted(others, reverse=True)[MOST - 1 :]:
        # A killed server leaves its socket and does not answer.
        if connection := resident.connected(path):
            with connection, contextlib.suppress(OSError):
                resident.say(connection, {"leave": True})


def _end(status: int) -> NoReturn:
    """Ends a worker as Python does, without the clean-up of modules, which takes as long as a small case."""
    threading._shutdown()  # type: ignore[attr-defined]
    # Hundreds of PyTorch's operators would be removed from a registry that ends anyway.
    for finalizer, info in list(getattr(weakref.finalize, "_registry", {}).items()):
        if info.func.__module__ == "torch.library":
            finalizer.atexit = False
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def main(arguments: list[str]) -> int:
    """Serves the socket that ``arguments`` names; runs the job in a fork. Returns the exit status."""
    held = _listen(Path(arguments[0]))
    if held is None:
        return 0
    server = ForkServer(held[0], Path(arguments[0]), held[1], resident.GPU in arguments[1:])
    with contextlib.suppress(OSError):  # a socket may vanish meanwhile
        _make_room(Path(arguments[0]))
    request = server.serve()
    if request is None:
        return 0
    from tilescope.jobs.worker import main as worker  # noqa: PLC0415 - as a worker does, once it is one

    _end(worker.main([request["job"]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
