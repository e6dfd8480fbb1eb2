"""Which changes of code change a recorded kernel, and which do not."""

import contextlib
import dataclasses
from hashlib import sha256
from pathlib import Path

import pytest
from tilescope.collectors import compiler
from tilescope.execution import describe, execute
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import user_cache
from tilescope.runs import changes, function_digests, store
from tilescope.table.case import Case
from tilescope.table.schema import frame

from . import made_up

KERNEL = '''"""A file."""
import triton
import triton.language as tl
from family import _rows, _scales
from family._scales import LOG


@triton.jit
def kernel(x_ptr, BLOCK: tl.constexpr):
    """What it does."""
    value = _rows.load(x_ptr, BLOCK)  # why
    tl.store(x_ptr, value * LOG * _scales.SCALE)


def launch(x):
    kernel[(1,)](x, BLOCK=_scales.unused(x))
'''
ROWS = """import triton
import triton.language as tl
LIMIT = tl.constexpr(8)
@triton.jit
def load(x_ptr, BLOCK: tl.constexpr): return tl.load(x_ptr + tl.arange(0, _masked(BLOCK)))
@triton.constexpr_function
def _masked(BLOCK): return min(BLOCK, LIMIT)
@triton.jit
def store(x_ptr): tl.store(x_ptr, 0)
"""
SCALES = "LOG = 1.5\nSCALE = 2.0\ndef unused(x): return x\n"
FILES = {"softmax.py": KERNEL, "_rows.py": ROWS, "_scales.py": SCALES}


@pytest.fixture
def family(tmp_path, monkeypatch):
    """A package with the files of a kernel."""
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "family"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def recorded(tmp_path, facts, function="kernel"):
    """A run of the kernel with these facts, which launched the function."""
    case = Case("softmax", "triton", "forward", "8x8")
    rows = [case.row("gpu_time", 1e-6, "torch_profiler", launch=0, function=function)]
    kernels = {"softmax": {"file": "family/softmax.py", **facts}}
    return store.LoadedRun(made_up.run(kernels=kernels), frame(rows), tmp_path)


@pytest.mark.parametrize(("file", "was", "now", "changed"), [
    ("softmax.py", "What it does", "Doubles", False),
    ("softmax.py", "# why", "# for\n\n", False),
    ("softmax.py", "BLOCK=_scales.unused(x)", "BLOCK=16", False),  # the CPU's code
    ("softmax.py", "value * LOG", "LOG * value", True),
    ("softmax.py", "BLOCK: tl.constexpr", "BLOCK", True),
    ("softmax.py", "@triton.jit", "@triton.jit(noinline=True)", True),
    ("softmax.py", "import triton.language as tl", "import triton.experimental.gluon.language as tl", True),
    ("softmax.py", "def kernel", "def other", True),
    ("softmax.py", "def kernel", "def kernel(", True),  # no Python any more
    ("_rows.py", "min(BLOCK", "max(BLOCK", True),
    ("_rows.py", "constexpr(8)", "constexpr(16)", True),
    ("_rows.py", "tl.store(x_ptr, 0)", "tl.store(x_ptr, 1)", False),  # not used
    ("_scales.py", "1.5", "1.25", True),
    ("_scales.py", "2.0", "3.0", True),
    ("_scales.py", "return x", "return 2 * x", False),
    ("_scales.py", "LOG", "value = 1\nLOG", False),  # a function's own variable
])  # fmt: skip
def test_kernel_changed_by_what_its_function_uses(family, tmp_path, file, was, now, changed):  # noqa: PLR0917
    run = recorded(tmp_path, {"functions": function_digests.of(family / "softmax.py")})
    assert changes.changed_kernels(run) == []
    assert was in FILES[file]
    (family / file).write_text(FILES[file].replace(was, now))
    assert changes.changed_kernels(run) == (["softmax"] if changed else [])
    assert changes.changed_problems(run) == ({changes.Problem("softmax", "forward", "8x8")} if changed else set())


def test_moved_code_is_unchanged(family, tmp_path):
    run = recorded(tmp_path, {"functions": function_digests.of(family / "softmax.py")})
    (family / "rows").mkdir()
    (family / "rows" / "__init__.py").touch()
    (family / "rows" / "_rows.py").write_text(
        "from .._limits import LIMIT\n" + ROWS.replace("LIMIT = tl.constexpr(8)\n", "")
    )
    (family / "_limits.py").write_text("import triton.language as tl\nLIMIT = tl.constexpr(8)\n")
    (family / "rows" / "softmax.py").write_text(
        KERNEL.replace("family import _rows, _scales", "family import _scales\nfrom . import _rows")
    )
    for name in ("_rows.py", "softmax.py"):
        (family / name).unlink()
    assert store.source_file("family/softmax.py") == family / "rows" / "softmax.py"
    assert changes.changed_kernels(run) == []
    (family / "_limits.py").write_text("import triton.language as tl\nLIMIT = tl.constexpr(4)\n")
    assert changes.changed_kernels(run) == ["softmax"]
    (family / "softmax.py").write_text(KERNEL)
    (family / "more").mkdir()
    (family / "softmax.py").rename(family / "more" / "softmax.py")
    assert store.source_file("family/softmax.py") is None  # which of the two cannot be known


