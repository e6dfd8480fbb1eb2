"""The worker's protocol is robust against anything that a kernel prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tilescope.jobs.worker import main

from .fake_jobs import KIT, cases

ROOTS = [str(Path(__file__).with_name("fixtures") / "light"), str(Path(__file__).parents[2] / "profiles")]


def answer(tmp_path, **job):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(KIT), *ROOTS])}
    command = [sys.executable, "-m", "tilescope.jobs.worker", str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def capture(tmp_path, *fates):
    asked = cases(*fates)
    done = answer(tmp_path, action="capture", collector="fakes.quick", cases=[c.to_json() for c in asked],
                  folder=str(tmp_path), settings={})  # fmt: skip
    return asked, done, [json.loads(text) for text in done.stdout.splitlines()]


def test_standard_output_carries_nothing_but_events(tmp_path):
    cases, done, events = capture(tmp_path, "noisy", "raises", "good")
    assert [event["event"] for event in events] == [
        "start", "case", "result", "case", "error", "case", "result", "done",
    ]  # fmt: skip
    assert events[1] == {
        "event": "case", "index": 0, "of": 3, "case": cases[0].id, "collector": "fakes.quick", "doing": "running"
    }  # fmt: skip
    assert (tmp_path / events[2]["artefact"]).is_file()
    assert "noise on stdout" in done.stderr and "FP_FUSION" not in done.stderr
    assert done.returncode == 0


def test_an_unknown_collector_is_one_error_event(tmp_path):
    done = answer(tmp_path, action="capture", collector="nope", cases=[], folder=str(tmp_path))
    (_, error) = [json.loads(text) for text in done.stdout.splitlines()]
    assert error["case"] == ""
    assert error["message"].startswith("unknown collector 'nope': use one of check")
    assert done.returncode == 1


def test_one_line_of_an_exception():
    assert main.line(ValueError("bad size\nmore")) == "bad size"
    assert main.line(RuntimeError("boom\nmore")) == "RuntimeError: boom"
    assert main.line(KeyError()) == "KeyError"
    try:
        assert {1: "a"} == {}
    except AssertionError as error:
        assert (
            main.line(AssertionError().with_traceback(error.__traceback__)) == 'AssertionError: assert {1: "a"} == {}'
        )
