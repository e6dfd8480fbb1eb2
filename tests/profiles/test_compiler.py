"""The compiler collector, compiling for real."""

import gzip
import importlib
import io
import json
import re
import traceback
from pathlib import Path

import pytest
import torch
from tilescope.collectors import compiler
from tilescope.collectors.assembly import widest_access
from tilescope.execution import execute, launches, offline
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import bounded_reading
from tilescope.models import advice, faults
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Failure
from triton import knobs
from triton.backends.nvidia import compiler as nvidia

from tests.profiles import foreign_launches
from tests.recorded import AS_RECORDED

FILE = Path(__file__).parent / "small_kernels.py"
H200 = Device("NVIDIA H200", "sm_90", 132, 60 << 20, 141_000_000_000, False, ())


def case(name, workload, *, impl="triton", direction="forward", config=""):
    return Case(f"{FILE}:{name}", impl, direction, workload, config)


def collect(wanted, folder, target="sm_90"):
    artefact = folder / f"case{compiler.SUFFIX}"
    compiler.capture(wanted, execute.load_spec(wanted.kernel), artefact, {"target": target})
    return schema.validate(compiler.parse(artefact, wanted))


def figures(table, launch=0):
    chosen = table[table["launch"] == launch]
    assert not chosen["metric"].duplicated().any()
    return dict(zip(chosen["metric"], chosen["value"], strict=True))


@pytest.mark.parametrize(("impl", "serialized"), [("triton", 0), ("under_way", 4)])
def test_products_that_ptxas_lets_run_one_by_one(tmp_path: Path, impl: str, serialized: int) -> None:
    products = Case(f"{FILE.with_name('gluon_products.py')}:SPEC", impl, "forward", "8-bf16", "")
    table = collect(products, tmp_path)
    found = figures(table)
    assert found["wgmma_accumulator_used"] == serialized
    assert found["wgmma_short_of_registers"] == found["wgmma_serialized_otherwise"] == 0
    told = {finding.rule for finding in advice.findings(table, H200)}
    assert ("serialized-products" in told) == bool(serialized)
    (launch,) = bounded_reading.data_of(tmp_path / f"case{compiler.SUFFIX}")["launches"]
    assert {one["operation"] for one in launch["transfers"]} >= {"local_alloc"} and launch["transfers"][0]["line"]


def test_what_the_assembler_refuses_is_told_in_its_own_words():
    with launches.catch() as seen:
        foreign_launches.of_amd_kernel[(1,)](torch.ones(16), torch.ones(16), BLOCK=16)
    with offline.targeting("sm_90"), pytest.raises(compiler.CompilationFailed) as raised:
        compiler.compile_launch(seen[0], "sm_90")
    said = "of_amd_kernel does not compile for sm_90: it calls __triton_hip_llrint, which is of AMD's device library"
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(("kernel", "line", "why", "code"), [
    (foreign_launches.misspelt_kernel, 4, "valeu is not defined", "tl.store(out_ptr + at, valeu)"),
    # Triton's own function is wrong at the line that calls it.
    (foreign_launches.one_axis_kernel, 3, "invalid axis 1. Expected -1 <= axis < 1", "value = tl.sum(at, axis=1)"),
])  # fmt: skip
def test_what_the_compiler_refuses_is_told_with_its_line(kernel, line, why, code):
    with launches.catch() as seen:
        kernel[(1,)](torch.ones(16), BLOCK=16)
    line += kernel.fn.__code__.co_firstlineno
    with offline.targeting("sm_90"), pytest.raises(compiler.CompilationFailed) as raised:
        compiler.compile_launch(seen[0], "sm_90")
    assert str(raised.value) == f"{kernel.fn.__name__} does not compile for sm_90: line {line}: {why}"
    detail = "".join(traceback.format_exception(raised.value))
    failure = Failure("k/triton/forward/16-fp32", "compiler", f"CompilationFailed: {raised.value}", detail)
    assert faults.of_failure(failure).code.startswith(f"The line: {code}")


