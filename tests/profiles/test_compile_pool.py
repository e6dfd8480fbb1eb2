"""The pool that compiles: the launcher finds its work in Triton's cache, and a config that faults or hangs harms no other."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import triton
import triton.language as tl
from tilescope.execution import offline
from tilescope.tuning import compile_jobs, compile_pool
from triton import knobs

from .processes import alive, wait_for


@triton.constexpr_function
def trap(block):
    while block == 64:
        pass
    return block


@triton.jit
def trapped_kernel(x_ptr, BLOCK: tl.constexpr):
    size: tl.constexpr = trap(BLOCK)
    offsets = tl.arange(0, size)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@triton.jit
def plain_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n) * 2, mask=offsets < n)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Gives each test a cache of its own, and ends hosts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with offline.targeting("sm_90"):
        yield
    for host in list(compile_pool._hosts.values()):
        compile_pool._forget(host)


def fork():
    """Forks the host from this process, even if other tests have left threads in it."""
    compile_pool._hosts[os.getpid()] = compile_pool._forked()


def described(kernel, *blocks, more=()):
    describer, jobs = compile_jobs.Describer(), {}
    x = offline._AlignedTensor(torch.empty(1024, device="meta"))
    for block in blocks:
        kernel.device_caches.clear()
        with describer.describing() as jobs[f"BLOCK={block}"]:
            kernel.run(x, *more, BLOCK=block, num_warps=1, grid=(1,), warmup=True)
    kernel.device_caches.clear()
    return describer, jobs


def more():
    return offline._AlignedTensor(torch.empty(1024, device="meta")), 1024


def run_again(block):
    """Compiles as a launcher would; returns whether Triton's cache had it, and the kernel."""
    hits: list[bool] = []
    plain_kernel.device_caches.clear()
    before, knobs.compilation.listener = (
        knobs.compilation.listener,
        lambda *, cache_hit=False, **_: hits.append(cache_hit),
    )
    try:
        x = offline._AlignedTensor(torch.empty(1024, device="meta"))
        kernel = plain_kernel.run(x, *more(), BLOCK=block, num_warps=1, grid=(1,), warmup=True)
    finally:
        knobs.compilation.listener = before
    return hits, kernel


@pytest.mark.parametrize("start", [compile_pool._forked, compile_pool._started])
def test_what_a_host_compiled_is_what_the_launcher_looks_for(start, monkeypatch):
    host = start()
    compile_pool._hosts[os.getpid()] = host
    assert host.connection.poll(60), "the host does not come up"
    describer, jobs = described(plain_kernel, 128, 256, 512, more=more())
    found = dict(compile_pool.Pool(describer.code, 2).compile(jobs))
    assert {name: answer.reason for name, answer in found.items()} == dict.fromkeys(jobs, "")
    hits, kernel = run_again(256)
    assert hits == [True]
    (facts,) = found["BLOCK=256"].kernels
    assert facts["block_threads"] == 32
    assert (
        facts["registers"] == offline._Utilities("sm_90", None).load_binary(kernel.name, kernel.asm["cubin"], 0, 0)[2]
    ), "the cached code has other registers than were told"
    again = dict(compile_pool.Pool(describer.code, 2).compile(jobs))
    assert again["BLOCK=256"].kernels[0] == {n: v for n, v in facts.items() if n != "compile_time"}
    assert compile_pool.host() is host, "it stays for the next search"


def test_what_is_the_same_to_the_compiler_is_compiled_once(monkeypatch):
    monkeypatch.setattr(compile_pool, "host", lambda: None)
    compiled: list[int] = []
    compile_all = compile_jobs.Maker.compile
    monkeypatch.setattr(
        compile_jobs.Maker, "compile", lambda maker, kernels: compiled.append(1) or compile_all(maker, kernels)
    )
    describer, jobs = described(plain_kernel, 128, 256, more=more())
    jobs["another grid"] = list(jobs["BLOCK=128"])
    found = dict(compile_pool.Pool(describer.code).compile(jobs))
    assert set(found) == set(jobs)
    assert len(compiled) == 2
    same, other = found["BLOCK=128"].kernels[0], found["another grid"].kernels[0]
    assert "compile_time" in same
    assert other == {name: value for name, value in same.items() if name != "compile_time"}
    assert found["BLOCK=256"].kernels[0]["code"] != same["code"]


