"""Which tests a run takes: a small tree of tests under the same conftest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SLOW = pytest.mark.slow("tests/conftest.py")
INI = """[pytest]
testpaths = tests
addopts = -p no:cacheprovider
markers =
    gpu: needs a GPU
    browser: drives a browser
    slow(*paths): decided by the files at these paths
"""
TESTS = """import os
import pytest

@pytest.fixture
def chromium():
    pass

@pytest.mark.slow("code")
def test_slow():
    assert "BROKEN" not in os.environ

def test_quick():
    pass

@pytest.mark.gpu
def test_of_a_gpu():
    pass

def test_in_a_browser(chromium):
    pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with code, a slow test of it and others."""
    for name, text in {
        "pytest.ini": INI,
        "constraints.txt": "torch==2\n",
        "code/kernel.py": "one = 1\n",
        "tests/test_code.py": TESTS,
        "tests/conftest.py": CONFTEST.read_text(),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    # Stands for a machine without a GPU, and is quicker than torch.
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    return tmp_path


#: Other plugins take longer to import than these tests to run.
LIGHT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def ran(tree: Path, *arguments: str, **environment: str) -> tuple[set[str], str]:
    """Names of the tests that were run in the tree, and what pytest printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-v", *arguments],
        cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tree), **LIGHT, **environment},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return set(re.findall(r"::(test_\w+)", done.stdout)), done.stdout


@pytest.mark.parametrize(
    "processes", [(), pytest.param(("-n", "1", "--dist", "loadfile"), marks=SLOW)], ids=["one process", "xdist"]
)
def test_a_slow_test_runs_until_it_has_passed_with_what_decides_it(tree: Path, processes: tuple[str, ...]) -> None:
    assert "test_slow" in ran(tree, *processes)[0], "nothing is known of it"
    names, printed = ran(tree, *processes)
    assert names == {"test_quick", "test_in_a_browser"}
    assert "1 tests left out: they are slow, and what they test is as it was" in printed
    assert "1 tests left out: they need a GPU" in printed


@SLOW
@pytest.mark.parametrize(
    ("changed", "by"),
    [
        ("code/kernel.py", "two = 2"),
        ("code/kernel.py", "def broken("),
        ("code/kernel.css", "/* style */"),
        ("code/new.py", "# new"),
        ("tests/test_code.py", "two = 2"),
        ("constraints.txt", "# pinned"),
    ],
)
def test_any_change_of_what_decides_it_has_it_run(tree: Path, changed: str, by: str) -> None:
    ran(tree)
    with (tree / changed).open("a") as file:
        file.write(f"\n{by}\n")
    assert "test_slow" in ran(tree)[0]


def test_comments_and_docstrings_decide_nothing(tree: Path) -> None:
    kernel = tree / "code" / "kernel.py"
    kernel.write_text('"""Kernel."""\none = 1\n\n\ndef two():\n    """Two."""\n    return 2\n')
    ran(tree)
    kernel.write_text('"""Kernels."""\n# The first.\none = 1\n\n\ndef two():\n    return 2  # always\n')
    assert "test_slow" not in ran(tree)[0]


@SLOW
def test_neither_a_failure_nor_a_selection_is_recorded(tree: Path) -> None:
    for arguments, environment in (
        ((), {"BROKEN": "1"}),
        (("-k", "slow"), {}),
        (("tests/test_code.py::test_slow",), {}),
    ):
        assert "test_slow" in ran(tree, *arguments, **environment)[0]
        record = tree / "tests" / "passed.json"
        assert not record.exists() or not json.loads(record.read_text())


@SLOW
def test_a_file_alone_is_recorded_and_the_others_stay(tree: Path) -> None:
    (tree / "tests" / "test_other.py").write_text(TESTS)
    ran(tree)
    (tree / "code" / "kernel.py").write_text("one = 2\n")
    assert "test_slow" in ran(tree, "tests/test_code.py")[0]
    assert "test_slow" not in ran(tree, "tests/test_code.py")[0]
    assert "test_slow" in ran(tree, "tests/test_other.py")[0]
    assert "test_slow" in ran(tree, "--slow", "all")[0], "whatever has passed"


@SLOW
def test_what_decides_one_test_makes_no_other_of_its_file_due(tree: Path) -> None:
    (tree / "more").mkdir()
    (tree / "more" / "kernel.py").write_text("one = 1\n")
    other = TESTS.replace('slow("code")', 'slow("more")').replace("test_slow", "test_slow_too").replace("BROKEN", "ODD")
    with (tree / "tests" / "test_code.py").open("a") as file:
        file.write(other)
    ran(tree)
    (tree / "more" / "kernel.py").write_text("one = 2\n")
    slow = {"test_slow", "test_slow_too"}
    assert ran(tree, ODD="1")[0] & slow == {"test_slow_too"}
    assert ran(tree)[0] & slow == {"test_slow_too"}, "it failed, and the other one has passed as before"
    assert not ran(tree)[0] & slow


@SLOW
def test_a_failure_elsewhere_takes_no_pass_along(tree: Path) -> None:
    (tree / "tests" / "test_other.py").write_text("def test_quick_too():\n    assert False\n")
    ran(tree)
    assert "test_slow" not in ran(tree)[0]


@SLOW
def test_none_leaves_slow_tests_out_and_a_browser_is_marked(tree: Path) -> None:
    assert "test_slow" not in ran(tree, "--slow", "none")[0]
    assert ran(tree, "-m", "browser")[0] == {"test_in_a_browser"}


@SLOW
def test_what_starts_a_browser_begins_first(tree: Path) -> None:
    (tree / "tests" / "test_app.py").write_text("def test_first():\n    pass\n")
    printed = ran(tree)[1]
    assert printed.index("test_in_a_browser") < printed.index("test_first")


def test_a_path_that_does_not_exist_is_said(tree: Path) -> None:
    file = tree / "tests" / "test_code.py"
    file.write_text(file.read_text().replace('"code"', '"gone"'))
    done = subprocess.run(
        [sys.executable, "-m", "pytest"], cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tree), **LIGHT},
    )  # fmt: skip
    assert "a slow test names gone, which does not exist" in done.stdout + done.stderr
