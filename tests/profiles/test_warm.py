"""Forked and standby workers behave like cold ones, whatever happens to them, to their server and to their client."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tilescope.jobs import kept_standby, process, supervisor, warm
from tilescope.jobs.job import Job
from tilescope.jobs.process import Standby, WorkerProcess
from tilescope.jobs.worker import fork_server
from tilescope.runs import store

from .conftest import FIXTURES, search
from .fake_jobs import CLIENT, OWN, cases, registers, run
from .processes import alive, wait_for

#: Prints what a process can know of itself, and leaves a daemon behind.
LOOKS = """
import json, os, pathlib, subprocess, sys, time
said = {
    "folder": os.getcwd(), "variable": os.environ.get("HERE"), "argv": sys.argv[1:] and len(sys.argv),
    "orig": sys.orig_argv[:-1], "leads": os.getpgid(0) == os.getpid(), "in": os.readlink("/proc/self/fd/0"),
    "path": sys.path, "temporary": os.environ["TMPDIR"] == __import__("tempfile").gettempdir(),
    "handled": __import__("signal").getsignal(17) == 0, "umask": os.umask(0),
}
print(json.dumps(said), flush=True)
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
pathlib.Path(__file__).with_suffix(".pid").write_text(str(child.pid))
"""


@pytest.fixture
def forking(kit, resident):
    """The fakes, with a fork server of this test's own."""


def asked(kernel, **more):
    """The events, the log and the process of a question about a kernel's file."""

    async def ask():
        job = {"action": "describe", "kernels": [kernel], "workloads": []}
        async with WorkerProcess(job, None, more) as worker:
            events = [event async for event in worker.events(240)]
            return events, worker.log(), worker

    return asyncio.run(ask())


