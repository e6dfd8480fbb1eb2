"""What several files share: recordings, each opened once, and fake collectors for workers that start without torch.

torch takes two seconds a process, and no fake asks for a tensor.
"""

import asyncio
import contextlib
import functools
import os
import tempfile
from pathlib import Path

import pytest
from tilescope.jobs import questions, warm
from tilescope.runs import store

from tests.recorded import recorded

from .fake_jobs import KIT, OWN

FIXTURES = Path(__file__).parent / "fixtures"
#: Recordings that stand for all where a test is of each: a kernel by every collector, and a sweep.
EVERY_RUN = {recorded(title) for title in ("softmax", "losses: autotune sweeps")}


def pytest_generate_tests(metafunc):
    """A test that asks for a ``recording`` runs once for each of a few that stand for all."""
    if "recording" in metafunc.fixturenames:
        folders = sorted(path.parent for path in store.recorded_dir().glob("*/run.json"))
        assert {folder.name for folder in folders} >= EVERY_RUN
        cases = [pytest.param(f, id=f.name) for f in folders if f.name in EVERY_RUN]
        metafunc.parametrize("recording", cases, indirect=True)


@pytest.fixture(scope="session")
def opened():
    """``open_run``, once a folder."""
    return functools.cache(store.open_run)


@pytest.fixture
def recording(request, opened):
    return opened(request.param)


@pytest.fixture(scope="session")
def recordings(opened):
    """All of them, oldest first."""
    return [opened(run.path) for run in reversed(store.list_runs([store.recorded_dir()]))]


def search(*folders):
    """``PYTHONPATH`` with those folders in front."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def fakes(monkeypatch):
    """The fake collectors can be imported here and in the worker, where nothing stands behind torch and the catalog."""
    monkeypatch.syspath_prepend(str(KIT))
    monkeypatch.setenv("PYTHONPATH", search(FIXTURES / "light", KIT))


@pytest.fixture
def kit(fakes, monkeypatch, tmp_path):
    """The fakes, and runs go to a folder of the test."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))


@contextlib.contextmanager
def serving():
    """The folder of fork servers that end with this, and the list that they are in."""
    servers = []
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        yield folder, servers
        for server in servers:
            server.kill()
            server.wait()


def fork_from(monkeypatch, folder, servers):
    """Workers are forked from those servers, and from no other test's."""
    monkeypatch.setenv(warm.SWITCH, "1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setattr(warm, "servers", servers)
    monkeypatch.setattr(warm, "refusals", [])


@pytest.fixture
def resident(monkeypatch):
    """A fork server of this test's own, which ends with it."""
    with serving() as place:
        fork_from(monkeypatch, *place)
        yield


@pytest.fixture(scope="session")
def server_of_all():
    """The folder of a fork server that tests share, and the list of it."""
    with serving() as place:
        yield place


@pytest.fixture
def forked(monkeypatch, server_of_all):
    """Workers are forked from a server that other tests use too."""
    fork_from(monkeypatch, *server_of_all)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The user's folder of runs, which does not exist yet. Recordings are in ``recorded`` beside it."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(store, "recorded_dir", lambda: tmp_path / "recorded")
    return tmp_path / "runs"


@pytest.fixture
def torch_and_catalog(fakes, monkeypatch):
    """In the worker, torch is torch, and the catalog whole."""
    _, _, path = os.environ["PYTHONPATH"].partition(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """A folder for what this process writes to the system's temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def one_processor():
    """This process and its children may use one processor, so that a job has one worker at a time."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    yield
    os.sched_setaffinity(0, every)


@pytest.fixture
def deaths(monkeypatch, tmp_path):
    """The file that says how many workers ``fakes.mortal`` kills: none yet."""
    file = tmp_path / "deaths"
    file.write_text("0")
    monkeypatch.setenv("FAKES_DEATHS", str(file))
    return file


@pytest.fixture
def use_gpu(monkeypatch):
    """Makes collectors use the GPU, in this order."""

    def use(*names):
        monkeypatch.setattr("tilescope.jobs.supervisor.IN_TURN", names)
        monkeypatch.setattr("tilescope.jobs.supervisor.ON_GPU", frozenset(names))

    return use


@pytest.fixture
def processors(monkeypatch):
    """Makes this process have a number of processors, as far as it counts them."""
    return lambda count: monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(count)))


@pytest.fixture
def describe_as(monkeypatch):
    """Makes the worker's answer about kernels the entries of a list."""

    def answer(entries):
        async def described(kernels=(), workloads=(), *patience):
            return [entry for entry in entries if not kernels or entry["kernel"] in kernels]

        monkeypatch.setattr("tilescope.jobs.questions.describe", described)

    return answer


@pytest.fixture(scope="session")
def catalog():
    """What the kernel of the fakes declares."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", search(FIXTURES / "light"))
        return asyncio.run(questions.describe([OWN]))
