"""Summaries of runs are cached for other processes as long as the runs are unchanged."""

import os
import subprocess
import sys

import pytest
from tilescope.files import user_cache
from tilescope.runs import store

#: What a process that knows nothing yet lists.
LISTED = """
import sys
from pathlib import Path
from tilescope.runs import store
for run in store.list_runs([Path(sys.argv[1])]):
    print(run.path.name, run.title, len(run.kernels), bool(run.error))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two runs, one of which cannot be read, and a cache folder of their own."""
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "runs"
    place.mkdir()
    recorded = next(path for path in sorted(store.recorded_dir().iterdir()) if (path / "table.parquet").is_file())
    (place / recorded.name).mkdir()
    for name in ("run.json", "table.parquet"):
        (place / recorded.name / name).write_bytes((recorded / name).read_bytes())
    (place / "20260101-000000-bad0").mkdir()
    return place


def listed(folder):
    command = [sys.executable, "-c", LISTED, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()


def damage(folder):
    """Damages the table of the good run, and leaves its size and time as they were."""
    table = next(folder.glob("*/table.parquet"))
    before = table.stat()
    table.write_bytes(bytes(before.st_size))
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_unchanged_runs_are_not_opened_again(folder):
    first = listed(folder)
    assert [line.split()[-1] for line in sorted(first)] == ["True", "False"]
    damage(folder)
    assert listed(folder) == first
    file = next(folder.glob("*/run.json"))
    file.write_text(file.read_text().replace('"title": "', '"title": "other '))
    assert all(line.endswith("True") for line in listed(folder)), "what was rewritten is opened"


def test_damaged_cache_is_ignored(folder):
    listed(folder)
    (file,) = (folder.parent / "cache").glob("*/*.json")
    user_cache.write(file.parent.name, file.stem, {"a": [[["x", 1]], {"id": 5}], "b": 3})
    damage(folder)
    assert all(line.endswith("True") for line in listed(folder)), "every run is opened"