def test_one_server_forks_all_and_deaths_cost_one_case(forking, catalog, tmp_path):
    pids = tmp_path / "pids"
    loaded, _ = run(catalog, ("good", "noisy", "exits", "segfaults", "killed", "lingers"), pids=str(pids))
    assert sorted(registers(loaded)) == ["good", "lingers", "noisy"]
    said = {failure.case.split("/forward")[0].rpartition("/")[2]: failure.message for failure in loaded.run.failures}
    assert "was killed (SIGKILL)" in said["killed"] and "crashed (SIGSEGV)" in said["segfaults"]
    assert loaded.run.complete and len(warm.servers) == 1
    assert len(set(pids.read_text().split())) > 3
    wait_for(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def test_forked_worker_is_like_a_cold_one(forking, tmp_path, monkeypatch):
    file = tmp_path / "looks.py"
    file.write_text(LOOKS)
    monkeypatch.chdir(tmp_path)
    said = []
    for switch in ("1", "0"):
        monkeypatch.setenv(warm.SWITCH, switch)
        _, log, worker = asked(f"{file}:SPEC", HERE="there")
        assert worker.forked == (switch == "1")
        said.append(json.loads(next(line for line in log.splitlines() if line.startswith("{"))))
        pid = int(file.with_suffix(".pid").read_text())
        wait_for(lambda pid=pid: not alive(pid))
    assert said[0] == said[1]
    assert said[0]["variable"] == "there" and said[0]["folder"] == str(tmp_path)


def test_server_killed_at_work_costs_no_case(forking, catalog, monkeypatch):
    seen = []

    def hear(event):
        if event["event"] == "case" and "/hangs/" in event["case"] and not seen:
            seen.append(warm.servers[0].pid)
            monkeypatch.setenv("FAKES_ANSWER", "1")
            warm.servers[0].kill()

    job = Job(cases("good", "hangs", "fine"), ("fakes.quick",), {}, catalog=catalog)
    loaded = store.open_run(asyncio.run(supervisor.run(job, hear)))
    assert seen and loaded.run.complete and not loaded.run.failures
    assert sorted(registers(loaded)) == ["fine", "good", "hangs"]


def test_worker_dies_with_its_client_and_the_server_stays(forking, catalog, tmp_path):
    pids = tmp_path / "pids"
    warm.prepare()
    arguments = [sys.executable, "-c", CLIENT, str(pids), json.dumps(catalog), "hangs"]
    with subprocess.Popen(arguments, env=warm.environment()) as parent:
        wait_for(lambda: pids.is_file() and pids.read_text().endswith("\n"))
        parent.send_signal(signal.SIGKILL)
    (worker,) = map(int, pids.read_text().split())
    wait_for(lambda: not alive(worker))
    assert warm.servers[0].poll() is None


def test_edited_import_starts_another_server(forking, tmp_path, monkeypatch):
    shutil.copytree(FIXTURES / "light" / "torch", tmp_path / "light" / "torch")
    file = tmp_path / "light" / "torch" / "__init__.py"
    monkeypatch.setenv("PYTHONPATH", search(tmp_path / "light"))
    looks = tmp_path / "looks.py"
    looks.write_text("import torch\nprint('torch', getattr(torch, 'EDITED', 0), flush=True)\nSPEC = 1\n")
    os.utime(file, (1, 1))  # as old as installed files are
    assert "torch 0" in asked(f"{looks}:SPEC")[1]
    file.write_text(f"{file.read_text()}\nEDITED = 7\n")
    _, log, worker = asked(f"{looks}:SPEC")
    assert "torch 7" in log and worker.forked
    # A user's own file is never in the server.
    looks.write_text(looks.read_text().replace("'torch'", "'edited'"))
    assert "edited 7" in asked(f"{looks}:SPEC")[1]


def test_heir_is_made_while_a_job_waits_and_none_has_begun(forking, tmp_path):
    file = tmp_path / "waits.py"
    file.write_text("import time\ntime.sleep(300)\n")
    job = {"action": "describe", "kernels": [f"{file}:SPEC"], "workloads": [], "waits": True}

    def children():
        (server,) = warm.servers
        return Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()

    async def wait(begun):
        async with WorkerProcess(job) as worker:
            if begun:
                worker.let_go()
                await asyncio.sleep(2.5 * fork_server._SPARE)
            else:
                await asyncio.to_thread(wait_for, lambda: len(children()) > 1, 30)
            return children() == [str(worker.pid)]

    assert asyncio.run(wait(begun=True)), "what it measures is not disturbed"
    assert not asyncio.run(wait(begun=False))


def test_heir_serves_in_the_servers_place_and_dies_with_it(forking, tmp_path):
    file = tmp_path / "parent.py"
    file.write_text("import os\nprint('parent', os.getppid(), flush=True)\n")

    def parent():
        _, log, worker = asked(f"{file}:SPEC")
        assert worker.forked and len(warm.servers) == 1
        return int(log.partition("parent ")[2].split()[0])

    server = parent()
    assert server == warm.servers[0].pid
    wait_for(Path(f"/proc/{server}/task/{server}/children").read_text)
    wait_for(lambda: parent() != server)
    heir = parent()
    warm.servers[0].kill()
    wait_for(lambda: not alive(heir))


def test_workers_start_cold_without_private_folder_or_torch(forking, tmp_path, monkeypatch):
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / f"tilescope-resident-{os.getuid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    events, _, worker = asked(OWN)
    assert [event["event"] for event in events] == ["ready", "catalog", "done"] and not worker.forked
    folder.chmod(0o700)
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    events, _, worker = asked(OWN)
    assert "half installed" in events[-1]["message"] and not worker.forked
    assert warm.refusals == ["torch does not import: RuntimeError"]


def test_capture_starts_the_server_first(forking):
    import tilescope

    with tilescope.capture("sm_90"):
        assert len(warm.servers) == 1


def test_idle_server_ends_and_removes_its_socket(forking, monkeypatch, tmp_path):
    code = """
import sys
from tilescope.jobs import warm
from tilescope.jobs.worker import fork_server
if "-c" in sys.orig_argv[:4] and len(sys.argv) > 1:
    fork_server.FIRST, fork_server.THEN, fork_server.LATER, fork_server.IDLE = ("json",), ("csv",), ("csv",), 0.1
    sys.exit(fork_server.main(sys.argv[1:]))
warm.prepare()
"""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening, (tmp_path / "lock").open("w") as lock:
        listening.bind(str(path))
        listening.listen()
        fcntl.flock(lock, fcntl.LOCK_EX)
        ends = (listening.fileno(), lock.fileno())
        command = [sys.executable, "-c", code, str(path), *map(str, ends)]
        assert subprocess.run(command, env=warm.environment(), pass_fds=ends, timeout=300, check=False).returncode == 0
    assert not path.exists()


def test_key_covers_what_a_fork_cannot_change():
    known = {"PATH": "/bin", "TRITON_DEBUG": "0"}
    key = warm.key(known)
    assert warm.key({**known, "SSH_TTY": "1", "TILESCOPE_RUNS": "/x", "TMPDIR": "/y"}) == key
    assert warm.key({**known, "TRITON_DEBUG": "1"}) != key
    before = os.umask(0o27)
    os.umask(before ^ 0o111)
    assert warm.key(known) != key
    os.umask(before)


def wrap(argv, folder):
    """A wrapper that writes into its folder and starts the worker."""
    return ["sh", "-c", f'echo counted > "{folder}/log"; exec "$@"', "wrapper", *argv]


def answered(standby, into, job=None):
    """The id of the process that answers a wrapped job, and its events."""

    async def ask():
        async with WorkerProcess(job or {"action": "nonsense"}, wrap, {}, standby) as worker:
            events = [event async for event in worker.events(240)]
            worker.take_wrapped(into)
            return worker.pid, events

    return asyncio.run(ask())


def test_standby_worker_gets_the_job_and_goes(fakes, tmp_path):
    standby = Standby(wrap, {})
    pid, events = answered(standby, tmp_path)
    standby.end()
    assert pid == standby.process.pid and events[0]["message"] == "KeyError: 'nonsense'"
    assert (tmp_path / "log").read_text() == "counted\n"
    assert not alive(pid) and not standby.place.job.parent.exists()


def test_dead_standby_worker_is_replaced_and_removed(fakes, tmp_path):
    standby = Standby(wrap, {})
    os.killpg(standby.process.pid, signal.SIGKILL)
    wait_for(lambda: standby.process.returncode is not None)
    pid, events = answered(standby, tmp_path)
    assert pid != standby.process.pid and events[0]["event"] == "error"
    standby.end()
    assert not standby.place.job.parent.exists()


def test_standby_worker_dies_with_its_job(fakes):
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.profiles.test_warm import Standby, wrap
standby = Standby(wrap, {{}})
print(standby.process.pid, standby.place.job.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    pid, folder = done.stdout.split()
    wait_for(lambda: not alive(int(pid)))
    shutil.rmtree(folder, ignore_errors=True)  # the next job of anyone sweeps it too


def test_standby_worker_does_not_wait_for_ever(fakes, tmp_path):
    code = "import sys, pathlib; from tilescope.jobs.worker import fork_server as f; f.IDLE = 0; f.stand_by(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "job")]
    assert subprocess.run(command, timeout=300, check=False).returncode == 0


#: A standby worker that is woken once it has nothing to do, and whose job comes when it asks for the GPU.
WAKING = """
import sys
from pathlib import Path
from tilescope.jobs.worker import fork_server
folder = Path(sys.argv[1])
fork_server.THEN = ()
fork_server.device.shareable = lambda: print((folder / "wake").exists()) or (folder / "job").touch()
fork_server.time.sleep = lambda seconds: (folder / "wake").touch()
fork_server.stand_by(folder / "job", kept=len(sys.argv) > 2)
"""


@pytest.mark.parametrize("kept", [(), ("kept",)])
def test_kept_worker_uses_the_gpu_once_it_is_woken(tmp_path, kept):
    command = [sys.executable, "-c", WAKING, str(tmp_path), *kept]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == [str(bool(kept))]


def test_next_command_takes_the_worker_that_one_left(forking, tmp_path, monkeypatch):
    code = "from tilescope.jobs import kept_standby; kept_standby.leave('fakes.wrapped'); kept_standby.leave('fakes.wrapped')"
    code = f"import sys; sys.path[:0] = {sys.path!r}; {code}"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
    assert sum(path.is_symlink() for path in Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*")) == 1
    process.sweep(tmp_path)  # as every job does: it leaves the worker's folder
    monkeypatch.setenv("TRITON_DEBUG", "1")
    assert kept_standby.take("fakes.wrapped") is None, "it has another environment"
    monkeypatch.delenv("TRITON_DEBUG")
    monkeypatch.setenv("TILESCOPE_RUNS", "elsewhere")
    standby = kept_standby.take("fakes.wrapped")
    assert standby and kept_standby.take("fakes.wrapped") is None, "one command gets it"
    file = tmp_path / "looks.py"
    file.write_text("import os\nraise RuntimeError(os.getcwd() + ' ' + os.environ['TILESCOPE_RUNS'])\n")
    monkeypatch.chdir(tmp_path)
    pid, events = answered(standby, tmp_path, {"action": "describe", "kernels": [f"{file}:SPEC"]})
    assert pid == standby.process.pid and f"{tmp_path} elsewhere" in events[-1]["message"]
    standby.end()
    assert not alive(pid) and not standby.place.job.parent.exists()


def test_measuring_job_has_a_wrapped_worker_stand_by(forking, catalog, monkeypatch, processors):
    made = []
    monkeypatch.setattr(supervisor, "ON_GPU", frozenset({"fakes.quick", "fakes.wrapped"}))
    processors(4)
    monkeypatch.setattr(supervisor.process, "Standby", lambda *wrap: made.append(Standby(*wrap)) or made[-1])
    loaded, _ = run(catalog, ["good"], ["fakes.quick", "fakes.wrapped"])
    assert sorted(loaded.table.loc[loaded.table["metric"] == "registers", "value"]) == [32, 64]
    assert loaded.run.complete and made[0].taken and not alive(made[0].process.pid)


@pytest.mark.parametrize(("count", "switch"), [(2, "1"), (4, "0")])
def test_no_worker_stands_by_without_room_or_when_cold(fakes, monkeypatch, processors, count, switch):
    processors(count)
    monkeypatch.setenv(warm.SWITCH, switch)
    assert supervisor.stand_by("fakes.wrapped") is None


#: Prints each module of ``THEN`` that uses a device, or starts a thread or a program, when it is imported.
UNTRIED = """
import importlib, sys
from unittest import mock
from tilescope.jobs.worker import fork_server as server
for name in server.FIRST:
    importlib.import_module(name)
import torch
from triton.runtime.driver import DriverConfig
used = []
def look(event, given):
    text = str(given[:1])
    if event in ("open", "ctypes.dlopen") and any(sign in text for sign in ("/dev/nvidia", "libcuda", "libnvidia-ml")):
        used.append(text)
    elif event in ("subprocess.Popen", "os.fork"):
        used.append(event)
sys.addaudithook(look)
def use(*given, **more):
    used.append("a device")
    return 0
cuda = dict.fromkeys(("is_available", "device_count", "_lazy_init", "get_device_capability"), use)
with mock.patch.multiple(torch.cuda, **cuda), mock.patch.object(DriverConfig, "active", property(use)):
    for name in server.THEN:
        importlib.import_module(name)
        if used or server._unsafe():
            print(name, used, server._unsafe())
            used.clear()
"""


def test_imports_of_the_server_use_no_device():
    done = subprocess.run([sys.executable, "-c", UNTRIED], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


#: Prints the modules that a server tries before it imports them.
TRIED = """
import pathlib, socket, tempfile
from tilescope.jobs.worker import fork_server as f
f.DRIVER, f.harmless = pathlib.Path("/"), print
with tempfile.TemporaryFile() as lock:
    server = f.ForkServer(socket.socket(), pathlib.Path("nosuch"), lock.fileno())
    for name in ("csv", "torch.nosuch"):
        server._import(name)
"""


def test_server_imports_what_is_not_torchs_once():
    done = subprocess.run([sys.executable, "-c", TRIED], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "torch.nosuch\n", done.stderr


def test_server_leaves_imports_that_end_forking(tmp_path):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n"
    )
    code = "from tilescope.jobs.worker import fork_server as f; print(f.harmless('threaded'), f.harmless('json'), f.harmless('nosuch'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.stdout == "False True True\n", done.stderr
