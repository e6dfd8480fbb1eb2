"""Work distributed over processes."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
from tilescope.execution import multiprocess

from .processes import alive, wait_for


def total(work, count=20, tick=lambda done: None, processes=3):
    seen: list[int] = []
    return multiprocess.share_out(
        range(count), lambda item: seen.append(work(item)), lambda: sum(seen), tick, processes=processes
    )


def test_share_out_does_every_item_once():
    done: list[int] = []
    assert sum(total(lambda item: item, tick=done.append)) == sum(range(20))
    assert done[-1] == 20
    assert sorted(total(lambda item: item + 1, count=2, processes=4)) == [0, 0, 1, 2]


def test_share_out_raises_errors_and_killed_processes():
    def work(item):
        if item == 7:
            raise KeyError("seven")
        return item

    with pytest.raises(KeyError, match="seven"):
        total(work)

    def killed(item):
        if item == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(RuntimeError, match="was killed"):
        total(killed)


def test_share_out_ends_when_tick_raises():
    def never(_):
        signal.pause()
        return 0

    def tick(_):
        raise TimeoutError

    with pytest.raises(TimeoutError):
        total(never, tick=tick)
    # Other tests' servers are children of this process too.
    assert multiprocessing.active_children() == []


def test_share_out_processes_end_with_their_parent(tmp_path):
    """Killed, it can say nothing to them: at work on one long item, they would go on."""
    script = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tilescope.execution import multiprocess\n"
        "def work(item):\n"
        "    with Path(sys.argv[1]).open('a') as file:\n        file.write(f'{os.getpid()}\\n')\n"
        "    time.sleep(300)\n"
        "multiprocess.share_out(range(3), work, lambda: None, lambda done: None, processes=3)\n"
    )
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", script, str(pids)]) as parent:
        wait_for(lambda: pids.is_file() and len(pids.read_text().splitlines()) == 3)
        parent.kill()
    children = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: not any(alive(pid) for pid in children))


LEFT_BEHIND = """
import multiprocessing, os, subprocess, sys, threading, time, types
from tilescope.captures import processes

if __name__ == "__main__":
    compiler = subprocess.Popen([sys.executable, sys.argv[1], f"--parent={os.getpid()}"])
    sys.modules["torch._inductor.async_compile"] = types.SimpleNamespace(shutdown_compile_workers=compiler.wait)
    threading.Thread(target=time.sleep, args=(600,), name="loader").start()
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), name="reader").start()
    processes.end_within(0.1, compilers=0.5)
    print("measured", compiler.returncode, flush=True)
"""


def test_command_ends_although_threads_and_children_do_not(tmp_path):
    script, compiler = tmp_path / "script.py", tmp_path / "compile_worker.py"
    script.write_text(LEFT_BEHIND)
    compiler.write_text("import time; time.sleep(600)")
    # The output ends too: no child is left that holds it.
    ended = subprocess.run(
        [sys.executable, script, compiler], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "measured -9\n"), ended.stderr
    assert ended.stderr == "tilescope: ended without waiting for reader, loader\n"
