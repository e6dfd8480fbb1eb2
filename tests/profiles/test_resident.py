"""Forked workers behave like cold ones, whatever happens to them, to their server and to their client."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tilescope.jobs import resident
from tilescope.jobs.process import WorkerProcess
from tilescope.jobs.worker import fork_server

from .conftest import FIXTURES, search
from .fake_jobs import OWN, cases, run
from .processes import alive, wait_for

#: Says what a process can know of itself, and leaves another behind that no signal to its group reaches.
LOOKS = """
import json, os, sys, time, pathlib
shown = pathlib.Path("/proc/self/environ").read_bytes().split(b"\\0")
said = {
    "folder": os.getcwd(), "variable": os.environ.get("HERE"), "argv": sys.argv[1:] and len(sys.argv),
    "orig": sys.orig_argv[:-1], "leads": os.getpgid(0) == os.getpid(), "in": os.readlink("/proc/self/fd/0"),
    "mark": os.environ["TILESCOPE_WORKER"].encode() in b"".join(s for s in shown if s.startswith(b"TILESCOPE_WORKER=")),
    "path": sys.path, "temporary": os.environ["TMPDIR"] == __import__("tempfile").gettempdir(),
    "handled": __import__("signal").getsignal(17) == 0, "umask": os.umask(0),
}
print(json.dumps(said), flush=True)
if os.fork() == 0:
    os.setsid()
    pathlib.Path(__file__).with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(300)
while not pathlib.Path(__file__).with_suffix(".pid").exists():
    time.sleep(0.01)
"""

#: Says how many seconds ago its process began.
AGE = """
import os, pathlib
ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
up = float(pathlib.Path("/proc/uptime").read_text().split()[0])
print("age", int(up - ticks / os.sysconf("SC_CLK_TCK")), os.environ["HERE"], flush=True)
SPEC = 1
"""


@pytest.fixture
def forking(kit, monkeypatch):
    """A fork server of this test's own, which ends with it."""
    monkeypatch.setenv("TILESCOPE_RESIDENT", "1")
    monkeypatch.setattr(resident, "_refused", [])
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield
        for server in resident._started:
            server.process.kill()
            server.process.wait()
        resident._started.clear()


def asked(kernel, **more):
    """The events, the log and the process of a question about a kernel's file."""

    async def ask():
        job = {"action": "describe", "kernels": [kernel], "workloads": []}
        async with WorkerProcess(job, None, more) as worker:
            events = [event async for event in worker.events(240)]
            return events, worker.log(), worker

    return asyncio.run(ask())


def test_every_fate_costs_its_own_case_only(forking, catalog, tmp_path):
    fates = ("good", "noisy", "exits", "skips", "segfaults", "killed", "loses_device", "fine")
    pids = tmp_path / "pids"
    loaded, _ = run(catalog, fates, pids=str(pids))
    rows = loaded.table[loaded.table["metric"] == "registers"]
    assert sorted(rows["impl"]) == ["fine", "good", "noisy"]
    failed = {failure.case.split("/forward")[0].rpartition("/")[2]: failure for failure in loaded.run.failures}
    assert sorted(failed) == ["exits", "killed", "loses_device", "segfaults"]
    assert "was killed (SIGKILL)" in failed["killed"].message
    assert "crashed (SIGSEGV)" in failed["segfaults"].message
    assert loaded.run.complete
    assert len(resident._started) == 1, "one server forked them all"
    assert len(set(pids.read_text().split())) > 3


