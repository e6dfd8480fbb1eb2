"""Launches of recorded code are compiled again and compared with today's: what the GPU runs counts, and not how it is written."""

import asyncio
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from tilescope.collectors import bare_ptx, compiled_launches
from tilescope.jobs import recompiled
from tilescope.runs import recorded_tree, same_launches, staleness, store
from tilescope.runs.provenance import git_revision
from tilescope.runs.same_launches import Problem
from tilescope.table.case import Case

KERNELS = '''import torch
import triton
import triton.language as tl
from tilescope_kernels.spec import Cost, Implementation, KernelSpec, Workload
BLOCK = 256
@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    """Scales."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)
def scale(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), 3.0, BLOCK=BLOCK)
    return y
SPEC = KernelSpec(
    name="scale", summary="scales", dims=("N",), passes=("forward",), implementations={"triton": Implementation(scale)},
    reference=lambda x: x * 3, inputs=lambda w, device: {"x": torch.empty(w.dims["N"], device=device)},
    workloads=(Workload({"N": 1000}, "fp32"),), cost=lambda w, direction: Cost(1, 4, 4), tolerance={"fp32": 1e-6},
)
'''
SCALED = "tl.load(x_ptr + at, mask=at < n) * factor"
SAME = {
    "renamed": [("scale_kernel", "times_kernel")],
    "a flag that is off": [
        ("factor, BLOCK: tl.constexpr)", "factor, BLOCK: tl.constexpr, TWICE: tl.constexpr = False)"),
        ("    tl.store(", "    if TWICE:\n        factor *= 2\n    tl.store("),
    ],
    "an argument that is absent": [
        ("n, factor, BLOCK: tl.constexpr)", "n, factor, more, BLOCK: tl.constexpr)"), ("3.0, BLOCK=", "3.0, None, BLOCK="),
    ],
    "a helper": [
        ("@triton.jit\ndef scale_kernel", "@triton.jit\ndef times(x, y):\n    return x * y\n@triton.jit\ndef scale_kernel"),
        (SCALED, "times(tl.load(x_ptr + at, mask=at < n), factor)"),
    ],
    "other names and comments": [(" at ", " place "), ("+ at", "+ place"), ("at <", "place <"), ('"""Scales."""', "# Scales.")],
}  # fmt: skip
OTHER = {
    "arithmetic": [(SCALED, SCALED + " + 1.0")],
    "grid": [("(triton.cdiv(x.numel(), BLOCK),)", "(triton.cdiv(x.numel(), BLOCK) + 1,)")],
    "warps": [("3.0, BLOCK=BLOCK", "3.0, BLOCK=BLOCK, num_warps=8")],
    "a constant": [("BLOCK = 256", "BLOCK = 512")],
    "a value": [("3.0, BLOCK=", "4.0, BLOCK=")],
    "the order of memory": [("(x, y, x.numel()", "(y, y, x.numel()")],
    "a launch more": [("    return y\n", "    scale_kernel[(4,)](x, y, 1000, 3.0, BLOCK=BLOCK)\n    return y\n")],
}
UNKNOWN = {
    "does not compile": [(SCALED, "tl.load(x_ptr + at) @ factor")],
    "does not import": [("import torch\n", "import torch\nimport no_such_module\n")],
    "an autotuner": [
        ("@triton.jit\n", '@triton.autotune([triton.Config({"BLOCK": 256})], key=["n"])\n@triton.jit\n'),
        ("3.0, BLOCK=BLOCK", "3.0"),
    ],
    "PyTorch beside": [("    return y\n", "    y.add_(1)\n    return y\n")],
}  # fmt: skip
TARGET = "sm_90"


def changed(changes: list[tuple[str, str]]) -> str:
    text = KERNELS
    for was, now in changes:
        assert was in text
        text = text.replace(was, now)
    return text


@pytest.fixture(scope="module")
def compiler() -> compiled_launches.Compiler:
    return compiled_launches.Compiler(TARGET)


def launched(folder: Path, text: str, compiler: compiled_launches.Compiler) -> recompiled.Compiled:
    """The launches of a text; None where they are not known, as ``compiled_launches.main`` tells it."""
    file = folder / "own.py"
    file.write_text(text)
    try:
        return compiled_launches.of_case(Case(f"{file}:SPEC", "triton", "forward", "1000-fp32"), TARGET, compiler)
    except Exception:  # as there
        return None


