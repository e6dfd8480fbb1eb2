"""Changes of GPU code are distinguished from changes of the CPU's, and launches that stay the same are found."""

import asyncio
import dataclasses
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import tilescope_kernels
from tilescope.jobs import recompiled, relaunches
from tilescope.runs import gpu_code, recorded_tree, same_launches, staleness, store
from tilescope.runs.definitions import Recorded
from tilescope.runs.same_launches import Problem
from tilescope.runs.todays_code import Today

KERNELS = """import triton
import helpers
from helpers import LOG, blocks
WIDTH = 4
LIMIT = 100
@triton.jit
def add_kernel(x):
    return helpers.load(x) + WIDTH
@triton.jit(do_not_specialize=["x"])
def scale_kernel(x):
    return x * LOG
def add(x):  # launches
    return add_kernel[(blocks(x) + LIMIT,)](x)
def eager(x):
    return x + factor(x)
def factor(x):
    return 1
SPEC = KernelSpec(implementations={"triton": Implementation(add), "eager": eager}, workloads=(Workload(1),), inputs=len)
"""
HELPERS = """import triton
LOG = 1.5
@triton.jit
def load(x):
    return masked(x)
@triton.jit
def masked(x):
    return x
def blocks(x):
    return x
"""
BOTH = frozenset({"add_kernel", "scale_kernel", "load", "masked"})


def unchanged(tmp_path: Path, kept: dict[str, str], now: dict[str, str]) -> frozenset[str]:
    """The GPU functions that are what they were, of ``kept`` texts and files that are ``now`` here."""
    for name, text in now.items():
        (tmp_path / name).write_text(text)
    path = tmp_path / "own.py"
    today = Today(path)
    return gpu_code.unchanged(Recorded(kept, today), "own.py", today, str(path))


@pytest.mark.parametrize(
    ("file", "was", "now", "same"),
    [
        ("own.py", "", "", BOTH),
        ("own.py", "LIMIT = 100", "LIMIT = 99", BOTH),
        ("own.py", "blocks(x) + LIMIT", "2 * blocks(x)", BOTH),
        ("helpers.py", "def blocks(x):\n    return x", "def blocks(x):\n    return 2 * x", BOTH),
        ("own.py", "def add(x):", "@triton.jit\ndef more_kernel(x):\n    return x\ndef add(x):", BOTH),
        ("own.py", "(Workload(1),)", "(Workload(1), Workload(2))", BOTH),
        ("own.py", "x * LOG", "2 * x * LOG", BOTH - {"scale_kernel"}),
        ("own.py", '["x"]', '["y"]', BOTH - {"scale_kernel"}),
        ("helpers.py", "LOG = 1.5", "LOG = 2.5", BOTH - {"scale_kernel"}),
        ("own.py", "WIDTH = 4", "WIDTH = 8", BOTH - {"add_kernel"}),
        ("helpers.py", "def masked(x):\n    return x", "def masked(x):\n    return -x", {"scale_kernel"}),
        ("own.py", "scale_kernel", "scaling_kernel", BOTH - {"scale_kernel"}),
        # What it is measured beside.
        ("own.py", "x + factor(x)", "x", set()),
        ("own.py", "return 1", "return 2", set()),
        ("own.py", "inputs=len", "inputs=max", set()),
        ("own.py", "(Workload(1),)", "(Workload(3),)", set()),
    ],
)  # fmt: skip
def test_changes_of_gpu_functions_are_distinguished_from_changes_of_launchers(
    tmp_path: Path, file: str, was: str, now: str, same: set[str]
) -> None:
    kept = {"own.py": KERNELS, "helpers.py": HELPERS}
    assert was in kept[file]
    assert unchanged(tmp_path, kept, {**kept, file: kept[file].replace(was, now)}) == same


def test_a_gpu_function_without_kept_helpers_is_not_known_to_be_unchanged(tmp_path: Path) -> None:
    here = {"own.py": KERNELS, "helpers.py": HELPERS}
    assert unchanged(tmp_path, {"own.py": KERNELS}, here) == frozenset()


def test_gpu_functions_are_whole_if_all_that_they_use_was_kept(tmp_path: Path) -> None:
    for name, text in {
        "own.py": KERNELS + "ALONE = 1\n@triton.jit\ndef alone(x):\n    return x + ALONE\n",
        "helpers.py": HELPERS,
    }.items():
        (tmp_path / name).write_text(text)
    today = Today(tmp_path / "own.py")
    texts = {name: (tmp_path / name).read_text() for name in ("own.py", "helpers.py")}
    assert gpu_code.kept_whole(Recorded(texts, today)) == BOTH | {"alone"}
    assert gpu_code.kept_whole(Recorded({"own.py": texts["own.py"]}, today)) == {"alone"}


def test_a_digest_covers_all_code_that_is_used_without_comments(tmp_path: Path) -> None:
    def digest(kernels: str, helpers: str) -> str:
        (tmp_path / "own.py").write_text(kernels)
        (tmp_path / "helpers.py").write_text(helpers)
        return same_launches.code(str(tmp_path / "own.py"))

    first = digest(KERNELS, HELPERS)
    assert first
    documented = KERNELS.replace("def factor(x):\n", 'def factor(x):\n    """Of it."""\n    # One.\n\n')
    assert digest(documented.replace("# launches", ""), "# More.\n" + HELPERS) == first
    assert digest(KERNELS, HELPERS.replace("def blocks(x):\n    return x", "def blocks(x):\n    return x + 1")) != first
    assert digest(KERNELS.replace('["x"]', '["# x"]'), HELPERS) != first
    assert digest("no python (", HELPERS) == ""


