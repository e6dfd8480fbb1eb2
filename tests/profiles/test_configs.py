"""Configs of launches: observed as Triton makes them, kept with the run, and shown."""

import gc
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import triton
import triton.language as tl
from tilescope.collectors import compiler
from tilescope.execution import execute, observe, offline
from tilescope.files import bounded_reading
from tilescope.models import summary, text_table
from tilescope.runs import store
from tilescope.runs.publish import publish
from tilescope.runs.store import RunWriter
from tilescope.table import launch_configs, schema
from tilescope.table.case import Case
from triton.compiler.compiler import max_shared_mem
from triton.runtime import driver

from . import made_up
from .small_kernels import copy_kernel

CASE = Case("twice", "triton", "forward", "5000-fp32")
FILE = Path(__file__).parent / "small_kernels.py"

#: How long a trial takes, by its place: the second config is the fastest.
TRIALS = [3.0, 1.0, 2.0]
tried: list[float] = []


def bench(call, quantiles):
    call()
    tried.append(TRIALS[len(tried)])
    return [tried[-1]] * 3


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 256})],
    key=["n"],
    do_bench=bench,
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def twice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, TYPE: tl.constexpr):  # noqa: PLR0917
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n).to(TYPE)
    tl.store(y_ptr + offsets, x * 2, mask=offsets < n)


class Accepts(offline.OfflineDriver):
    """A GPU that takes every launch and does nothing: all of Triton's own way there is gone."""

    def __init__(self):
        super().__init__("sm_90")
        self.launched: list[tuple[Any, ...]] = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 227 << 10},
            load_binary=lambda *of: ("module", 1, 32, 0, 1024),
            unload_module=lambda module: None,
        )

    def launcher_cls(self, source, metadata):
        return lambda *arguments: self.launched.append((metadata.name, metadata.num_warps))


@pytest.fixture
def gpu():
    accepts = Accepts()
    driver.set_active(accepts)
    yield accepts
    for kept in (twice_kernel.fn.fn.device_caches, copy_kernel.device_caches, twice_kernel.cache, tried):
        kept.clear()
    max_shared_mem.cache_clear()
    gc.collect()  # Triton 3.9 asks the driver to unload what is dropped
    driver.set_active(None)


def call():
    x = torch.zeros(5000)
    twice_kernel[lambda meta: (triton.cdiv(5000, meta["BLOCK"]),)](x, x, 5000, TYPE=tl.float32)
    copy_kernel[(4,)](x, x, 5000, num_warps=8)


def test_what_an_autotuner_chose_is_seen_and_its_trials_are_not(gpu):
    before = triton.JITFunction.run, triton.runtime.Autotuner.run
    with observe.launches() as seen:
        # Kernels look whether anybody stands in for it, and would take another way.
        assert triton.JITFunction.run is before[0]
        call()
    assert (triton.JITFunction.run, triton.runtime.Autotuner.run) == before
    assert tried == TRIALS
    assert len(gpu.launched) == len(TRIALS) + 2
    twice, copy = seen
    assert twice == {
        "function": "twice_kernel",
        "config": {"BLOCK": 128, "EVEN": False, "TYPE": "fp32", "num_warps": 2, "num_stages": 3},
        "autotuned": ["BLOCK", "num_warps", "num_stages"],
    }
    assert copy == {
        "function": "copy_kernel", "config": {"BLOCK": 32, "num_warps": 8, "num_stages": 3}, "autotuned": [],
    }  # fmt: skip
    # By now the choice is remembered, as it is when a collector looks.
    with observe.launches() as again:
        call()
    assert again == seen
    assert tried == TRIALS


def test_configs_of_launches_are_written_beside_the_artefact(gpu, tmp_path):
    artefact = tmp_path / "any.json"
    observe.once(call, artefact, CASE)
    found = launch_configs.validate(launch_configs.beside(artefact, CASE, "events"))
    assert found[["launch", "function", "autotuned", "source"]].to_numpy().tolist() == [
        [0, "twice_kernel", "BLOCK=128,num_warps=2,num_stages=3", "events"],
        [1, "copy_kernel", "", "events"],
    ]
    assert found["launched"].tolist()[0] == "BLOCK=128,EVEN=False,TYPE=fp32,num_warps=2,num_stages=3"
    assert set(found["kernel"]) == {"twice"}
    assert launch_configs.beside(artefact, Case("other", *"abc"), "events").empty


def test_an_object_in_a_config_has_its_name_and_not_its_address():
    constants = {"F": bench, "T": torch.float16, "O": object(), "C": tl.constexpr(4), "N": None, "S": "tf32"}
    options = SimpleNamespace(num_warps=4, num_stages=1, num_ctas=2, maxnreg=None)
    found = launch_configs.launched("k", constants, options)
    assert found["config"] == {
        "F": "bench", "T": "torch.float16", "O": "object", "C": 4, "N": None, "S": "tf32", "num_warps": 4, "num_stages": 1, "num_ctas": 2,
    }  # fmt: skip


