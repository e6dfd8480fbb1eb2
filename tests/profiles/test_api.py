"""One call from Python, with and without an event loop that runs already."""

import asyncio

import pytest
import tilescope
from tilescope.hardware import device

from .fake_jobs import OWN


@pytest.fixture(autouse=True)
def no_gpu(kit, monkeypatch):
    monkeypatch.setattr(device, "detect", lambda: None)


def profile(tmp_path, **more):
    return tilescope.profile(
        OWN, implementations=["good"], workloads=["small"], collectors=["fakes.quick"], runs_dir=tmp_path, **more
    )


def test_profile_returns_the_run(tmp_path):
    events = []
    loaded = profile(tmp_path, on_event=events.append, repetitions=3, title="mine")
    assert loaded.table.loc[loaded.table["metric"] == "registers", "value"].tolist() == [32]
    assert loaded.run.settings["repetitions"] == 3
    assert loaded.run.title == "mine"
    assert events[-1]["event"] == "done"
    assert [summary.path for summary in tilescope.list_runs([tmp_path])] == [loaded.folder]


def test_profile_works_while_an_event_loop_runs(tmp_path):
    async def as_in_a_notebook():
        return profile(tmp_path)

    assert asyncio.run(as_in_a_notebook()).run.complete


def test_a_bad_request_is_a_value_error(tmp_path):
    async def as_in_a_notebook():
        with pytest.raises(ValueError, match="did you mean 'good'"):
            tilescope.profile(OWN, implementations=["goood"], collectors=["fakes.quick"], runs_dir=tmp_path)

    asyncio.run(as_in_a_notebook())
