"""Which tests a run takes: none that a GPU is missing for, and slow ones only when what they test has changed.

A test marked ``slow("kernels", ...)`` names the files and folders that decide its result. ``--slow changed``, the default,
leaves it out as long as those, the test's own file and the pinned versions are what they were when it last passed:
``passed.json`` holds digests of them by file of tests. A Python file is its code: comments and docstrings decide no result.
So the answer is the same in any clone, whatever its history. Slow tests that a run took and that passed are recorded when it ends, whatever else failed, for each file that was taken
whole: commit ``passed.json`` with the change, and nobody's ``make test`` runs them again.
"""

import ast
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
PASSED = Path(__file__).with_name("passed.json")
#: Decides the result of every test.
VERSIONS = "constraints.txt"
#: Fixtures that start a browser, a server or a process of many checks. What takes longest begins first.
LONG = {
    "batch", "chromium", "server", "shared_server", "job_server", "outside_server", "lab", "page", "guides", "puzzles", "mypy",
}  # fmt: skip
BROWSERS = {"chromium", "lab"}
#: What may have a docstring.
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: How a run ends that took every test: what passed of it did, whatever else failed.
RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)

# Workers start cold, and nothing of a person's own cache is read: a test that wants another says so.
os.environ["TILESCOPE_RESIDENT"] = "0"
# Each of a run's many processes would compile the repository's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The processes of a run share one cache.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TILESCOPE_CACHE"] = tempfile.mkdtemp(prefix="tilescope-tests-")


@dataclass
class State:
    """What this process knows of the run.

    Tests left out, by reason; by file, the digests of the slow tests that it takes and of those that passed before; the files
    with a failure.
    """

    left_out: dict[str, int] = field(default_factory=dict)
    taken: dict[str, list[str]] = field(default_factory=dict)
    same: dict[str, list[str]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)


STATE = State()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        choices=("changed", "all", "none"),
        default="changed",
        help="slow tests: those whose subject changed since they passed (the default), all, none; those that pass are recorded",
    )


def pytest_configure(config: pytest.Config) -> None:
    """What holds of any values is tried with a few of them, the same each time; with more, and others, in a run of all tests."""
    every = config.getoption("slow") == "all"
    hypothesis.settings.register_profile(
        "tilescope", max_examples=100 if every else 25, derandomize=not every, deadline=None
    )
    hypothesis.settings.load_profile("tilescope")


@cache
def content_of(file: Path) -> bytes:
    """The code of a Python file, without comments and docstrings; the bytes of any other file."""
    content = file.read_bytes()
    if file.suffix != ".py":
        return content
    try:
        tree = ast.parse(content)
    except SyntaxError:
        return content
    written: list[str] = []
    _write(tree, written)
    return hashlib.sha256("\0".join(written).encode(errors="surrogatepass")).digest()


def _write(node: Any, written: list[str]) -> None:
    """Append the types, fields and values of a syntax tree. Empty fields are left out, as versions of Python differ in them."""
    if isinstance(node, ast.AST):
        written.append(type(node).__name__)
        documented = isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
        for name, value in ast.iter_fields(node):
            kept = value[1:] if name == "body" and documented else value
            if kept is not None and kept != []:
                written.append(name)
                _write(kept, written)
    elif isinstance(node, list):
        for item in node:
            _write(item, written)
        written.append("]")
    else:
        written.append(repr(node))


@cache
def digest_of(place: Path) -> bytes:
    """Digest of the names and the content of all files at a path. Raises UsageError where there is none."""
    if not place.exists():
        raise pytest.UsageError(f"a slow test names {place.relative_to(ROOT)}, which does not exist")
    found = hashlib.sha256()
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if file.is_file() and "__pycache__" not in file.parts:
            name, content = file.relative_to(ROOT).as_posix().encode(), content_of(file)
            found.update(b"%d %b %d " % (len(name), name, len(content)) + content)
    return found.digest()


