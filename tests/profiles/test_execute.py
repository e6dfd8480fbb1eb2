"""A case becomes a call."""

import sys
from pathlib import Path

import pytest
import torch
from tilescope.execution import execute
from tilescope.table.case import Case
from tilescope_kernels.spec import STEP, Implementation, KernelSpec, Workload

FILE = Path(__file__).parent / "small_kernels.py"


def case(name, impl="eager", direction="forward", workload="small", config=""):
    ref = f"{FILE}:{name}"
    spec = execute.load_spec(ref)
    return Case(ref, impl, direction, spec.workload(workload).id, config)


def test_load_spec_loads_a_file_once():
    first = execute.load_spec(f"{FILE}:TIMES")
    assert first.name == "times_three"
    assert execute.load_spec(f"{FILE}:TIMES") is first


@pytest.mark.parametrize(("ref", "message"), [
    ("no_such_kernel", "unknown kernel 'no_such_kernel': use one of .*path/to/file.py:SPEC"),
    ("nowhere.py:SPEC", "nowhere.py is not a file"),
    (str(FILE), "write .*small_kernels.py:SPEC"),
    (f"{FILE}:NOTHING", "has no 'NOTHING'"),
    (f"{FILE}:TOLERANCE", "is a dict, not a KernelSpec"),
])  # fmt: skip
def test_load_spec_unknown_kernel_is_refused(ref, message):
    with pytest.raises(ValueError, match=message) as caught:
        execute.load_spec(ref)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("code", "why"), [
    ("import no_such_module", "ModuleNotFoundError: No module"),
    pytest.param(
        "import torch\ntorch.ones(1, device='cuda')",
        r"it needs a GPU \(.*\): profile the script itself \('tilescope profile .*broken\.py'\)",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here"),
    ),
    # Once a GPU was assumed in the process, PyTorch says it in thirty lines.
    pytest.param(
        "raise RuntimeError('no kernel for CUDA\\nCPU: registered')",
        r"it needs a GPU \(RuntimeError: no kernel for CUDA CPU: registered\): profile the script itself",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here"),
    ),
    ("raise RuntimeError('one\\ntwo')", "RuntimeError: one two"),
    ("import sys\nsys.exit('that\\nis all')", "it calls sys.exit; keep what only a script does under if __name__"),
])  # fmt: skip
def test_load_spec_file_that_does_not_import_says_why(code, why, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(code)
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"broken\.py does not import: {why}") as caught:
            execute.load_spec(f"{broken}:SPEC")
        assert "\n" not in str(caught.value)
    assert not [name for name in sys.modules.keys() - before if name.startswith("broken")]


@pytest.mark.parametrize(("wanted", "message"), [
    (case("TIMES", "fused"), "no implementation 'fused': use one of triton, wrong, in_place, picky, eager"),
    (case("SOFTMAX", direction="backward", workload="ragged"), "small_softmax has no backward pass"),
    (case("TIMES", "absent"), "needs no-such-package: pip install no-such-package"),
    (case("TIMES", config="BLOCK=1"), "no config 'BLOCK=1': it takes none"),
    (case("MATMUL", "triton", config="BLOCK=1"), "it takes BM, BN, BK, num_warps, num_stages"),
])  # fmt: skip
def test_prepare_case_that_cannot_run_says_why(wanted: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        execute.prepare(execute.load_spec(wanted.kernel), wanted, "cpu")


def test_prepare_runs_forward_and_backward():
    spec = execute.load_spec(f"{FILE}:TIMES")
    forward = execute.prepare(spec, case("TIMES"), "cpu")()
    x = execute.draw_inputs(spec, case("TIMES"), "cpu")["x"]
    assert torch.equal(forward, x * 3)
    assert not forward.requires_grad
    backward = execute.prepare(spec, case("TIMES", direction="backward"), "cpu")
    (gradient,) = backward()
    (again,) = backward()
    assert torch.equal(gradient, again)
    assert torch.allclose(gradient / 3, execute.draw_gradients((x.requires_grad_(),))[0])


def test_a_compiled_backward_pass_may_run_again_after_another_case_is_prepared():
    spec = execute.load_spec(f"{FILE}:TIMES")
    for direction in ("backward", "forward"):
        execute.prepare(spec, case("TIMES", direction=direction), "cpu")
        # PyTorch refuses to keep a graph where this is set when the backward pass runs, if that came from Inductor's cache.
        assert torch._functorch.config.donated_buffer is False


def test_prepare_of_both_passes_gives_the_gradients():
    spec = execute.load_spec(f"{FILE}:TIMES")
    both = KernelSpec(**{**vars(spec), "passes": (*spec.passes, STEP)})
    wanted = Case(f"{FILE}:TIMES", "eager", STEP, spec.workload("small").id)
    step, backward = (
        execute.prepare(both, wanted, "cpu"),
        execute.prepare(spec, case("TIMES", direction="backward"), "cpu"),
    )
    assert torch.equal(step()[0], backward()[0]) and torch.equal(step()[0], backward()[0])


def test_prepare_rotates_inputs():
    seen: list[int] = []
    spec = KernelSpec(
        name="identity", summary="", dims=("n",),
        implementations={"eager": Implementation(lambda x: seen.append(x.data_ptr()))}, reference=lambda x: x,
        inputs=lambda workload, device: {"x": torch.ones(workload.elements, device=device)},
        workloads=(Workload({"n": 4}, "fp32"),), cost=lambda workload, direction: None, tolerance={},
    )  # fmt: skip
    run = execute.prepare(spec, Case("identity", "eager", "forward", "4-fp32"), "cpu", rotate=3)
    for _ in range(6):
        run()
    assert len(set(seen[:3])) == 3
    assert seen[:3] == seen[3:]


def test_draw_inputs_on_meta_keeps_the_geometry():
    def inputs(workload, device):
        torch.Generator(device)  # raises on meta
        base = torch.zeros(workload.elements + 3, device=device)
        return {"x": base[3:], "y": base[: workload.elements].unflatten(0, (2, -1)).T}

    spec = execute.load_spec(f"{FILE}:TIMES")
    odd = KernelSpec(**{**vars(spec), "inputs": inputs})
    drawn = execute.draw_inputs(odd, Case("odd", "eager", "forward", "8-fp32"), "meta")
    assert drawn["x"].is_meta
    assert drawn["x"].storage_offset() == 3
    assert drawn["y"].stride() == (1, 4)