def test_the_compiler_writes_the_config_that_it_compiled(tmp_path):
    case = Case(f"{FILE}:TIMES", "triton", "backward", "5000-fp32")
    artefact = tmp_path / f"a{compiler.SUFFIX}"
    compiler.capture(case, execute.load_spec(case.kernel), artefact, {"target": "sm_90"})
    (row,) = launch_configs.beside(artefact, case, "compiler").to_dict("records")
    assert (row["kernel"], row["function"]) == ("TIMES", "scale_kernel")
    assert row["launched"] == "BLOCK=1024,EVEN=False,num_warps=2,num_stages=3"
    assert row["autotuned"] == "BLOCK=1024,num_warps=2,num_stages=3"


def rows(source, *launches, case=CASE):
    known = {"kernel": case.name, "impl": case.impl, "pass": case.direction, "workload": case.workload}
    return [
        {**known, "dtype": case.dtype, "config": case.config, "source": source, "launch": number, "function": function,
         "launched": launched, "autotuned": autotuned}
        for number, (function, launched, autotuned) in enumerate(launches)
    ]  # fmt: skip


def told(*given, case=CASE):
    table = schema.frame([case.row("gpu_time", 1e-6, "torch_profiler", launch=0, function="k")])
    launched = launch_configs.frame([row for some in given for row in some])
    (chosen,) = summary.summarise(table, made_up.GPU, {}, launched)["chosen"]
    return str(chosen)


def test_the_chosen_config_comes_from_the_best_source():
    fast, other, guess = ([("k", f"BLOCK={b},EVEN=True,num_warps=4", f"BLOCK={b},num_warps=4")] for b in (64, 128, 256))
    assert told(rows("events", *fast), rows("ncu", *fast), rows("compiler", *guess)) == "BLOCK=64,num_warps=4"
    assert told(rows("compiler", *guess)) == "BLOCK=256,num_warps=4 (predicted)"
    # Each process chooses anew, and may choose another.
    both = told(rows("ncu", *other), rows("torch_profiler", *fast))
    assert both == "BLOCK=64,num_warps=4 (torch_profiler); BLOCK=128,num_warps=4 (ncu)"
    two = [("first", "A=1", ""), ("second", "A=2", ""), ("first", "A=1", "")]
    assert told(rows("events", *two)) == "first: A=1; second: A=2"
    six = [(f"k{n}", "A=1", "") for n in range(6)]
    assert told(rows("events", *six)).endswith("k3: A=1; and 2 more")
    assert told() == ""
    given = Case("twice", "triton", "forward", "5000-fp32", "BLOCK=64")
    assert told(rows("events", *fast, case=given), case=given) == ""


@pytest.fixture
def loaded(tmp_path):
    writer = RunWriter(tmp_path / "runs", made_up.run(kernels={"twice": {"file": ""}}))
    writer.append(schema.frame([CASE.row("gpu_time", 1e-6, "torch_profiler", launch=0, function="k")]))
    for source in ("torch_profiler", "events"):
        writer.append_configs(launch_configs.frame(rows(source, ("k", "BLOCK=64,EVEN=True", "BLOCK=64"))))
    return store.open_run(writer.finish())


def test_configs_come_back_as_they_were(loaded, tmp_path):
    assert loaded.configs["source"].tolist() == ["torch_profiler", "events"]
    assert dict(loaded.configs.dtypes.astype(str)) == dict(launch_configs.frame([]).dtypes.astype(str))
    assert sorted(path.name for path in loaded.folder.iterdir()) == ["configs.parquet", "run.json", "table.parquet"]
    kept = store.open_run(publish(loaded, tmp_path / "kept"))
    pd.testing.assert_frame_equal(kept.configs, loaded.configs)
    assert "BLOCK=64" in text_table.text(kept)


def test_damaged_configs_are_noted_when_the_run_is_opened(loaded, tmp_path):
    (loaded.folder / "configs.parquet").write_bytes(b"PAR1damaged")
    opened = store.open_run(loaded.folder)
    assert re.search(r"is lost: \S+configs\.parquet cannot be read", opened.run.notes[-1])
    assert opened.configs.empty
    pd.testing.assert_frame_equal(opened.table, loaded.table)
    assert store.open_run(loaded.folder).run.notes == opened.run.notes  # and nothing was written
    for wrong in ({"launch": -1}, {"source": "nobody"}):
        with pytest.raises(schema.SchemaError):
            launch_configs.validate(launch_configs.frame([{**rows("events", ("k", "A=1", ""))[0], **wrong}]))
    tmp_path.joinpath(CASE.slug + launch_configs.SUFFIX).write_text('[{"function": 3}]')
    with pytest.raises(bounded_reading.Unreadable, match="function is a whole number"):
        launch_configs.beside(tmp_path / "any", CASE, "events")
