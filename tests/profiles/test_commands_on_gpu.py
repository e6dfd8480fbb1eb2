"""What a person types on a machine with a GPU, each command as a process of its own: the run that it keeps, and what it says."""

import os
import signal
import subprocess
import sys

import pytest
from tilescope.hardware import device
from tilescope.runs import store

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable())),
]

SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, at < n) + 1, at < n)

x = torch.randn(1 << 22, device="cuda")
y = torch.empty_like(x)
add_one[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
assert torch.equal(y, x + 1)
"""
STEP = """
import torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
x = torch.randn(256, 1024, device="cuda")
for _ in range(100):
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def tilescope(tmp_path):
    """Runs a command in a folder with ``mine.py`` and ``step.py``; gives what it printed and its newest run."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "step.py").write_text(STEP)

    def run(*command, status=0):
        done = subprocess.run(
            [sys.executable, "-m", "tilescope", command[0], "--runs", tmp_path / "runs", *command[1:]],
            cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        found = store.list_runs([tmp_path / "runs"])
        return done.stdout, store.open_run(found[0].path) if found else None

    return run


def measured(loaded, kernel, metric):
    table = loaded.table
    return table[(table["kernel"] == kernel) & (table["metric"] == metric)]["value"]


def test_profile_of_a_library_kernel_by_all_collectors(tilescope):
    said, loaded = tilescope("profile", "softmax", "--workload", "large", "--pass", "forward", "--impl", "triton,eager")
    assert "softmax" in said
    for metric in ("graph_time", "dram_bytes_read", "registers"):
        assert (measured(loaded, "softmax", metric) > 0).any(), metric


def test_profile_of_a_script(tilescope):
    said, loaded = tilescope("profile", "mine.py")
    assert "add_one" in said
    assert (measured(loaded, "add_one", "dram_bytes_read") > 1e6).all()


@pytest.mark.parametrize("collector", ["ncu", "lanes", "energy", "ncu_activity"])
def test_profile_of_a_script_by_one_collector(tilescope, collector):
    said, loaded = tilescope("profile", "--collect", collector, "mine.py")
    assert "add_one" in said and not [note for note in loaded.run.notes if "failed" in note]


@pytest.mark.parametrize("command", [["tune", "softmax", "--workload", "medium"], ["model", "--try", "1", "step.py"]])
def test_command_speaks_of_its_subject(tilescope, command):
    said, _ = tilescope(*command)
    assert ("softmax" if "softmax" in command else "step") in said


def test_watch_says_what_an_edit_changed(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tilescope", "watch", "--text", "--runs", tmp_path / "runs", "mine.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    said, versions = [], 0
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("watching "):
                versions += 1
                if versions == 2:
                    break
                script.write_text(
                    SCRIPT.replace("BLOCK=1024", "BLOCK=2048").replace("numel(), 1024)", "numel(), 2048)")
                )
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
        process.stdout.close()
    text = "".join(said)
    assert versions == 2 and "GPU time" in text and "2048" in text, text