def test_line_of_a_function_in_another_file_names_the_file(tmp_path, monkeypatch):
    head = "import triton\nimport triton.language as tl\n"
    (tmp_path / "activations.py").write_text(f"{head}@triton.jit\ndef act(x):\n    return xx\n")
    (tmp_path / "calling.py").write_text(
        f"from activations import act\n{head}@triton.jit\ndef k(x_ptr):\n    tl.store(x_ptr, act(tl.load(x_ptr)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with launches.catch() as seen:
        importlib.import_module("calling").k[(1,)](torch.ones(1))
    with (
        offline.targeting("sm_90"),
        pytest.raises(compiler.CompilationFailed, match=r": line 5 of activations\.py: xx is not"),
    ):
        compiler.compile_launch(seen[0], "sm_90")


def test_config_and_spills_are_compiled(tmp_path):
    config = "BM=64,BN=64,BK=64,num_warps=4,num_stages=2"
    found = figures(collect(case("MATMUL", "4096x4096x4096-bf16", config=config), tmp_path))
    assert found["shared_memory"] == 2 * (64 * 64 + 64 * 64) * 2
    assert found["grid_blocks"] == 64 * 64
    config = "BM=128,BN=256,BK=64,num_warps=4,num_stages=2"
    found = figures(collect(case("MATMUL", "4096x4096x4096-bf16", config=config), tmp_path))
    assert found["registers"] == 255
    assert found["spill_bytes_stored"] > 0
    assert found["stack_bytes"] > 0


def test_backward_pass_alone_for_a_known_target(tmp_path):
    table = collect(case("TIMES", "5000-fp32", direction="backward"), tmp_path, "sm_120")
    assert set(table["function"]) == {"scale_kernel"}
    assert set(table["launch"]) == {0}
    assert set(table["source"]) == {"compiler"}
    with pytest.raises(ValueError, match="unknown target 'sm_1'"):
        collect(case("SOFTMAX", "67x781-fp32"), tmp_path, "sm_1")


def test_library_sets_the_allocator_that_its_launch_needs(tmp_path):
    wanted = Case("matmul", "triton", "forward", "4096x4096x4096-bf16")
    assert figures(collect(wanted, tmp_path, "sm_100"))["spill_bytes_stored"] == 0


def test_registers_are_those_of_the_machine_code(tmp_path):
    """The cubin's EIATTR_REGCOUNT (0x2f of .nv.info) is what the driver goes by."""
    from elftools.elf.elffile import ELFFile

    wanted = case("MATMUL", "4096x4096x4096-bf16")
    with launches.catch() as seen:
        execute.prepare(execute.load_spec(wanted.kernel), wanted, "meta")()
    with offline.targeting("sm_90"):
        kernel = offline.compile_launch(seen[0])
    info = ELFFile(io.BytesIO(kernel.asm["cubin"])).get_section_by_name(".nv.info").data()
    at = info.index(bytes([0x04, 0x2F, 0x08, 0x00]))
    assert int.from_bytes(info[at + 8 : at + 12], "little") == figures(collect(wanted, tmp_path))["registers"]


@pytest.mark.parametrize(("offset", "aligned"), [(0, True), (4, True), (2, False), (1, False)])
def test_a_view_is_as_aligned_as_its_offset(offset, aligned):
    """What decides vector width: an address known to be a multiple of 16 bytes."""
    call = execute.load_spec(f"{FILE}:SOFTMAX").implementations["triton"].call
    base = torch.empty(4 * 1024 + 16, device="meta")
    with launches.catch() as seen:
        call(base[offset : offset + 4096].view(4, 1024))
    with offline.targeting("sm_90"):
        ptx = offline.compile_launch(seen[0]).asm["ptx"]
    assert (widest_access(ptx, "ld") == 16) is aligned
    assert widest_access(ptx, "st") == 16


@pytest.mark.parametrize(("config", "said"), [
    ("BM=128,BN=256,BK=64,num_warps=8,num_stages=5", r"needs \d+ bytes of shared memory .* sm_90 has 232448"),
    ("BM=100,BN=256,BK=64,num_warps=8,num_stages=2", r"does not compile for sm_90: .*power of 2"),
])  # fmt: skip
def test_a_config_that_does_not_compile_is_one_line(config, said, tmp_path):
    with pytest.raises(compiler.CompilationFailed, match=f"mm_kernel {said}") as caught:
        collect(case("MATMUL", "4096x4096x4096-bf16", config=config), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("wanted", "said"), [
    (case("SOFTMAX", "67x781-fp32", impl="eager"), "eager launches no Triton kernel"),
    (Case("histogram", "eager", "forward", "65536x256x0-int32"), "eager calls aten::bincount, which needs data"),
    (case("TIMES", "5000-fp32", impl="picky"), "picky reads a tensor's value, which needs data"),  # a number
    (Case("ragged_attention", "eager", "forward", "2x2x1x100x64-bf16"), "eager reads a tensor's value"),  # a list
    (case("TIMES", "5000-fp32", impl="compile"), r"torch\.compile generates"),  # by its name
    (
        Case("mlp_compile_modes", "default", "forward", "16x1024x2816-bf16"),
        r"torch\.compile generates",
    ),  # by itself
])  # fmt: skip
def test_code_that_launches_nothing_or_needs_data_does_not_apply(wanted, said, tmp_path):
    with pytest.raises(NotApplicable, match=said):
        collect(wanted, tmp_path)


def test_the_artefact_keeps_the_code_and_no_path(tmp_path):
    collect(case("SOFTMAX", "67x781-fp32"), tmp_path)
    data = json.loads(gzip.decompress((tmp_path / f"case{compiler.SUFFIX}").read_bytes()))
    (launch,) = data["launches"]
    assert launch["constants"]["BLOCK"] == 1024
    assert "softmax_kernel" in launch["stages"]["ptx"]
    assert str(FILE.parent) not in json.dumps(data)
    assert re.match("ptxas(-blackwell)? ", data["ptxas"])


@AS_RECORDED
def test_compiler_ignores_another_assemblers_cache(monkeypatch, tmp_path):
    """As after a process whose Inductor had set the variable: Triton's key is the same, its PTX is of another version."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    nvidia.get_ptxas_version(90)  # Kept by the process, and part of the key.
    other = knobs.nvidia.ptxas_blackwell
    assert other.version != knobs.nvidia.ptxas.version
    wanted = case("SOFTMAX", "67x781-fp32")
    with monkeypatch.context() as polluted:
        polluted.setenv("TRITON_PTXAS_PATH", other.path)
        collect(wanted, tmp_path)
    ptx = next(tmp_path.rglob("softmax_kernel.ptx"))
    left = ptx.read_text()
    assert figures(collect(wanted, tmp_path))["compile_time"] > 0
    again = ptx.read_text()
    assert re.findall(r"\.version (.*)", left) > re.findall(r"\.version (.*)", again)
    assert "compile_time" not in figures(collect(wanted, tmp_path))


def test_interpreting_instead_is_said(monkeypatch):
    assert compiler.unavailable() is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "unset it" in (compiler.unavailable() or "")
