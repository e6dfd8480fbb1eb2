"""The memory of timings that processes share, and exported winners."""

import dataclasses
import json
import sqlite3
import subprocess
import sys
import threading

import pytest
from tilescope.tuning import memory

PROBLEM = memory.Problem("k", "digest", "(8, 'bf16')", "NVIDIA H200", "GPU-1", "triton 3.6.0")
WRITER = """
import sys
from pathlib import Path
from tilescope.tuning import memory
problem = memory.Problem("k", "digest", "(8, 'bf16')", "NVIDIA H200", "GPU-1", "triton 3.6.0")
for number in range(20):
    memory.Memory(Path(sys.argv[1])).keep(problem, {f"{sys.argv[2]}{number}": memory.Timing((1e-3 + number,), "", "")})
"""


def timed(*samples, reason="", at="2026-01-02T00:00:00+00:00"):
    return memory.Timing(samples, reason, at)


@pytest.fixture
def kept(tmp_path):
    return memory.Memory(tmp_path / "folder" / "tuning.sqlite3")


def test_what_was_timed_is_known_to_the_same_problem_alone(kept):
    kept.keep(PROBLEM, {"a": timed(1e-3, 3e-3, 2e-3), "b": timed(reason="262144 bytes of shared memory")})
    known = kept.known(PROBLEM)
    assert known["a"].median == 2e-3
    assert (known["b"].median, known["b"].reason) == (None, "262144 bytes of shared memory")
    for change in ({"digest": "x"}, {"shape": "(9, 'bf16')"}, {"uuid": "GPU-2"}, {"versions": "triton 3.7.0"}):
        assert kept.known(dataclasses.replace(PROBLEM, **change)) == {}


def test_two_processes_write_one_database(kept, tmp_path):
    path = str(tmp_path / "shared.sqlite3")
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, name]) for name in ("x", "y")]
    assert [writer.wait(300) for writer in writers] == [0, 0]
    assert len(memory.Memory(tmp_path / "shared.sqlite3").known(PROBLEM)) == 40


def test_one_that_writes_a_new_database_is_waited_for(kept):
    """SQLite refuses the change to WAL at once while another process writes, and ignores the timeout."""
    kept.path.parent.mkdir()
    other = sqlite3.connect(kept.path, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE something (a)")
    release = threading.Timer(0.5, lambda: (other.execute("COMMIT"), other.close()))
    release.start()
    kept.keep(PROBLEM, {"a": timed(1e-3)})
    release.join()
    assert set(kept.known(PROBLEM)) == {"a"}


def test_merging_takes_the_later_timing(kept, tmp_path, monkeypatch):
    other = memory.Memory(tmp_path / "other.sqlite3")
    other.keep(PROBLEM, {"a": timed(5e-3, at="2000-01-01T00:00:00+00:00"), "c": timed(1e-3)})
    kept.keep(PROBLEM, {"a": timed(2e-3)})
    assert kept.merge(other.path) == 1
    assert kept.merge(other.path) == 0
    assert {config: timing.median for config, timing in kept.known(PROBLEM).items()} == {"a": 2e-3, "c": 1e-3}
    with pytest.raises(memory.WinnersError, match="no tuning database"):
        kept.merge(tmp_path / "none")
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(memory.WinnersError, match="text is no tuning database"):
        kept.merge(tmp_path / "text")
    later = memory.Timing((4e-3,), "", "2999-01-01T00:00:00+00:00", {"sm_clock": 1.98e9})
    kept.take(PROBLEM, {"a": later, "c": dataclasses.replace(later, at="1999-01-01T00:00:00+00:00")})
    assert kept.known(PROBLEM)["a"] == later
    assert kept.known(PROBLEM)["c"].median == 1e-3


def test_times_of_two_gpus_of_one_name_are_not_ranked(kept, tmp_path):
    kept.keep(PROBLEM, {"a": timed(2e-3), "b": timed(1e-3)})
    kept.keep(dataclasses.replace(PROBLEM, uuid="GPU-2"), {"a": timed(1e-9)})
    memory.export(kept.winners(), tmp_path / "winners.json")
    (found,) = memory.load(tmp_path / "winners.json")
    assert (found.config, found.configs) == ("b", 2), "the quicker GPU has tried one config only"


def test_winners_are_exported_and_chosen_on_any_gpu_of_that_name(kept, tmp_path):
    elsewhere = dataclasses.replace(PROBLEM, device="NVIDIA A100")
    kept.keep(PROBLEM, {"a": timed(2e-3), "b": timed(1e-3), "c": timed(reason="spills")})
    kept.keep(elsewhere, {"a": timed(1e-9)})
    file = tmp_path / "winners.json"
    memory.export(kept.winners(), file)
    assert "GPU-1" not in file.read_text()
    found = memory.load(file)
    assert memory.chosen(found, dataclasses.replace(PROBLEM, uuid="GPU-7")) == "b"
    assert memory.chosen(found, elsewhere) == "a"
    assert memory.chosen(found, dataclasses.replace(PROBLEM, digest="changed")) == ""
    assert [(w.problem.device, w.configs) for w in found] == [("NVIDIA A100", 1), ("NVIDIA H200", 2)]


@pytest.mark.parametrize(
    "text", ["[]", "{", json.dumps({"format": 9, "winners": []}), '{"format": 1, "winners": [{}]}']
)
def test_what_is_no_file_of_winners_is_refused_in_one_line(tmp_path, text):
    file = tmp_path / "winners.json"
    file.write_text(text)
    with pytest.raises(memory.WinnersError, match=r"winners\.json is no file of winners") as caught:
        memory.load(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(memory.WinnersError, match=r"memory\.export"):
        memory.load(tmp_path / "none.json")