def test_a_worker_that_has_done_everything_is_not_waited_for_and_goes(forking, catalog, tmp_path):
    pids = tmp_path / "pids"
    loaded, _ = run(catalog, ("good", "lingers"), pids=str(pids))
    assert loaded.run.complete and not loaded.run.failures
    assert sorted(loaded.table[loaded.table["metric"] == "registers"]["impl"]) == ["good", "lingers"]
    wait_for(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def test_a_forked_worker_is_what_a_cold_one_is(forking, tmp_path, monkeypatch):
    file = tmp_path / "looks.py"
    file.write_text(LOOKS)
    monkeypatch.chdir(tmp_path)
    said = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TILESCOPE_RESIDENT", switch)
        file.with_suffix(".pid").unlink(missing_ok=True)
        _, log, worker = asked(f"{file}:SPEC", HERE="there")
        assert isinstance(worker._process, resident.Forked) == (switch == "1")
        said.append(json.loads(next(line for line in log.splitlines() if line.startswith("{"))))
        pid = int(file.with_suffix(".pid").read_text())
        wait_for(lambda pid=pid: not alive(pid))
    assert said[0] == said[1]
    assert said[0]["mark"] and said[0]["variable"] == "there" and said[0]["folder"] == str(tmp_path)


def test_a_server_killed_at_work_costs_no_case(forking, catalog, monkeypatch):
    seen = []

    def hear(event):
        if event["event"] == "case" and "/hangs/" in event["case"] and not seen:
            seen.append(resident._started[0].process.pid)
            monkeypatch.setenv("FAKES_ANSWER", "1")
            resident._started[0].process.kill()

    from tilescope.jobs import supervisor
    from tilescope.jobs.job import Job
    from tilescope.runs import store

    job = Job(cases("good", "hangs", "fine"), ("fakes.quick",), {}, catalog=catalog)
    loaded = store.open_run(asyncio.run(supervisor.run(job, hear)))
    assert seen and loaded.run.complete and not loaded.run.failures
    assert sorted(loaded.table[loaded.table["metric"] == "registers"]["impl"]) == ["fine", "good", "hangs"]
    assert not alive(seen[0])


def test_a_worker_goes_with_who_asked_and_the_server_stays(forking, catalog, tmp_path):
    script = (
        "import asyncio, json, sys\n"
        "from tilescope.jobs import supervisor\nfrom tilescope.jobs.job import Job\nfrom tilescope.table.case import Case\n"
        "job = Job([Case(sys.argv[1], 'hangs', 'forward', '8-fp32')], ['fakes.quick'], {'pids': sys.argv[2]},\n"
        "          catalog=json.loads(sys.argv[3]))\n"
        "asyncio.run(supervisor.run(job))\n"
    )
    pids = tmp_path / "pids"
    # The server's environment is this process's: one that it started before serves the other as well.
    resident.prepare()
    arguments = [sys.executable, "-c", script, OWN, str(pids), json.dumps(catalog)]
    with subprocess.Popen(arguments, env=resident.environment()) as parent:
        wait_for(lambda: pids.is_file() and pids.read_text().endswith("\n"))
        parent.send_signal(signal.SIGKILL)
    (worker,) = map(int, pids.read_text().split())
    wait_for(lambda: not alive(worker))
    assert resident._started[0].process.poll() is None


def test_what_was_imported_and_then_edited_is_imported_anew(forking, tmp_path, monkeypatch):
    # However soon: one that was started just now and is at its end is not taken for one that is coming.
    monkeypatch.setattr(resident, "_COMING", 60.0)
    shutil.copytree(FIXTURES / "light" / "torch", tmp_path / "light" / "torch")
    file = tmp_path / "light" / "torch" / "__init__.py"
    monkeypatch.setenv("PYTHONPATH", search(tmp_path / "light"))
    looks = tmp_path / "looks.py"
    looks.write_text("import torch\nprint('torch', getattr(torch, 'EDITED', 0), flush=True)\nSPEC = 1\n")
    os.utime(file, (1, 1))  # as old as what is installed is
    assert "torch 0" in asked(f"{looks}:SPEC")[1]
    assert "torch 0" in asked(f"{looks}:SPEC")[1]
    assert len(resident._started) == 1
    file.write_text(f"{file.read_text()}\nEDITED = 7\n")
    _, log, worker = asked(f"{looks}:SPEC")
    assert "torch 7" in log
    assert isinstance(worker._process, resident.Forked)
    # A person's own file is never in the server.
    looks.write_text(looks.read_text().replace("'torch'", "'edited'"))
    assert "edited 7" in asked(f"{looks}:SPEC")[1]


def test_without_a_private_folder_or_torch_workers_start_cold(forking, tmp_path, monkeypatch):
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / f"tilescope-resident-{os.getuid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    events, _, worker = asked(OWN)
    assert [event["event"] for event in events] == ["ready", "catalog", "done"]
    assert not isinstance(worker._process, resident.Forked)
    folder.chmod(0o700)
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    monkeypatch.setattr(resident, "_refused", [])
    events, _, worker = asked(OWN)
    assert "half installed" in events[-1]["message"]
    assert not isinstance(worker._process, resident.Forked)
    assert resident._refused == ["torch does not import: RuntimeError"]


def test_who_asks_for_the_gpu_again_finds_a_worker_that_is_ready(forking, tmp_path, monkeypatch):
    looks = tmp_path / "looks.py"
    looks.write_text(AGE)
    monkeypatch.setattr(WorkerProcess, "_on_gpu", lambda worker: True)

    def age():
        _, log, worker = asked(f"{looks}:SPEC", HERE="there")
        assert isinstance(worker._process, resident.Forked)
        found = re.search(r"age (\d+) there", log)
        assert found, log
        return int(found[1])

    first = age()
    (server,) = resident._started
    wait_for(lambda: len(children(server.process.pid)) == 1)
    (waiting,) = children(server.process.pid)
    time.sleep(first + 1)
    assert age() > first, "it was there before it was asked for"
    # The next is made when nobody is at work, and one that dies costs nothing.
    wait_for(lambda: children(server.process.pid) - {waiting})
    (waiting,) = children(server.process.pid)
    os.kill(waiting, signal.SIGKILL)
    wait_for(lambda: waiting not in children(server.process.pid))
    assert age() >= 0
    wait_for(lambda: children(server.process.pid))
    (waiting,) = children(server.process.pid)
    server.process.kill()
    wait_for(lambda: not alive(waiting))


def test_a_server_that_is_started_for_the_gpu_has_a_worker_ready_before_anybody_asks(forking, tmp_path, monkeypatch):
    code = "import sys, pathlib; from tilescope.jobs.worker import fork_server as f; f.ready.DRIVER = pathlib.Path(sys.argv.pop()); f.main(sys.argv[1:])"
    path = Path(os.environ["XDG_RUNTIME_DIR"]) / "early.socket"
    for driver, ready in (("/dev/null", 1), ("/nowhere", 0)):
        arguments = [sys.executable, "-c", code, str(path), resident.GPU, driver]
        with subprocess.Popen(arguments, env=resident.environment()) as server:
            wait_for(lambda: resident._listens(path))
            if ready:
                wait_for(lambda server=server: children(server.pid))
            else:
                time.sleep(1)
            assert len(children(server.pid)) == ready
            server.kill()


def test_nobody_waits_for_what_takes_long_to_import_where_there_is_a_gpu(forking, tmp_path):
    imported = {name: tmp_path / name for name in ("compiler", "gradients")}
    for file in imported.values():
        file.with_suffix(".py").write_text(f"import pathlib; pathlib.Path({str(file)!r}).touch()")
    code = f"""if True:
        import pathlib, sys
        sys.path.append({str(tmp_path)!r})
        from tilescope.jobs.worker import fork_server as f
        f.ready.DRIVER = pathlib.Path(sys.argv.pop())
        f.standby.roomy = lambda: True
        f._FIRST, f._THEN, f._MEANWHILE, f._COMPILER, f._LATER = ("json",), ("csv",), ("gradients",), ("compiler",), ()
        sys.exit(f.main(sys.argv[1:]))"""
    path, job = Path(os.environ["XDG_RUNTIME_DIR"]) / "early.socket", tmp_path / "job.json"
    job.write_text(json.dumps({"action": "nonsense"}))
    job.with_name(resident.REQUEST).write_text(
        json.dumps({"job": str(job), "environment": dict(os.environ), "folder": str(tmp_path)})
    )

    def ask(gpu):
        with (tmp_path / "output").open("w") as output, resident.connected(path) as connection:
            connection.setblocking(True)
            socket.send_fds(connection, [json.dumps({"job": str(job), "gpu": gpu}).encode()], [output.fileno()])
            while connection.recv(4096):
                pass

    for driver, expected in (("/dev/null", ["gradients"]), ("/nowhere", ["compiler"])):
        with subprocess.Popen([sys.executable, "-c", code, str(path), driver], env=resident.environment()) as server:
            wait_for(lambda: resident._listens(path))
            ask(gpu=False)
            time.sleep(1)
            assert not imported["gradients"].exists(), "nobody has used the GPU"
            ask(gpu=True)
            wait_for(imported[expected[0]].exists)
            assert [name for name, file in imported.items() if file.exists()] == expected
            with resident.connected(path) as connection:
                resident.say(connection, {"leave": True})
            assert server.wait(60) == 0
        for file in imported.values():
            file.unlink(missing_ok=True)


def test_a_capture_starts_the_server_before_anything_is_captured(forking):
    import tilescope

    with tilescope.capture("sm_90"):
        assert [started.path.exists() or started.process.poll() is None for started in resident._started] == [True]


def children(process):
    """The running processes that it forked."""
    return {pid for pid in map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()) if alive(pid)}


