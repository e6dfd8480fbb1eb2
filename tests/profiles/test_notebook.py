"""Kernels of a notebook's cells: written for the worker, profiled, shown."""

import asyncio
import dataclasses
import importlib
import linecache
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tilescope
from tilescope.captures.recording import call_site
from tilescope.execution import kernel_code
from tilescope.files import names
from tilescope.notebook import cell_source, user_kernel
from tilescope.runs import changes, store

from .fake_jobs import OWN

CELLS = [
    """
import functools
import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)
OFFSETS = {"a": (1, 2.5), "b": [math.inf]}
CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=2)]
weights = torch.ones(4)
""",
    """
@triton.jit
def helper(x):
    return x * FACTOR


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weights = offsets < n
    tl.store(out_ptr + offsets, helper(tl.load(x_ptr + offsets, mask=weights)), mask=weights)


def triple(x):
    \"\"\"Three times x.\"\"\"
    out = torch.empty_like(x)
    kernel[lambda m: (triton.cdiv(x.numel(), m["BLOCK"]),)](out, x, x.numel())
    return out


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return F.relu(x * 0) + x * 3 + self.by


def right(x):
    return Shift(0)(x) + (OFFSETS["a"][0] - 1)


def made():
    def inner(x):
        return x

    return inner


nested, lam = made(), lambda x: x


def uses_weights(x):
    return x * weights


def undefined(x):
    return not_there(x)


cached = functools.wraps(right)(lambda x: x)


def twice(x):
    return right(right(x))
""",
]