@pytest.mark.parametrize(
    "named", ["{int: pairs, str: alone}", "(pairs, alone)", "[alone, *(pairs,)]", "dict(one=pairs, other=alone)"]
)
def test_a_digest_covers_modules_that_are_only_named_as_values(tmp_path: Path, named: str) -> None:
    (tmp_path / "own.py").write_text("import plans\ndef product(x):\n    return plans.plan(x)\n")
    plan = "def plan(x):\n    return next(kernel.plan(x) for kernel in KERNELS)\n"
    (tmp_path / "plans.py").write_text(f"import alone\nimport pairs\nKERNELS = {named}\n{plan}")
    (tmp_path / "alone.py").write_text("def plan(x):\n    return x\n")
    (tmp_path / "pairs.py").write_text("import tilings\ndef plan(x):\n    return tilings.best(x)\n")
    (tmp_path / "tilings.py").write_text("GAIN = 1.05\ndef best(x):\n    return GAIN * x\n")
    first = same_launches.code(str(tmp_path / "own.py"))
    assert same_launches.files(str(tmp_path / "own.py")) == {
        f"{name}.py" for name in ("own", "plans", "alone", "pairs", "tilings")
    }
    (tmp_path / "tilings.py").write_text("GAIN = 1.06\ndef best(x):\n    return GAIN * x\n")
    assert same_launches.code(str(tmp_path / "own.py")) != first


@pytest.fixture
def relaunched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> store.LoadedRun:
    """A recording of which only the CPU's code has changed since, of one kernel, and nothing kept of that."""
    monkeypatch.setattr(same_launches, "FILE", tmp_path / "kept.jsonl")
    recorded = (store.open_run(known.path) for known in store.list_runs([store.recorded_dir()]))
    run = next(one for one in recorded if "vector_add" in one.run.kernels and one.table["config"].eq("").all())
    (name,) = (name for name in run.sources["vector_add"] if name == "vector_add.py")
    text = run.sources["vector_add"][name] + "\n\ndef _gone() -> None:\n    pass\n"
    facts = {**run.run.kernels["vector_add"], "sha256": sha256(text.encode()).hexdigest()}
    table = run.table[run.table["kernel"] == "vector_add"].reset_index(drop=True)
    one = dataclasses.replace(run, run=dataclasses.replace(run.run, kernels={"vector_add": facts}), table=table)
    vars(one)["sources"] = {"vector_add": {**run.sources["vector_add"], name: text}}
    return one


def test_problems_are_told_to_be_the_same_when_todays_launches_are(relaunched: store.LoadedRun) -> None:
    every = {Problem("vector_add", "forward", name) for name in relaunched.table["workload"].unique()}
    assert len(every) == 5
    assert staleness.stale_kernels(relaunched) == ["vector_add"]
    # Where nobody has looked, nothing is known to be the same.
    assert staleness.stale_problems(relaunched) == (every, set())
    table = relaunched.table
    of_one = (table["workload"] == "67108864-fp32") & (table["metric"] == "grid_blocks")
    other = dataclasses.replace(relaunched, table=table.assign(value=table["value"].mask(of_one, table["value"] + 1)))
    vars(other)["sources"] = relaunched.sources
    one = Problem("vector_add", "forward", "67108864-fp32")
    same_launches.keep(asyncio.run(relaunches.same_problems([other])))
    assert staleness.stale_problems(other) == ({one}, every - {one})
    assert staleness.stale_on_gpu(other) == ["vector_add"]
    # What is kept is not asked again: of other code it is no answer.
    assert asyncio.run(relaunches.same_problems([relaunched])).popitem()[1] == every - {one}
    same_launches.FILE.write_text(same_launches.FILE.read_text().replace('"code":"', '"code":"0'))
    assert staleness.stale_problems(relaunched) == (every, set())
    same_launches.keep(asyncio.run(relaunches.same_problems([relaunched])))
    assert staleness.stale_problems(relaunched) == (set(), every)
    assert staleness.stale_on_gpu(relaunched) == []


def test_problems_are_the_same_if_their_gpu_functions_are_compiled_to_the_same(
    monkeypatch: pytest.MonkeyPatch, relaunched: store.LoadedRun
) -> None:
    package = Path(tilescope_kernels.__file__).parent

    def as_recorded(text: str) -> str:
        assert "_add_block(" in text
        return text.replace("_add_block(", "_sum_block(")

    def take_out(commit: str, package: Path, folder: Path) -> Path:
        shutil.copytree(package, folder / package.name)
        file = folder / package.name / "elementwise" / "vector_add.py"
        file.write_text(as_recorded(file.read_text()))
        return folder / package.name

    text = as_recorded(relaunched.sources["vector_add"]["vector_add.py"])
    relaunched.sources["vector_add"]["vector_add.py"] = text
    relaunched.run.kernels["vector_add"]["sha256"] = sha256(text.encode()).hexdigest()
    monkeypatch.setattr(recompiled, "tree_of", lambda run, kernel: ("then", package))
    monkeypatch.setattr(recorded_tree, "take_out", take_out)
    assert not any(one.same_texts for one in relaunches._candidates(relaunched, "vector_add").values())
    (problems,) = asyncio.run(relaunches.same_problems([relaunched])).values()
    assert len(problems) == 5


def test_problems_with_pytorchs_kernels_are_not_compared() -> None:
    recorded = (store.open_run(known.path) for known in store.list_runs([store.recorded_dir()]))
    run = next(one for one in recorded if "histogram" in one.run.kernels)
    assert "histogram_kernel" in gpu_code.unchanged(*staleness.sides(run, "histogram"))
    assert run.table["function"].str.contains("FillFunctor").any()  # of PyTorch's
    assert relaunches._candidates(run, "histogram") == {}
