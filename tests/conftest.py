"""What all tests share: an environment of their own, an order for parallel runs, and the tests that need a GPU."""

import asyncio
import inspect
import os
import shutil
import tempfile
import time
from types import SimpleNamespace

import hypothesis
import pytest

#: Fixtures that start a browser, a server or a process of many checks. Their files run first, so that a parallel run ends evenly.
LONG = {
    "batch", "chromium", "server", "shared_server", "job_server", "outside_server", "lab", "page", "guides", "puzzles", "mypy",
}  # fmt: skip
BROWSERS = {"chromium", "lab"}

# Workers start cold, and no test touches the user's own cache and runs.
os.environ["TILESCOPE_RESIDENT"] = "0"
# Triton 3.9 warns where it is not set.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# Each of a run's many processes would compile the repository's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tables have one width, whatever the terminal's is.
os.environ.pop("COLUMNS", None)
# The processes of a run share one cache.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["TILESCOPE_CACHE"] = tempfile.mkdtemp(prefix="tilescope-tests-")
    os.environ["TILESCOPE_RUNS"] = f"{os.environ['TILESCOPE_CACHE']}/runs"

hypothesis.settings.register_profile("tilescope", max_examples=25, derandomize=True, deadline=None)
hypothesis.settings.load_profile("tilescope")


def pytest_itemcollected(item: pytest.Item) -> None:
    if BROWSERS & set(getattr(item, "fixturenames", ())):
        item.add_marker("browser")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests that need an absent GPU, and puts the longest files first."""
    if lacks_gpu(items):
        without = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    long = {item.path for item in items if LONG & set(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine has an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in given}))
    return True


def lacks_gpu(items: list[pytest.Item]) -> bool:
    """Whether a test asks for a GPU and there is none. torch is imported only to answer that."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return False
    import torch

    return not torch.cuda.is_available()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workeroutput"):
        shutil.rmtree(os.environ["TILESCOPE_CACHE"], ignore_errors=True)


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of kernels that would have been launched: launches are only noted, so a check of arguments needs no GPU."""
    from triton.runtime import jit

    seen: list[str] = []
    monkeypatch.setattr(jit.JITFunction, "run", lambda self, *args, **kwargs: seen.append(self.fn.__name__))
    return seen


@pytest.fixture
def no_gpu(monkeypatch):
    """No GPU is found, whatever this machine has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def cuda(monkeypatch):
    """Makes functions and classes stand for those of ``torch.cuda``, by name."""
    return lambda stand_ins: [monkeypatch.setattr(f"torch.cuda.{name}", fake) for name, fake in stand_ins.items()]


@pytest.fixture
def clock(monkeypatch):
    """The clock of this process, which stands still: a test moves ``now``, in seconds."""
    made = SimpleNamespace(now=100.0)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: made.now)
    return made