@pytest.fixture(scope="module")
def notebook():
    """The namespace of a notebook whose cells were run as IPython runs them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, text in enumerate(CELLS):
        name = f"<test cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), namespace)  # noqa: S102
    exec("def lost(x): return x", namespace)  # noqa: S102
    yield namespace
    for number in range(len(CELLS)):
        del linecache.cache[f"<test cell {number}>"]


def declared(notebook, function=None, **more):
    torch = notebook["torch"]
    chosen = {"inputs": {"x": torch.ones(8, 5)}, "reference": notebook["right"], **more}
    return user_kernel.spec(function or notebook["triple"], **chosen)


def loaded(reference):
    from tilescope.execution import execute

    return execute.load_spec(reference)


def test_definitions_of_cells_become_a_file(notebook, tmp_path):
    reference = cell_source.write_spec(declared(notebook), tmp_path)
    path, _, name = reference.rpartition(":")
    assert name == "triple"
    spec = loaded(reference)
    assert (spec.summary, spec.dims, spec.workloads[0].id) == ("Three times x.", ("d0", "d1"), "8x5-fp32")
    torch = notebook["torch"]
    x = spec.inputs(spec.workloads[0], "cpu")["x"]
    assert x.shape == (8, 5)
    assert torch.equal(spec.reference(x), 3 * x)
    text = Path(path).read_text()
    assert text.index("CONFIGS = ") < text.index("def helper") < text.index("def kernel") < text.index("def triple")
    assert "FACTOR = triton.language.constexpr(3)" in text
    assert "OFFSETS = {'a': (1, 2.5, ), 'b': [float('inf'), ]}" in text
    # A local of the kernel is called like a tensor of the notebook, and is not taken for it.
    assert "weights = torch" not in text


def test_modules_beside_the_notebook_are_found(notebook, tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "beside_the_notebook.py").write_text("def right(x):\n    return 3 * x\n")
    monkeypatch.syspath_prepend(str(folder))
    own = importlib.import_module("beside_the_notebook")
    reference = cell_source.write_spec(declared(notebook, reference=own.right), tmp_path)
    # A worker's process knows neither the module nor its folder.
    monkeypatch.delitem(sys.modules, "beside_the_notebook")
    sys.path.remove(str(folder))
    x = notebook["torch"].ones(2)
    assert loaded(reference).reference(x).tolist() == [3, 3]
    # What is installed needs no such line.
    assert Path(reference.rpartition(":")[0]).read_text().count("sys.path") == 1


def test_kernel_keeps_the_name_of_its_function(notebook, tmp_path):
    spec = dataclasses.replace(declared(notebook), name="right", reference=notebook["twice"])
    reference = cell_source.write_spec(spec, tmp_path)
    assert reference.endswith(":right_")
    x = notebook["torch"].ones(2)
    assert loaded(reference).reference(x).tolist() == [9, 9]


@pytest.mark.parametrize(("name", "said"), [
    ("uses_weights", "'weights' is a Tensor, which cannot be given to the worker: make it inside the function"),
    ("undefined", "'undefined' uses 'not_there', which is not defined: run the cell that defines it"),
    ("nested", "'inner' is defined inside another function: write it with def, at the top of a cell"),
    ("cached", "'right' is not as its cell defines it: put what wraps it above the def"),
    ("lam", "'<lambda>' is a lambda: write it with def, at the top of a cell"),
    ("lost", "source of 'lost' is not known here: put it into a file"),
])  # fmt: skip
def test_values_that_cannot_be_written_are_named(notebook, tmp_path, name, said):
    with pytest.raises(cell_source.CannotCarry) as refused:
        cell_source.write_spec(declared(notebook, notebook[name]), tmp_path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_spec_of_a_module_is_found_in_its_file(tmp_path, monkeypatch):
    import tilescope_kernels
    from tilescope.notebook import profiling

    assert profiling.reference_to(tilescope_kernels.CATALOG[0], tmp_path) == tilescope_kernels.CATALOG[0].name
    file = tmp_path / "mine_in_a_file.py"
    file.write_text(f"from {tilescope_kernels.CATALOG[0].inputs.__module__} import SPEC as BASE\n"
                    "from dataclasses import replace\ndef inputs(workload, device):\n    return {}\n"
                    "MINE = replace(BASE, inputs=inputs)\n")  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_in_a_file

    assert profiling.reference_to(mine_in_a_file.MINE, tmp_path) == f"{file}:MINE"


def test_file_declares_a_kernel_from_examples(tmp_path):
    from tilescope.execution import describe

    file = tmp_path / "declared_from_examples.py"
    file.write_text("import tilescope, torch\ndef double(x):\n    return 2 * x\n"
                    "SPEC = tilescope.spec(double, inputs={'x': torch.ones(8, 5)}, reference=double)\n")  # fmt: skip
    (entry,) = describe.catalog([f"{file}:SPEC"])
    assert (entry["path"], entry["dims"]) == (str(file), ["d0", "d1"])


@pytest.mark.usefixtures("fakes")
def test_listener_that_raises_ends_the_job(tmp_path, no_gpu):
    def raise_at_the_hanging_case(event):
        if "hangs" in event.get("case", ""):
            raise RuntimeError("heard enough")

    async def as_in_a_notebook():
        with pytest.raises(RuntimeError, match="heard enough"):
            tilescope.profile_kernels(
                OWN, implementations=["hangs"], workloads=["small"],
                collectors=["fakes.quick"], runs_dir=tmp_path, on_event=raise_at_the_hanging_case,
            )  # fmt: skip

    asyncio.run(as_in_a_notebook())
    assert store.list_runs([tmp_path]) == []


def test_examples_are_drawn_at_any_size(notebook):
    torch = notebook["torch"]
    spec = declared(
        notebook,
        inputs={"x": torch.randn(8, 5, dtype=torch.bfloat16), "i": torch.tensor([3, 7, 5, 4, 3]), "eps": 1e-5},
    )
    small, large = spec.workloads[0], spec.workload("400x300-fp32")
    assert small.id == "8x5-bf16"
    drawn = spec.inputs(large, "cpu")
    assert (drawn["x"].shape, drawn["x"].dtype, drawn["eps"]) == ((400, 300), torch.float32, 1e-5)
    assert (drawn["i"].shape, set(drawn["i"].tolist()), drawn["i"].dtype) == ((300,), {3, 4, 5, 6, 7}, torch.int64)
    assert torch.equal(drawn["x"], spec.inputs(large, "cpu")["x"])
    assert drawn["x"].std().item() == pytest.approx(1, rel=0.02)


def test_cost_follows_from_the_reference(notebook):
    torch = notebook["torch"]
    spec = user_kernel.spec(
        notebook["triple"], inputs={"a": torch.ones(16, 32), "b": torch.ones(32, 8)}, reference=lambda a, b: a @ b + 1
    )
    cost = spec.cost(spec.workload("64x128x16-bf16"), "forward")
    # 2MNK of the product, and one addition for each of its results.
    assert cost.flops == 2 * 64 * 128 * 16 + 64 * 16
    assert (cost.bytes_read, cost.bytes_written) == (2 * (64 * 128 + 128 * 16), 2 * 64 * 16)
    assert cost.pipe == "bf16"
    # A reference may read values.
    reads, raises = (declared(notebook, reference=reference) for reference in (lambda x: x * x.max().item(), refused))
    cost = reads.cost(reads.workloads[0], "forward")
    assert (cost.flops, cost.bytes_written) == (40 + 1 + 40, 4 * 40)
    with pytest.raises(
        ValueError, match=r"the reference raises TypeError: no such reference, line \d+ of test_notebook.py"
    ):
        raises.cost(raises.workloads[0], "forward")


def refused(x):
    raise TypeError("no such reference\nat all")


@pytest.mark.parametrize(("function", "inputs", "said"), [
    ("kernel", {}, "kernel is a Triton kernel: give the function that launches it"),
    ("OFFSETS", {}, "is no function"),
    ("triple", {"n": 3}, "no input is a tensor"),
    ("triple", {"x": "transposed"}, "example x is not contiguous"),
    ("triple", {"x": "complex"}, "inputs are torch.complex64"),
])  # fmt: skip
def test_unsuitable_examples_are_named(notebook, function, inputs, said):
    torch = notebook["torch"]
    tensors = {"transposed": torch.ones(4, 3).T, "complex": torch.ones(3, dtype=torch.complex64)}
    given = {name: tensors.get(value, value) for name, value in inputs.items()}
    with pytest.raises(ValueError, match=said):
        user_kernel.spec(notebook[function], inputs=given, reference=notebook["right"])


def test_function_without_examples_says_what_to_give(notebook):
    with pytest.raises(ValueError, match="triple: give examples of its inputs and a reference"):
        tilescope.profile_kernels(notebook["triple"])


def test_function_of_a_cell_is_profiled(notebook, tmp_path, no_gpu):
    run = tilescope.profile_kernels(
        notebook["triple"], inputs={"x": notebook["torch"].ones(8, 5)}, reference=notebook["right"],
        implementations=["triton"], workloads=["example", "64x100-fp32"], collectors=["check", "interpreter"],
        runs_dir=tmp_path, check_limit=200,
    )  # fmt: skip
    assert run.failures == ()
    figures = run.frame[run.frame["workload"] == "64x100-fp32"].set_index("metric")["value"]
    assert figures["unique_bytes_read"] == figures["unique_bytes_written"] == 64 * 100 * 4
    assert figures["relative_error"] <= figures["tolerance"]
    assert run.path.parent == tmp_path
    (kept,) = (run.path / "cells").iterdir()
    assert "def triple(x):" in kept.read_text()
    # What was measured can be told from what the cell says later.
    assert changes.changed_files(run.run) == []
    Path(run.run.kernels["triple"]["file"]).write_text("changed")
    assert changes.changed_files(run.run) == ["triple"]


@pytest.mark.usefixtures("fakes")
def test_interrupt_keeps_cases_and_says_where(tmp_path, monkeypatch, no_gpu):
    threads = []

    def interrupt_after_the_first(event):
        threads.append(threading.current_thread())
        if event["event"] == "result":
            os.kill(os.getpid(), signal.SIGINT)

    async def as_in_a_notebook():
        with pytest.raises(KeyboardInterrupt) as stopped:
            tilescope.profile_kernels(
                OWN, implementations=["good", "hangs"], workloads=["small"],
                collectors=["fakes.quick"], runs_dir=tmp_path, on_event=interrupt_after_the_first,
            )  # fmt: skip
        return str(stopped.value)

    # As a notebook's kernel has it: the signal is an exception where the cell is, not a cancelled loop.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        said = loop.run_until_complete(as_in_a_notebook())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, handler)
    (kept,) = store.list_runs([tmp_path])
    opens, goes_on = f"tilescope.load({kept.id!r}) opens the finished cases", f"tilescope.resume({kept.id!r}) goes on"
    assert said == f"interrupted: {opens}, {goes_on}"
    assert not kept.complete
    assert set(tilescope.load(str(kept.path)).frame["impl"]) >= {"good"}
    monkeypatch.setenv("FAKES_ANSWER", "1")
    again = tilescope.resume(kept.path)
    assert again.run.complete
    assert "compiler" in set(again.frame.loc[again.frame["impl"] == "hangs", "source"])
    with pytest.raises(ValueError, match="is complete: there is nothing to resume"):
        tilescope.resume(kept.path)
    assert set(threads) == {threading.main_thread()}


CELL = """
import triton, triton.language as tl

@triton.jit
def mine(x_ptr):
    tl.store(x_ptr, 1.0)

def where():
    return ask()
"""


@pytest.mark.parametrize("known", [True, False])
def test_a_cells_file_is_called_by_its_number(monkeypatch, known):
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell(user_ns={"ask": call_site})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell if known else None))
    for cell in ("1 + 1", CELL):
        shell.run_cell(cell, store_history=True)
    file = shell.user_ns["mine"].fn.__code__.co_filename
    assert kernel_code.is_cell(file)
    assert kernel_code.file_stem(file) == ("notebook_cell_2" if known else "notebook_cell")
    assert shell.user_ns["where"]()[0] == ("cell 2:8" if known else "cell:8")


@pytest.mark.parametrize(("name", "said"), [
    ("notebook_cell_5.py", "notebook cell 5"), ("notebook_cell.py", "notebook cell"), ("notebook_cell_5-2.py", "notebook cell 5"),
    ("3738046210.py", "notebook cell"), ("softmax.py", "softmax.py"), ("cell_5.py", "cell_5.py"), ("cuda12.py", "cuda12.py"),
])  # fmt: skip
def test_a_cell_is_told_as_people_know_it(name, said):
    assert names.readable(name) == said