def test_a_config_that_crashes_or_hangs_costs_only_itself(monkeypatch):
    monkeypatch.setattr(compile_pool, "PATIENCE", 60.0)
    compile_one = compile_jobs.Maker._compile

    def crash(maker, one):
        if dict(one.constexprs)[(1,)] == 32:
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_one(maker, one)

    # What is forked has it too.
    monkeypatch.setattr(compile_jobs.Maker, "_compile", crash)
    describer, jobs = described(trapped_kernel, 32, 64, 128, 256)
    fork()
    found = dict(compile_pool.Pool(describer.code, 2, limit=6.0).compile(jobs))
    assert found["BLOCK=32"].reason == "compiling it ended its process (SIGKILL)"
    assert not found["BLOCK=32"].certain, "the system may have killed it for want of memory"
    assert found["BLOCK=64"].reason == "compiling took more than 6 s and was stopped"
    assert {found["BLOCK=128"].reason, found["BLOCK=256"].reason} == {""}


def test_a_straggler_is_given_up_once_nothing_else_waits(monkeypatch):
    monkeypatch.setattr(compile_pool, "PATIENCE", 0.5)
    describer, jobs = described(trapped_kernel, 64, 128, 256)
    fork()
    found = dict(compile_pool.Pool(describer.code, 2).compile(jobs))
    assert "where the others' median is" in found["BLOCK=64"].reason


def test_without_a_host_and_when_it_dies_this_process_compiles(monkeypatch):
    describer, jobs = described(plain_kernel, 128, 256, 512, more=more())
    monkeypatch.setattr(compile_pool, "host", lambda: None)
    assert {a.reason for _, a in compile_pool.Pool(describer.code).compile(jobs)} == {""}
    monkeypatch.undo()
    host = compile_pool._forked()
    compile_pool._hosts[os.getpid()] = host
    assert host.connection.poll(240)
    os.kill(host.pid, 9)
    os.waitpid(host.pid, 0)
    assert {a.reason for _, a in compile_pool.Pool(describer.code).compile(jobs)} == {""}


def test_a_host_ends_with_the_process_that_it_is_for():
    code = "from tilescope.tuning import compile_pool as pool\npool.prepare()\nprint(pool.host().pid)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    wait_for(lambda: not alive(int(done.stdout)))


def test_a_driver_that_the_host_has_built_is_waited_for_and_not_built_again(monkeypatch, tmp_path):
    class Slow:
        """Stands for what takes a C compiler."""

        def __init__(self):
            time.sleep(0.5)
            (tmp_path / "built").touch()

    monkeypatch.setattr(compile_pool, "CudaUtils", Slow)
    compile_pool.await_driver()
    assert not (tmp_path / "built").exists(), "where there is no host nobody is waited for"
    fork()
    compile_pool.await_driver()
    assert (tmp_path / "built").exists()
    (tmp_path / "built").unlink()
    compile_pool.await_driver()
    assert not (tmp_path / "built").exists()


def test_no_fork_where_a_thread_runs_or_a_gpu_is_in_use(monkeypatch):
    monkeypatch.setattr(compile_pool, "_uses_gpu", lambda: True)
    assert not compile_pool.may_fork()
    compile_pool.prepare()
    assert os.getpid() not in compile_pool._hosts


def test_the_thread_that_watches_a_supervisor_is_in_nobodys_way():
    code = (
        "import threading, time\n"
        "from tilescope.tuning import compile_pool as pool\n"
        "from tilescope.jobs.worker import main\n"
        "main._die_with(1)\n"  # it is not the parent
        "print(threading.active_count(), pool.may_fork())\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "print(pool.may_fork())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["2", "True", "False"]


def test_what_is_to_be_done_meanwhile_is_done_once_after_the_configs_have_begun(monkeypatch):
    describer, jobs = described(plain_kernel, 128, 256, 512, more=more())
    done = []
    found = compile_pool.Pool(describer.code).compile(jobs, meanwhile=lambda: done.append("meanwhile"))
    assert {compiled.reason for _, compiled in found} == {""}
    assert done == ["meanwhile"]


def test_code_has_one_digest_and_made_again_the_key_that_triton_gave_it_here(tmp_path):
    describer, jobs = described(trapped_kernel, 128)
    maker = compile_jobs.Maker(describer.code, tmp_path)
    made = maker._reader.function(jobs["BLOCK=128"][0].function)
    assert made.cache_key == trapped_kernel.cache_key
    assert compile_jobs.source_digest(made) == compile_jobs.source_digest(trapped_kernel)
    assert compile_jobs.source_digest(plain_kernel) != compile_jobs.source_digest(trapped_kernel)
