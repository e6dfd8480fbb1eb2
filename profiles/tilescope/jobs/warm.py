"""Who keeps what warm, so that no job waits for the imports of torch and Triton.

- The *fork server* (``tilescope.jobs.worker.fork_server``) has them imported and forks a worker for each job. It serves all
  processes of one user with the same Python, environment and limits. It ends when an imported file changes, and after five
  idle minutes.
- A *standby worker* (``supervisor.stand_by``) runs under a wrapper such as ncu, which starts its program itself. A job starts it
  while its other collectors measure. A command that used one leaves another for the next command (``kept_standby``).

Any other worker starts cold, and so does every worker with ``TILESCOPE_RESIDENT=0``. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope.files import installed
from tilescope.jobs import triton_setup

#: The variable that turns the fork server and standby workers off when it is ``0``.
SWITCH = "TILESCOPE_RESIDENT"
#: The variable that marks a worker and all processes that it starts.
MARK = "TILESCOPE_WORKER"
#: Options of Python for a worker, before the file of its job.
WORKER = ("-P", "-m", "tilescope.jobs.worker")
#: The file that the users of a worker's temporary folder lock.
LOCK = "lock"
#: The file in that folder for which a job or a part of it may wait.
GO = "go"
#: The worker's argument for standby; the id of the process that it dies with follows, 0 for none.
STAND_BY = "stand-by"
#: The file by which a kept worker learns that its job is near.
WAKE = "wake"
#: Variables that differ between terminals and affect no import, so that terminals share a server. A worker still gets its own.
_NO_MATTER = frozenset(
    {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "TERM", "COLORTERM", "TMPDIR", "PS1", "WINDOWID", "DISPLAY", MARK}
)  # fmt: skip
_NO_MATTER_BEGINNING = (
    "TILESCOPE_", "SSH_", "TERM_", "XDG_SESSION", "VSCODE_", "JPY_", "GIT_", "PYTEST_", "WT_", "TMUX",
)  # fmt: skip
#: Lines of a process's status that a fork inherits and cannot change.
_LIMITS = ("Umask", "Groups", "Cpus_allowed", "NoNewPrivs", "Seccomp:", "Cap")
#: Fork servers that this process started, and must wait for when they end.
servers: list[subprocess.Popen[bytes]] = []
#: Reasons of servers that cannot fork; this process's workers then start cold.
refusals: list[str] = []


class Forked:
    """A worker of the fork server, with the part of ``asyncio.subprocess.Process`` that a supervisor needs."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid, self._reader, self._writer = pid, reader, writer
        self.returncode: int | None = None
        self._end = asyncio.ensure_future(self._ended())

    async def wait(self) -> int:
        """The exit status, negative for a signal, once it has ended."""
        return await asyncio.shield(self._end)

    async def _ended(self) -> int:
        status = -signal.SIGKILL  # workers die with their server
        with contextlib.suppress(OSError, ValueError, KeyError):
            status = json.loads(await self._reader.readline())["status"]
        self.returncode = int(status)
        return self.returncode

    def close(self) -> None:
        """Closes the connection, which ends the worker."""
        self._end.cancel()
        self._writer.close()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """A worker's environment: this process's, the paths of the packages, the assembler, and ``more``."""
    roots = [str(Path(__file__).resolve().parents[2])]
    roots += [str(root.parent) for root in installed.folders_of("tilescope_kernels")]
    searched = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *roots]
    path = os.pathsep.join(dict.fromkeys(filter(None, searched)))
    return {**os.environ, **triton_setup.environment(), "PYTHONPATH": path, **(more or {})}


def prepare() -> None:
    """Starts a fork server in the background, if there is none. Returns at once and never raises."""
    with contextlib.suppress(Exception):
        variables = environment()
        if (path := socket_path(variables)) and (connection := _connection(path, variables)):
            connection.close()


async def fork(job: Path, variables: Mapping[str, str], files: Sequence[int]) -> Forked | None:
    """A forked worker on the job in the file ``job``; None where it must be started cold.

    ``files`` are its standard input, output and error, ``variables`` its whole environment. Cancelling ends the worker.
    """
    path = socket_path(variables)
    for _ in range(3):  # a server may be ending, and the next one too if a file has just been edited
        # A new server answers after its imports.
        connection = _connection(path, variables) if path else None
        if connection is None:
            return None
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        answer: dict[str, Any] = {}
        try:
            with contextlib.suppress(OSError, ValueError):
                socket.send_fds(connection, [json.dumps({"job": str(job)}).encode()], files)
                async with asyncio.timeout(120.0):
                    answer = json.loads(await reader.readline())
        finally:
            if "pid" not in answer:
                writer.close()
        if "pid" in answer:
            return Forked(int(answer["pid"]), reader, writer)
        if "refused" in answer:
            refusals.append(str(answer["refused"]))
            return None
    return None


def _connection(path: Path, variables: Mapping[str, str]) -> socket.socket | None:
    """A connection to the server, which is started if there is none; None where it cannot be started."""
    for attempt in range(2):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
        with contextlib.suppress(OSError):
            if attempt == 0:
                _start(path, variables)
    return None


def _start(path: Path, variables: Mapping[str, str]) -> None:
    """Starts the server on a socket that listens already, unless another process has just done so. Raises OSError.

    The server has a session of its own, because it outlives this process.
    """
    servers[:] = [server for server in servers if server.poll() is None]
    null = subprocess.DEVNULL
    with path.with_suffix(".lock").open("a") as lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        listening.listen(64)
        ends = (listening.fileno(), lock.fileno())
        command = [sys.executable, "-P", "-m", "tilescope.jobs.worker.fork_server", str(path), *map(str, ends)]
        servers.append(subprocess.Popen(
            command, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True, pass_fds=ends,
            env={name: value for name, value in variables.items() if name != MARK},
        ))  # fmt: skip


def socket_path(variables: Mapping[str, str]) -> Path | None:
    """The socket of the server for this environment, in a folder that only this user can enter; None without a server."""
    if variables.get(SWITCH, "1") == "0" or sys.platform != "linux" or refusals:
        return None
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"tilescope-resident-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        seen = folder.lstat()
        private = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and stat.S_IMODE(seen.st_mode) == 0o700
        # The path of a socket is limited to about a hundred characters.
        if private and len(str(folder)) < 70:
            return folder / f"{key(variables)}.socket"
    return None


def key(variables: Mapping[str, str]) -> str:
    """The digest of everything that a fork inherits and cannot change: Python, variables read at import, limits, groups."""
    decisive = {
        name: value
        for name, value in variables.items()
        if name not in _NO_MATTER and not name.startswith(_NO_MATTER_BEGINNING)
    }
    status = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(_LIMITS)]
    limits = [*status, *(Path("/proc/self", name).read_text() for name in ("limits", "cgroup"))]
    spaces = [str(Path("/proc/self/ns", name).readlink()) for name in ("mnt", "pid", "net", "user")]
    place = [sys.executable, sys.version, str(Path(__file__).resolve().parents[1])]
    known = [place, sorted(decisive.items()), limits, spaces, os.getpriority(os.PRIO_PROCESS, 0)]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
