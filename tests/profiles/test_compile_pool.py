"""The pool that compiles: the launcher finds its work in Triton's cache, and a config that faults or hangs harms no other."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from tilescope.collectors import compiler
from tilescope.execution import compiling, execute, launches, offline
from tilescope.execution.not_applicable import NotApplicable
from tilescope.tuning import compile_jobs, compile_pool
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import build

from . import unseen_launches as unseen
from .capturing import small
from .processes import alive, wait_for


@triton.jit
def plain_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) * 2)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Gives each test a cache of its own, forks the host although other tests may have left threads, and ends it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_pool, "may_fork", lambda: True)
    monkeypatch.setattr(compile_pool, "PATIENCE", 5.0)
    with offline.targeting("sm_90"):
        yield
    compile_pool.forget()


@pytest.fixture
def trapped(monkeypatch):
    """Crashes the process that compiles blocks of 16, and hangs it for 64 and more. The forked host has this too."""
    compile_all = compile_jobs.Maker.compile

    def trap(maker, kernels):
        ((_, block),) = kernels[0].constexprs
        if block == 16:
            os.kill(os.getpid(), signal.SIGKILL)
        if block >= 64:
            time.sleep(600)
        return compile_all(maker, kernels)

    monkeypatch.setattr(compile_jobs.Maker, "compile", trap)


def described(*blocks):
    describer, jobs = compile_jobs.Describer(), {}
    for block in blocks:
        plain_kernel.device_caches.clear()
        with describer.describing() as jobs[block]:
            plain_kernel.run(torch.empty(1024), BLOCK=block, num_warps=1, grid=(1,), warmup=True)
    plain_kernel.device_caches.clear()
    return describer.code, jobs


def reasons(*blocks, **options):
    """Why each block was not compiled by two processes at once."""
    code, jobs = described(*blocks)
    return {block: found.reason for block, found in compile_pool.Pool(code, 2, **options).compile(jobs)}


@pytest.mark.parametrize("forks", [True, False])
def test_compile_pool_fills_the_launchers_cache(forks, monkeypatch, tmp_path):
    monkeypatch.setattr(compile_pool, "may_fork", lambda: forks)
    host = compile_pool.host()
    assert (host.process is None) == forks
    assert host.connection.poll(240), "the host does not come up"
    code, jobs = described(128, 256, 512)
    jobs["another grid"] = list(jobs[128])
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libcuda.so.1"], check=True)
    found = dict(compile_pool.Pool(code, 2).compile(jobs))
    assert {name: answer.reason for name, answer in found.items()} == dict.fromkeys(jobs, "")
    hits: list[bool] = []
    with knobs.compilation.scope():
        knobs.compilation.listener = lambda *, cache_hit=False, **_: hits.append(cache_hit)
        kernel = plain_kernel.run(torch.empty(1024), BLOCK=256, num_warps=1, grid=(1,), warmup=True)
    assert hits == [True]
    (facts,) = found[256].kernels
    assert (facts["block_threads"], facts["target"], facts["spill_bytes_stored"]) == (32, "sm_90", 0)
    assert facts["registers"] > 8 and facts["code"] != found[128].kernels[0]["code"]
    untimed = {name: value for name, value in found[128].kernels[0].items() if name != "compile_time"}
    assert found["another grid"].kernels == [untimed], "equal jobs are compiled once"
    begun: list[str] = []
    again = dict(compile_pool.Pool(code, 2, meanwhile=lambda: begun.append("once")).compile(jobs))
    assert begun == ["once"]
    with monkeypatch.context() as no_c_compiler:
        no_c_compiler.setattr(build, "_build", lambda *given: pytest.fail("the launcher was not built"))
        no_c_compiler.setattr(build, "_load_module_from_path", lambda name, path: SimpleNamespace(launch=path))
        assert Path(CudaLauncher(kernel.src, kernel.metadata).launch).parents[1] == tmp_path / "cache"
    assert again[128].kernels == [untimed], "a kernel from the cache has the same resources"
    for report in (tmp_path / "cache").rglob("ptxas-v.txt"):
        report.write_text(re.sub(r"Used \d+ reg", "Used 77 reg", report.read_text()))
    assert dict(compile_pool.Pool(code, 2).compile(jobs))[128].kernels[0]["registers"] == 77, "it is assembled once"
    for report in (tmp_path / "cache").rglob("ptxas-v.txt"):
        report.unlink()
    assert dict(compile_pool.Pool(code, 2).compile(jobs))[128].kernels == [untimed], "another program compiled it"
    assert compile_pool.host() is host, "the host stays for the next search"


def test_compile_pool_crash_and_hang_cost_only_themselves(trapped):
    code, jobs = described(16, 32, 64, 8, 128)
    jobs["default"] = jobs.pop(128)
    found = dict(compile_pool.Pool(code, 3, limit=8.0).compile(jobs))
    assert found[16].reason == "compiling it ended its process (SIGKILL)"
    assert not found[16].certain, "the system may have killed it because memory ran out"
    assert "where the others' median is" in found[64].reason
    assert not found[64].certain, "this machine's load may have slowed it"
    assert found["default"].reason == "compiling took more than 8 s and was stopped"
    assert {found[32].reason, found[8].reason} == {""}


def test_compile_pool_without_a_host_compiles_here(monkeypatch):
    monkeypatch.setattr(compile_pool, "host", lambda: None)
    assert reasons(128, 256, 512) == dict.fromkeys((128, 256, 512), "")


def test_compile_pool_replaces_a_dead_host():
    host = compile_pool.host()
    assert host.is_ready() or host.connection.poll(240)
    os.kill(host.pid, signal.SIGKILL)
    os.waitpid(host.pid, 0)
    assert reasons(128, 256, 512) == dict.fromkeys((128, 256, 512), "")


def test_compile_pool_stopped_search_ends_its_host(trapped):
    host = compile_pool.host()
    assert host.is_ready() or host.connection.poll(240)
    code, jobs = described(32, 64, 128)
    search = compile_pool.Pool(code, 1).compile(jobs)
    assert next(search)[0] == 32
    search.close()
    assert not alive(host.pid)


def test_compile_pool_host_ends_with_its_process(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = """
import os
from tilescope.tuning import compile_jobs, compile_pool
compile_pool.prepare()
host = compile_pool.host()
host.connection.send(({}, compile_jobs.Code([], {}, []), {"a": ()}, 1, 9.0))
print(host.connection.recv(), host.connection.recv(), host.pid, sep="\\n", flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    ready, answer, pid = done.stdout.splitlines()
    assert ready == "ready" and answer == "('a', Compiled(reason='', kernels=[], certain=True))"
    wait_for(lambda: not alive(int(pid)))
    assert list(tmp_path.iterdir()) == []


def test_compile_pool_forks_unless_threads_run(monkeypatch):
    """The thread that watches a supervisor holds no lock and does not count."""
    monkeypatch.undo()
    others = {thread.name for thread in threading.enumerate()} - {threading.current_thread().name, "supervisor-watch"}
    assert compile_pool.may_fork() == (not others)
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert not compile_pool.may_fork()
    compile_pool.prepare()
    thread.name = "supervisor-watch"
    assert compile_pool.may_fork() == (not others)
    end.set()
    thread.join()


SOFTMAX = small("SOFTMAX", "3x8-fp32")


@pytest.fixture
def compile_by(monkeypatch):
    """Makes a function stand for the compiler."""
    return lambda function: monkeypatch.setattr(offline, "compile_launch", function)


def launch():
    with launches.catch() as caught:
        unseen.bits(torch.empty(64, device="meta"))
    return caught[0]


def test_compiled_too_slow_ends_the_compiler(compile_by, tmp_path):
    started = tmp_path / "assembler"

    def slow(_launch):
        assembler = subprocess.Popen(["sleep", "300"])
        started.write_text(str(assembler.pid))
        assembler.wait()

    compile_by(slow)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="bits_kernel was not compiled in 2 s"):
        compiling.compiled(launch(), 2)
    assert time.monotonic() - began < 100 and multiprocessing.active_children() == []
    wait_for(lambda: not alive(int(started.read_text())))


def test_compiler_skips_slow_cases_with_line_and_cure(compile_by, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "LIMIT", 0.0)
    compile_by(lambda launch: time.sleep(300))
    spec = execute.load_spec(SOFTMAX.kernel)
    with pytest.raises(NotApplicable, match=r"was not compiled in 0 s \(small_kernels.py, line \d+\): .*smaller"):
        compiler.capture(SOFTMAX, spec, tmp_path / "artefact", {"target": "sm_90"})