def test_only_launched_functions_of_a_known_file_count(family, tmp_path):
    digests = dict.fromkeys(function_digests.of(family / "softmax.py"), "another")
    assert changes.changed_kernels(recorded(tmp_path, {"functions": digests}, function="cublas_kernel")) == []
    assert changes.changed_kernels(recorded(tmp_path, {"functions": digests}, function="load")) == ["softmax"]
    assert (
        changes.changed_kernels(recorded(tmp_path, {}, function="load")) == []
    )  # a run from before there were digests
    gone = {"functions": digests, "file": "/nowhere/gone.py"}
    assert changes.changed_kernels(recorded(tmp_path, gone)) == []


def test_script_finds_modules_in_the_folders_it_added(tmp_path):
    here, installed, written = (tmp_path / name for name in ("here", "site-packages", "written.py"))
    here.mkdir(), installed.mkdir()
    (here / "rows.py").write_text(ROWS)
    (installed / "library.py").write_text("this is no code, and of no script")
    written.write_text(
        f"import sys\nsys.path.append({str(here)!r})\nsys.path.append({str(installed)!r})\nimport triton\nimport library, rows\n\n"
        "@triton.jit\ndef kernel(x): rows.load(library.load(x), 8)\n"
    )
    before = function_digests.of(written)
    assert set(before) == {"kernel", "load", "store"}
    (here / "rows.py").write_text(ROWS.replace("min(", "max("))
    after = function_digests.of(written)
    assert {name for name in before if before[name] != after[name]} == {"kernel", "load"}


def test_functions_of_one_name_share_a_digest(tmp_path):
    text = "import triton\ndef one():\n    @triton.jit\n    def kernel(x): x\n    return kernel\ndef two():\n    @triton.jit\n    def kernel(x): x + 1\n    return kernel\n"
    (tmp_path / "own.py").write_text(text)
    (before,) = function_digests.of(tmp_path / "own.py").values()
    for changed in (text.replace("x): x\n", "x): -x\n"), text.replace("x + 1", "x + 2")):
        (tmp_path / "own.py").write_text(changed)
        (after,) = function_digests.of(tmp_path / "own.py").values()
        assert after != before


def test_changed_files_are_refused_whatever_has_run(family, tmp_path):
    facts = {"functions": function_digests.of(family / "softmax.py"), "sha256": sha256(KERNEL.encode()).hexdigest()}
    run = recorded(tmp_path, facts).run
    assert changes.changed_files(run) == []
    (family / "_rows.py").write_text(ROWS.replace("min(", "max("))
    assert changes.changed_files(run) == ["softmax"]
    (family / "_rows.py").write_text(ROWS)
    (family / "softmax.py").write_text(KERNEL.replace("unused(x)", "unused(x + 1)"))
    assert changes.changed_files(run) == ["softmax"]
    (family / "softmax.py").unlink()
    assert changes.changed_files(dataclasses.replace(run)) == []


def test_every_kernel_of_the_library_is_kept_with_its_functions():
    entries = describe.catalog()
    assert {entry["file"].rpartition("/")[2] for entry in entries if entry["name"] in ("softmax", "swiglu")} == {
        "softmax.py", "gated.py",
    }  # fmt: skip
    assert [entry["name"] for entry in entries if not changes.today(Path(entry["path"]))] == []


def test_digests_cover_what_the_library_launches():
    """Also what a launcher imports only where a problem takes it."""
    lacking = set()
    for entry in describe.catalog():
        digests, spec = changes.today(Path(entry["path"])), execute.load_spec(entry["kernel"])
        for direction in entry["passes"]:
            for workload in spec.workloads:
                case = Case(entry["kernel"], "triton", direction, workload.id)
                with contextlib.suppress(NotApplicable):  # it launches nothing of Triton's
                    caught, _ = compiler.launches_of(case, spec, "sm_90")
                    lacking |= {(entry["kernel"], launch.name) for launch in caught if launch.name not in digests}
    assert lacking == set()