@pytest.mark.parametrize(("what", "same"), [*((one, True) for one in SAME), *((one, False) for one in OTHER)])
def test_launches_are_the_same_if_the_gpu_runs_the_same(
    tmp_path: Path, compiler: compiled_launches.Compiler, what: str, same: bool
) -> None:
    folders = [tmp_path / "was", tmp_path / "now"]
    for folder in folders:
        folder.mkdir()
    was = launched(folders[0], KERNELS, compiler)
    now = launched(folders[1], "# Moved.\n\n\n" + changed((SAME | OTHER)[what]), compiler)
    assert was and now
    assert recompiled.equal(was, now) is same
    assert was[0]["figures"] == {"grid_blocks": 4, "block_threads": 128, "registers": 12, "shared_memory": 0}


@pytest.mark.parametrize("what", UNKNOWN)
def test_launches_that_cannot_be_compared_are_never_the_same(
    tmp_path: Path, compiler: compiled_launches.Compiler, what: str
) -> None:
    found = launched(tmp_path, changed(UNKNOWN[what]), compiler)
    assert found is None
    assert not recompiled.equal(found, found)


def test_nothing_is_compiled_where_there_are_other_launches(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(KERNELS)
    case = Case(f"{tmp_path / 'own.py'}:SPEC", "triton", "forward", "1000-fp32")
    (launch,) = compiled_launches.of_case(case, TARGET, None, ["scale_kernel"], [[4, 1, 1]])
    assert launch == {"function": "scale_kernel", "grid": [4, 1, 1], "constants": "{'BLOCK': 256}"}
    for names, grids in ((["times_kernel"], None), (["scale_kernel"] * 2, None), (None, [[5, 1, 1]])):
        with pytest.raises(compiled_launches.Unknown, match="other launches"):
            compiled_launches.of_case(case, TARGET, None, names, grids)


def test_bare_ptx_keeps_what_the_gpu_runs() -> None:
    ptx = """\t// .globl\tadd
.file 1 "/there/own.py"
.visible .entry add(
\t.param .u64 .ptr .global .align 1 add_param_0
)
{
$L__func_begin0:
\t.loc\t1 6 0                           // own.py:6:0
\tld.param.b64 \t%rd1, [add_param_0];
$L__BB0_1:                              // of the loop
\tadd.f32 %r1, %r2, %added;
$L__tmp1:
\tcall address, addend;
\t.section\t.debug_abbrev
\t{
.b8 1
\t}
}"""
    assert bare_ptx.bare(ptx, "add").splitlines() == [
        ".visible .entry kernel(", ".param .u64 .ptr .global .align 1 kernel_param_0", ")", "{", "ld.param.b64 %rd1, [kernel_param_0];",
        "$L__BB0_1:", "add.f32 %r1, %r2, %added;", "call address, addend;", "}",
    ]  # fmt: skip
    assert bare_ptx.bare(ptx.replace("add(", "sum(").replace("add_param", "sum_param"), "sum") == bare_ptx.bare(
        ptx, "add"
    )


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_commit_of_a_recording_has_every_text_that_was_kept(tmp_path: Path) -> None:
    package = tmp_path / "here" / "own"
    package.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")

    def committed(**texts: str) -> str:
        for name, text in texts.items():
            (package / f"{name}.py").write_text(text)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", "One more.")
        return git_revision(package / "a.py")

    first, second, third = committed(a="a = 1", b="b = 1"), committed(a="a = 2"), committed(b="b = 2")
    assert recorded_tree.commit(first, {"a.py": "a = 1", "b.py": "b = 1"}, package) == first
    # What was not committed yet may have been so since; a clean revision tells all.
    assert recorded_tree.commit(f"{first}+", {"a.py": "a = 2"}, package) == second
    assert recorded_tree.commit(f"{first}+", {"a.py": "a = 2", "b.py": "b = 2"}, package) == third
    assert recorded_tree.commit(first, {"a.py": "a = 2"}, package) == ""
    assert recorded_tree.commit(f"{first}+", {"a.py": "a = 3"}, package) == ""
    assert recorded_tree.commit("", {"a.py": "a = 1"}, package) == ""
    there = recorded_tree.take_out(second, package, tmp_path / "out")
    assert {file.name: file.read_text() for file in there.iterdir()} == {"a.py": "a = 2", "b.py": "b = 1"}
    with pytest.raises(OSError, match="git has no own"):
        recorded_tree.take_out("0" * 40, package, tmp_path / "none")


def test_a_process_answers_for_the_package_that_it_was_asked_about(tmp_path: Path) -> None:
    case = Case("vector_add", "triton", "forward", "65536-bf16")
    package = Path(compiled_launches.tilescope_kernels.__file__).parent
    ask = recompiled._Asking(TARGET, tmp_path, lambda event: None)
    found = asyncio.run(ask(package, [recompiled.Question(case)], compiled=False))
    assert [launch["function"] for launch in found[case]] == ["vector_add_kernel"]
    request = tmp_path / "request.json"
    request.write_text(request.read_text().replace(str(package), str(tmp_path)))
    with pytest.raises(SystemExit, match="were asked for"):
        compiled_launches.main(request)


CASES = {name: Case("own", "triton", "forward", name) for name in ("same", "tiled", "constant", "unknown", "gone")}


#: Their grid and constants by commit.
CAUGHT = {
    "": {"same": (4, "8"), "tiled": (5, "8"), "constant": (4, "9"), "unknown": (6, "8"), "gone": None},
    "then": {"same": (4, "8"), "tiled": (4, "8"), "constant": (4, "8"), "unknown": None, "gone": (4, "8")},
}


class FakeAsking:
    """Answers as processes would: the launches of five cases at a commit and today. ``asked`` has what was compiled where."""

    asked: list[tuple[str, set[str]]]

    def __init__(self, target: str, scratch: Path, on_event: object) -> None:
        assert target == TARGET

    async def __call__(
        self, package: Path, questions: Iterable[recompiled.Question], commit: str = "", *, compiled: bool = True
    ) -> dict[Case, recompiled.Compiled]:
        found: dict[Case, recompiled.Compiled] = {}
        for case, functions, grids in questions:
            assert functions in (None, ["kernel"])
            if (caught := CAUGHT[commit][case.workload]) and grids in (None, [[caught[0]]]):
                launch = {"function": "kernel", "grid": [caught[0]], "constants": caught[1]}
                # Neither constant is used in the compiled code.
                found[case] = [launch | ({"ptx": "p", "options": {}, "arguments": []} if compiled else {})]
        if compiled:
            self.asked.append((commit, {case.workload for case in found}))
        return found


def test_only_launches_that_may_be_what_is_asked_for_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompiled, "_Asking", FakeAsking)
    wanted = {recompiled.Wanted(TARGET, "then", Path("own"), case): ["kernel"] for case in CASES.values()}
    FakeAsking.asked = []
    same = asyncio.run(recompiled.same_cases(wanted))
    assert {one.case.workload for one in same} == {"same", "constant"}
    assert FakeAsking.asked == [("then", {"same", "constant"}), ("", {"same", "constant"})]
    FakeAsking.asked = []
    other = asyncio.run(recompiled.other_cases(wanted))
    assert {one.case.workload for one in other} == {"tiled"}
    assert FakeAsking.asked == [("then", {"tiled", "constant"}), ("", {"tiled", "constant"})]