def test_it_ends_when_nobody_asks(forking):
    path = Path(os.environ["XDG_RUNTIME_DIR"]) / "idle.socket"
    code = (
        "import sys; from tilescope.jobs.worker import fork_server as f; f.IDLE = 0.1; sys.exit(f.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=resident.environment(), timeout=300, check=False)
    assert done.returncode == 0
    assert not path.exists()


def test_servers_that_were_asked_longest_ago_make_room(forking):
    folder = Path(os.environ["XDG_RUNTIME_DIR"])
    code = """if True:
        import sys
        from tilescope.jobs.worker import fork_server as f
        f._FIRST, f._THEN, f._COMPILER, f._LATER = ("json",), (), (), ()
        sys.exit(f.main(sys.argv[1:]))"""
    servers = []
    try:
        for number in range(fork_server.MOST + 2):
            path = folder / f"{number}.socket"
            servers.append(subprocess.Popen([sys.executable, "-c", code, str(path)], env=resident.environment()))
            wait_for(lambda path=path: resident._listens(path))
            os.utime(path, (number, number))
            if number == fork_server.MOST - 1:
                os.utime(folder / "0.socket")  # the first one was asked for work since
        assert [server.wait(60) for server in servers[1:3]] == [0, 0]
        assert sorted(path.stem for path in folder.glob("*.socket")) == ["0", "3", "4"]
        assert [server.poll() for server in (servers[0], *servers[3:])] == [None] * 3
    finally:
        for server in servers:
            server.kill()
            server.wait()


def test_a_key_is_of_all_that_a_fork_cannot_change(monkeypatch):
    known = {"PATH": "/bin", "TRITON_DEBUG": "0"}
    key = resident._key(known)
    assert resident._key({**known, "SSH_TTY": "1", "TILESCOPE_RUNS": "/x", "TMPDIR": "/y"}) == key
    assert resident._key({**known, "TRITON_DEBUG": "1"}) != key
    assert resident._key({**known, "PYTHONPATH": "/x"}) != key
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 77})
    assert resident._key(known) != key


@pytest.mark.gpu
def test_forks_make_contexts_of_their_own(forking, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].partition(os.pathsep)[2])
    looks = tmp_path / "looks.py"
    looks.write_text("import torch\nprint('sum', torch.ones(7, device='cuda').sum().item(), flush=True)\nSPEC = 1\n")
    for _ in range(2):
        _, log, worker = asked(f"{looks}:SPEC")
        assert "sum 7.0" in log
        assert isinstance(worker._process, resident.Forked)
