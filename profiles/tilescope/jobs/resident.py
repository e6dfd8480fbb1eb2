"""The client of the fork server, which keeps torch imported and forks workers: finds it, starts it, asks it.

The server (``tilescope.jobs.worker.fork_server``) serves all jobs of one user with the same Python, environment and limits, from
any process. Without a server, callers start a cold process. ``TILESCOPE_RESIDENT=0`` turns it off. Imports neither torch nor
triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.jobs import ptxas

#: The variable that turns the fork server off when it is ``0``.
SWITCH = "TILESCOPE_RESIDENT"
#: The variable that marks a worker and all processes that it starts, and its placeholder in the fork server.
MARK, UNMARKED = "TILESCOPE_WORKER", "tilescope-scratch-________"
#: Options of Python for a worker, before the file of its job.
WORKER = ("-P", "-m", "tilescope.jobs.worker")
#: The argument that asks a new server for a worker with a CUDA context.
GPU = "gpu"
#: The file beside a job's with its environment and folder.
REQUEST = "request.json"
#: The longest message in bytes.
LONGEST = 64 << 10
#: The longest waits in seconds: for a new server to listen, and for its answer, which comes after its imports.
_LISTENING, _ANSWER = 15.0, 120.0
#: Seconds in which a new server is expected to begin to listen, so that no second one is started.
_COMING = 3.0
_OWN = 0o700
#: Variables that differ between terminals and affect no import, so that terminals share a server. A worker still gets its own.
_NO_MATTER = frozenset(
    {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "TERM", "COLORTERM", "TMPDIR", "PS1", "WINDOWID", "DISPLAY", MARK}
)  # fmt: skip
_NO_MATTER_BEGINNING = (
    "TILESCOPE_", "SSH_", "TERM_", "XDG_SESSION", "VSCODE_", "JPY_", "GIT_", "PYTEST_", "WT_", "TMUX",
)  # fmt: skip


class Started(NamedTuple):
    """A server that this process started, its socket, and its start by ``time.monotonic``."""

    process: subprocess.Popen[bytes]
    path: Path
    at: float


#: Reasons of a server that cannot fork; this process's workers then start cold.
_refused: list[str] = []
#: Servers that this process started, and must wait for when they end.
_started: list[Started] = []


class Forked:
    """A worker of the fork server, with the part of ``asyncio.subprocess.Process`` that a supervisor needs."""

    def __init__(self, connection: socket.socket, pid: int, rest: bytes) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection
        self._end = asyncio.ensure_future(self._hear(rest))

    async def wait(self) -> int:
        """The exit status, negative for a signal, once it has ended."""
        return await asyncio.shield(self._end)

    async def _hear(self, said: bytes) -> int:
        loop = asyncio.get_running_loop()
        while b"\n" not in said:
            piece = b""
            with contextlib.suppress(OSError):
                piece = await loop.sock_recv(self._connection, LONGEST)
            if not piece:
                break
            said += piece
        self._connection.close()
        # Workers die with their server.
        status = -signal.SIGKILL
        with contextlib.suppress(ValueError, KeyError, TypeError):
            status = int(json.loads(said)["status"])
        self.returncode = int(status)
        return int(status)

    def close(self) -> None:
        """Closes the connection, which ends the worker."""
        self._end.cancel()
        self._connection.close()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A worker's environment: this process's, the paths of the packages, the assembler, and ``more``."""
    return {**os.environ, **ptxas.environment(), "PYTHONPATH": _python_path(), **(more or {})}


def prepare(gpu: bool = False) -> None:
    """Starts a fork server in the background, if there is none. Returns at once and never raises.

    With ``gpu`` the server also prepares a worker with a CUDA context, where there is a GPU.
    """
    with contextlib.suppress(Exception):
        variables = environment()
        path = _socket(variables)
        if path and not _listens(path):
            _start(path, variables, gpu)


async def fork(job: Path, variables: Mapping[str, str], output: int, gpu: bool = False) -> Forked | None:
    """A forked worker on the job in the file ``job``, with output to ``output``; None where it must be started cold.

    ``variables`` is its whole environment; ``gpu`` says whether it will use one. Cancelling ends the worker.
    """
    path = _socket(variables)
    if path is None:
        return None
    try:
        asked = {"job": str(job), "environment": dict(variables), "folder": str(Path.cwd())}
        job.with_name(REQUEST).write_text(json.dumps(asked))
    except OSError:  # a cold worker reports it, or does not need the file
        return None
    for _ in range(3):  # a server may be ending, and the next one too if a file has just been edited
        connection = await _connection(path, variables)
        if connection is None:
            return None
        try:
            answer, rest = await _ask(connection, {"job": str(job), "gpu": gpu}, output)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError | ValueError):
                raise
            continue
        if "pid" in answer:
            return Forked(connection, int(answer["pid"]), rest)
        connection.close()
        if "refused" in answer:
            _refused.append(str(answer["refused"]))
            return None
    return None