def digests(items: list[pytest.Item]) -> dict[pytest.Item, str]:
    """Digest of what decides the result of each slow test."""

    @cache
    def digest(paths: frozenset[str]) -> str:
        return hashlib.sha256(b"".join(digest_of(ROOT / path) for path in sorted(paths))).hexdigest()[:16]

    marks = {item: [mark.args for mark in item.iter_markers("slow")] for item in items}
    return {item: digest(frozenset({file_of(item), VERSIONS}.union(*of))) for item, of in marks.items() if of}


def file_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def no_gpu(items: list[pytest.Item]) -> bool:
    """Whether a test asks for a GPU and there is none. torch is imported only to answer that."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return False
    import torch

    return not torch.cuda.is_available()


def pytest_itemcollected(item: pytest.Item) -> None:
    if BROWSERS & set(getattr(item, "fixturenames", ())):
        item.add_marker("browser")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    found = digests(items)
    mode, without_gpu = config.getoption("slow"), no_gpu(items)
    passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}

    def reason(item: pytest.Item) -> str:
        if without_gpu and item.get_closest_marker("gpu"):
            return "need a GPU"
        if mode == "all" or not item.get_closest_marker("slow"):
            return ""
        if mode == "none":
            return "are slow"
        same = found[item] in passed.get(file_of(item), "")
        return "are slow, and what they test is as it was when they passed" if same else ""

    why = {item: reason(item) for item in items}
    kept = {item: None for item in items if not why[item]}
    for item, digest in found.items():
        of = STATE.taken if item in kept else STATE.same
        if item in kept or digest in passed.get(file_of(item), ""):
            of[file_of(item)] = sorted({*of.get(file_of(item), ()), digest})
    STATE.left_out = dict(Counter(text for text in why.values() if text))
    if left_out := [item for item in items if why[item]]:
        config.hook.pytest_deselected(items=left_out)
    long = {item.path for item in kept if LONG & set(getattr(item, "fixturenames", ()))}
    items[:] = sorted(kept, key=lambda item: item.path not in long)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A process that crashed tells of a failed test without its marks.
    if report.failed or ("slow" in report.keywords and report.outcome != "passed"):
        STATE.wrong.add(report.nodeid.split("::")[0])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A process of pytest-xdist's tells the first one, which collects nothing itself; that one keeps what passed."""
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["tilescope"] = {"left_out": STATE.left_out, "taken": STATE.taken, "same": STATE.same}
        return
    shutil.rmtree(os.environ["TILESCOPE_CACHE"], ignore_errors=True)
    if STATE.taken and not session.shouldstop and exitstatus in RAN and whole(config):
        before = json.loads(PASSED.read_text()) if PASSED.exists() else {}
        for file, digests_of in STATE.taken.items():
            right = set() if file in STATE.wrong else {*digests_of}
            before[file] = " ".join(sorted(right | ({*STATE.same.get(file, ())} - {*digests_of})))
        passed = {file: of for file, of in before.items() if of and (ROOT / file).exists()}
        PASSED.write_text(json.dumps(dict(sorted(passed.items())), indent=2) + "\n")


def whole(config: pytest.Config) -> bool:
    """Whether files were asked for as a whole, so that none of a file's slow tests is missing from what passed."""
    chosen = ("keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly", "maxfail")
    parts = any("::" in argument for argument in config.args) or config.option.markexpr not in ("", "slow")
    return not parts and not any(getattr(config.option, name, None) for name in chosen)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {}).get("tilescope", {})
    STATE.left_out.update(told.get("left_out", {}))
    STATE.taken.update(told.get("taken", {}))
    STATE.same.update(told.get("same", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for why, number in STATE.left_out.items():
        terminalreporter.write_line(f"{number} tests left out: they {why}")


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels that would have been launched: launches are only noted, so a check of arguments needs no GPU."""
    from triton.runtime import jit

    seen: list[str] = []
    monkeypatch.setattr(jit.JITFunction, "run", lambda self, *args, **kwargs: seen.append(self.fn.__name__))
    return seen
