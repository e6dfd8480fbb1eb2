"""Workers forked from a process that stays and has torch imported: found, started when there is none, and asked.

The fork server (``tilescope.jobs.worker.fork_server``) serves every job of one person with the same Python, environment and
limits, of this process or another. Where there is none to be had, callers start a cold process. ``TILESCOPE_RESIDENT=0`` turns
it off.
Imports neither torch nor triton.
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

#: Turns the fork server off when it is ``0``.
SWITCH = "TILESCOPE_RESIDENT"
#: Names a worker in the environment of everything that it starts, and what stands there in the fork server's own.
MARK, UNMARKED = "TILESCOPE_WORKER", "tilescope-scratch-________"
#: Options of Python for a worker, before the file of its job.
WORKER = ("-P", "-m", "tilescope.jobs.worker")
#: Asks a server that is started for a worker that is ready for the GPU.
GPU = "gpu"
#: The file beside a job's that says in which environment and folder it is to be done.
REQUEST = "request.json"
#: Longest message in bytes.
LONGEST = 64 << 10
#: Longest waits in seconds: for a server that is being started to listen, and for its answer, which its imports come before.
_LISTENING, _ANSWER = 15.0, 120.0
#: Seconds for which a server that was started and does not listen is taken for one that will.
_COMING = 3.0
_OWN = 0o700
#: Variables that differ from terminal to terminal and decide nothing that is imported. A worker gets its own all the same.
_NO_MATTER = frozenset(
    {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "TERM", "COLORTERM", "TMPDIR", "PS1", "WINDOWID", "DISPLAY", MARK}
)  # fmt: skip
_NO_MATTER_BEGINNING = (
    "TILESCOPE_", "SSH_", "TERM_", "XDG_SESSION", "VSCODE_", "JPY_", "GIT_", "PYTEST_", "WT_", "TMUX",
)  # fmt: skip


class Started(NamedTuple):
    """A server that this process started, for which socket, and when by ``time.monotonic``."""

    process: subprocess.Popen[bytes]
    path: Path
    at: float


#: Why this process's workers start cold, once a server has said that it cannot fork.
_refused: list[str] = []
#: Servers that this process started; waited for when they have ended.
_started: list[Started] = []


class Forked:
    """A worker of the fork server: as much of ``asyncio.subprocess.Process`` as a supervisor needs."""

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
        # A server that is gone took its workers along.
        status = -signal.SIGKILL
        with contextlib.suppress(ValueError, KeyError, TypeError):
            status = int(json.loads(said)["status"])
        self.returncode = int(status)
        return int(status)

    def close(self) -> None:
        """Lets go of the worker, which ends if it has not."""
        self._end.cancel()
        self._connection.close()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A worker's environment: this process's, where to find the packages, which assembler to use, and ``more``."""
    return {**os.environ, **ptxas.environment(), "PYTHONPATH": _python_path(), **(more or {})}


def prepare(gpu: bool = False) -> None:
    """Has a fork server started in the background, if there is none. Returns at once and never raises.

    ``gpu`` says that what comes will be measured, where there is a GPU: the server then has a worker ready that has a context.
    """
    with contextlib.suppress(Exception):
        variables = environment()
        path = _socket(variables)
        if path and not _listens(path):
            _start(path, variables, gpu)


async def fork(job: Path, variables: Mapping[str, str], output: int, gpu: bool = False) -> Forked | None:
    """A worker on the job in the file ``job``, whose output goes to ``output``. None where it has to be started cold.

    ``variables`` is its whole environment; ``gpu`` says that it will use one. Cancelling ends the worker.
    """
    path = _socket(variables)
    if path is None:
        return None
    try:
        asked = {"job": str(job), "environment": dict(variables), "folder": str(Path.cwd())}
        job.with_name(REQUEST).write_text(json.dumps(asked))
    except OSError:  # a cold one says what is wrong, or does without
        return None
    for _ in range(3):  # one may be ending, and the next one's files may be edited just now
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
    """The answer, and what came after it. Raises OSError where none comes."""
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
    """A connection to the server, which is started if there is none; None where it does not come up."""
    if found := connected(path):
        return found
    started = _start(path, variables)
    loop = asyncio.get_running_loop()
    limit = loop.time() + _LISTENING
    while started is not None and loop.time() < limit:
        await asyncio.sleep(0.02)
        if found := connected(path):
            return found
        # It ends with status 0 where another one was quicker, which then listens, and where it has been asked before and a file
        # that it had imported was edited since.
        if started.poll():
            return None
        if started.poll() == 0:
            started = _start(path, variables)
    return None


def connected(path: Path) -> socket.socket | None:
    """A connection to the server that listens at ``path`` and is this person's; None where there is none."""
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
    """The server's process, in a session of its own: it outlives this one."""
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
    """Where the server for that environment listens; None where there is to be none."""
    if variables.get(SWITCH, "1") == "0" or sys.platform != "linux" or _refused:
        return None
    with contextlib.suppress(OSError):  # of a system that does not tell what a key is of
        if folder := _folder():
            return folder / f"{_key(variables)}.socket"
    return None


def _folder() -> Path | None:
    """A folder that nobody else can look into; None where there is none."""
    place = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(place) / f"tilescope-resident-{os.getuid()}"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=_OWN)
        seen = folder.lstat()
        private = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and stat.S_IMODE(seen.st_mode) == _OWN
        # A socket's address has room for about a hundred characters.
        return folder if private and len(str(folder)) < 70 else None
    return None


def _key(variables: Mapping[str, str]) -> str:
    """A digest of all that a fork has from its server and cannot change: Python, variables read at import, limits, groups."""
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
