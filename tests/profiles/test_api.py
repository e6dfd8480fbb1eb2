"""One call from Python, with and without an event loop that runs already."""

import pytest
import tilescope
from tilescope.runs.store import StoreError

from .fake_jobs import OWN

pytestmark = pytest.mark.usefixtures("kit", "no_gpu", "forked")


def profile(tmp_path, **more):
    return tilescope.profile_kernels(
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


def test_profile_old_form_warns_and_works(tmp_path):
    with pytest.warns(DeprecationWarning, match="call tilescope.profile_kernels"):
        loaded = tilescope.profile(OWN, implementations=["good"], workloads=["small"], collectors=["fakes.quick"],
                                   runs_dir=tmp_path, repetitions=3)  # fmt: skip
    assert loaded.run.settings["repetitions"] == 3
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="no input is a tensor"):
        tilescope.profile(len, inputs={"n": 3}, reference=len, runs_dir=tmp_path)


async def test_a_bad_request_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'good'"):
        tilescope.profile_kernels(OWN, implementations=["goood"], collectors=["fakes.quick"], runs_dir=tmp_path)


def test_recordings_of_a_kernel_best_first():
    every = list(tilescope.recordings("softmax"))
    assert all("softmax" in run.run.kernels for run in every)
    sources = [{*run.table["source"]} for run in every]
    assert [("torch_profiler" in found and "ncu" in found) for found in sources] == [True, False]
    with pytest.raises(StoreError, match="no recording of 'sofmax': 'tilescope show' lists"):
        tilescope.recordings("sofmax")
