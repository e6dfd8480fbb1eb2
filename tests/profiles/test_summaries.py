"""Summaries of runs are cached for other processes as long as the runs are unchanged."""

import pytest
from tilescope.files import user_cache
from tilescope.runs import store, summaries


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two runs, one of which cannot be read, and a cache folder of their own."""
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(summaries, "_known", {})
    place = tmp_path / "runs"
    place.mkdir()
    recorded = next(path for path in sorted(store.recorded_dir().iterdir()) if (path / "table.parquet").is_file())
    (place / recorded.name).mkdir()
    for name in ("run.json", "table.parquet"):
        (place / recorded.name / name).write_bytes((recorded / name).read_bytes())
    (place / "20260101-000000-bad0").mkdir()
    return place


def listed(folder, monkeypatch):
    """What a process that knows nothing yet lists, and the runs that it had to read."""
    read: list[str] = []
    plain = store._read
    monkeypatch.setattr(store, "_read", lambda path, table: (read.append(path.name), plain(path, table))[1])
    monkeypatch.setattr(summaries, "_known", {})
    found = store.list_runs([folder])
    monkeypatch.setattr(store, "_read", plain)
    return found, read


def test_only_new_and_unreadable_runs_are_opened(folder, monkeypatch):
    first, opened = listed(folder, monkeypatch)
    assert len(opened) == 2
    again, opened = listed(folder, monkeypatch)
    assert again == first
    assert opened == ["20260101-000000-bad0"], "whatever was wrong may be mended"


def test_rewritten_run_is_opened_again(folder, monkeypatch):
    listed(folder, monkeypatch)
    file = next(folder.glob("*/run.json"))
    file.write_text(file.read_text().replace('"title": "', '"title": "other '))
    found, opened = listed(folder, monkeypatch)
    assert file.parent.name in opened
    assert any(summary.title.startswith("other ") for summary in found)


def test_damaged_cache_is_ignored(folder, monkeypatch):
    first, _ = listed(folder, monkeypatch)
    (file,) = (folder.parent / "cache").glob("*/*.json")
    user_cache.write(file.parent.name, file.stem, {"a": [[["x", 1]], {"id": 5}], "b": 3})
    again, opened = listed(folder, monkeypatch)
    assert again == first
    assert len(opened) == 2