def test_problems_that_are_launched_otherwise_make_a_kernel_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(same_launches, "FILE", tmp_path / "kept.jsonl")
    runs = (store.open_run(known.path) for known in store.list_runs([store.recorded_dir()]))
    run = next(one for one in runs if one.run.kernels and not staleness.stale_by_text(one))
    kernel = next(iter(run.run.kernels))
    key = run.run.id, kernel, same_launches.code(str(run.run.kernels[kernel]["file"]))
    assert staleness.stale_kernels(run) == []
    problem = Problem(kernel, *run.table.loc[run.table["kernel"] == kernel, ["pass", "workload"]].iloc[0])
    same_launches.keep({}, {key: {problem}})
    assert same_launches.is_kept(*key)
    assert staleness.stale_kernels(run) == staleness.stale_on_gpu(run) == [kernel]
    assert staleness.stale_problems(run) == ({problem}, set())
    # Of other code it is no answer.
    same_launches.keep({}, {(*key[:2], "0"): {problem}})
    same_launches._read.cache_clear()
    assert staleness.stale_kernels(run) == []


def test_older_lines_are_made_again_and_keep_what_they_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(same_launches, "FILE", tmp_path / "kept.jsonl")
    problem = Problem("one", "forward", "1-fp32")
    (tmp_path / "own.py").write_text("x = 1")
    file = str(tmp_path / "own.py")
    code = same_launches.code(file)
    same_launches.keep({("run", "one", code): [problem]})
    assert same_launches.is_kept("run", "one", code)
    same_launches.FILE.write_text(same_launches.FILE.read_text().replace('"method":2,', ""))
    same_launches._read.cache_clear()
    assert not same_launches.is_kept("run", "one", code)
    assert same_launches.known("run", {"one": file}) == {problem}