def say(connection: socket.socket, what: Mapping[str, Any]) -> None:
    """Writes one message."""
    connection.sendall(json.dumps(what).encode() + b"\n")


def peer(connection: socket.socket) -> int:
    """The user at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


async def _ask(connection: socket.socket, what: Mapping[str, Any], output: int) -> tuple[dict[str, Any], bytes]:
    """The answer, and the bytes after it. Raises OSError where none comes."""
    socket.send_fds(connection, [json.dumps(what).encode()], [output])
    loop, said = asyncio.get_running_loop(), b""
    async with asyncio.timeout(_ANSWER):
        while b"\n" not in said:
            piece = await loop.sock_recv(connection, LONGEST)
            if not piece:
                raise ConnectionResetError
            said += piece
    line, _, rest = said.partition(b"\n")
    return json.loads(line), rest


async def _connection(path: Path, variables: Mapping[str, str]) -> socket.socket | None:
    """A connection to the server, which is started if there is none; None where it does not start."""
    if found := connected(path):
        return found
    started = _start(path, variables)
    loop = asyncio.get_running_loop()
    limit = loop.time() + _LISTENING
    while started is not None and loop.time() < limit:
        await asyncio.sleep(0.02)
        if found := connected(path):
            return found
        # It ends with status 0 if another server listens already, or if an imported file was edited after a request.
        if started.poll():
            return None
        if started.poll() == 0:
            started = _start(path, variables)
    return None


def connected(path: Path) -> socket.socket | None:
    """A connection to this user's server at ``path``; None where there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
        if peer(connection) == os.getuid():
            connection.setblocking(False)
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _listens(path: Path) -> bool:
    found = connected(path)
    if found:
        found.close()
    return found is not None


def _start(path: Path, variables: Mapping[str, str], gpu: bool = False) -> subprocess.Popen[bytes] | None:
    """Starts the server in a session of its own, because it outlives this process; None where it cannot be started."""
    _started[:] = [server for server in _started if server.process.poll() is None]
    now = time.monotonic()
    if coming := [server for server in _started if server.path == path and now - server.at < _COMING]:
        return coming[-1].process
    command = [sys.executable, "-P", "-m", "tilescope.jobs.worker.fork_server", str(path), *([GPU] if gpu else [])]
    null = subprocess.DEVNULL
    try:
        started = subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, cwd="/", env={**variables, MARK: UNMARKED},
            start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
    _started.append(Started(started, path, now))
    return started


def _socket(variables: Mapping[str, str]) -> Path | None:
    """The socket of the server for this environment; None where no server is to be used."""
    if variables.get(SWITCH, "1") == "0" or sys.platform != "linux" or _refused:
        return None
    with contextlib.suppress(OSError):  # /proc may lack what a key needs
        if folder := _folder():
            return folder / f"{_key(variables)}.socket"
    return None


def _folder() -> Path | None:
    """A folder that only this user can read; None where there is none."""
    place = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(place) / f"tilescope-resident-{os.getuid()}"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=_OWN)
        seen = folder.lstat()
        private = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and stat.S_IMODE(seen.st_mode) == _OWN
        # The path of a socket is limited to about a hundred characters.
        return folder if private and len(str(folder)) < 70 else None
    return None


def _key(variables: Mapping[str, str]) -> str:
    """The digest of everything that a fork inherits and cannot change: Python, variables read at import, limits, groups."""
    decisive = {
        name: value
        for name, value in variables.items()
        if name not in _NO_MATTER and not name.startswith(_NO_MATTER_BEGINNING)
    }
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    spaces = [str(Path("/proc/self/ns", name).readlink()) for name in ("mnt", "pid", "net", "user")]
    groups = Path("/proc/self/cgroup").read_text()
    umask = next((text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("Umask")), "")
    process = [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), os.getgroups(), umask]
    roots = str(Path(__file__).resolve().parents[1])
    known = [sys.executable, sys.version, roots, sorted(decisive.items()), limits, spaces, groups, process]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def _python_path() -> str:
    """The parent's ``PYTHONPATH`` and the folders of the packages, which need not be installed."""
    roots = [str(Path(__file__).resolve().parents[2])]
    kernels = importlib.util.find_spec("tilescope_kernels")
    roots += [str(Path(root).parent) for root in (kernels.submodule_search_locations or [])] if kernels else []
    existing = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(dict.fromkeys(filter(None, [*existing.split(os.pathsep), *roots])))
