"""Interrupted and damaged runs: found, read, resumed, or reported in one line."""

import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tilescope import cli
from tilescope.files import atomic_writing, bounded_reading, json_shape
from tilescope.runs import artefacts, journal, listings, store
from tilescope.runs.publish import publish
from tilescope.runs.store import RunWriter, StoreError
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import SCHEMA_VERSION

from . import made_up

CASES = [Case("softmax", "triton", "forward", f"{size}x8-fp32") for size in (8, 16, 32)]
FIRST, SECOND, THIRD = "20261120-000000-aaaa", "20261121-000000-bbbb", "20261122-000000-cccc"


pytestmark = pytest.mark.usefixtures("runs")


def writer(folder, name):
    made = RunWriter(folder, made_up.run(name, {"softmax": {}}, title=name))
    made.plan(CASES)
    return made


def test_flipped_bit_changes_no_value(runs):
    path = filled(runs, FIRST).finish() / "table.parquet"
    whole, content = store.open_run(path.parent).table, path.read_bytes()
    refused = 0
    for place in range(4, len(content), len(content) // 60):
        path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        try:
            pd.testing.assert_frame_equal(store.open_run(path.parent).table, whole)
        except StoreError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("value", [1e300, 5e-324])
def test_values_beyond_the_limits_are_refused(value):
    with pytest.raises(schema.SchemaError, match=r"row 0: no value but 0 is below 1e-60 or above 1e\+60"):
        schema.validate(schema.frame([CASES[0].row("gpu_time", value, "ncu")]))
    with pytest.raises(json_shape.Misfit, match=r"a rate is (above|below)"):
        json_shape.fit(value, float, "a rate")


@pytest.mark.parametrize("distinct", [16, 1 << 30])
def test_file_of_too_many_rows_is_refused(runs, distinct):
    # Two rows a byte are the same few again and again; what was measured differs from row to row.
    path = filled(runs, FIRST).finish() / "table.parquet"
    rows = pd.read_parquet(path).iloc[[0] * 200_000].reset_index(drop=True)
    rows["value"] = np.random.default_rng(0).integers(distinct, size=len(rows)).astype(float)
    rows.to_parquet(path, index=False, compression="zstd")
    if distinct > 16:
        assert len(store.open_run(path.parent).table) == len(rows)
    else:
        with pytest.raises(StoreError, match=f"it declares 200000 rows, in {path.stat().st_size} bytes"):
            store.open_run(path.parent)


def filled(folder, name):
    made = writer(folder, name)
    for case in CASES:
        made.append(schema.frame([case.row("registers", 32, "compiler", launch=0, function="k")]), "compiler", case)
        made.settle(journal.Settled("compiler", case.id, "result"))
    return made


def killed(folder, name):
    made = filled(folder, name)
    made.lock_file.close()
    return made.folder


def test_resume_and_recover_find_interrupted_runs(runs, tmp_path, capsys):
    filled(tmp_path / "recorded", THIRD).finish(complete=False)
    filled(runs, FIRST).finish()
    for find in (store.find_interrupted, store.find_half_written):
        with pytest.raises(StoreError, match="tilescope show"):
            find("latest")
    assert cli.main(["resume", "latest"]) == cli.BAD_INPUT
    assert "was interrupted" in capsys.readouterr().err
    half = killed(runs, SECOND)
    at_work = filled(runs, THIRD)
    assert "still being written" in store.list_runs()[0].error
    assert store.find_interrupted("latest") == store.find_half_written("latest") == half
    at_work.finish()
    assert store.find_interrupted("latest") == half
    stopped = filled(runs, "20261123-000000-dddd").finish(complete=False)
    assert store.find_interrupted("latest") == stopped
    assert store.find_half_written("latest") == half


def test_show_names_the_latest_run_and_its_cases(runs, tmp_path, capsys):
    filled(tmp_path / "recorded", THIRD).finish()
    assert cli.main(["show", "latest"]) == 0
    assert f"latest: {THIRD}, a recording that comes with Tilescope" in capsys.readouterr().err
    killed(runs, FIRST)
    assert any(f"'tilescope recover {FIRST}'" in listed.error for listed in store.list_runs())
    assert cli.main(["show", "latest"]) == 0
    out, err = capsys.readouterr()
    assert err == f"latest: {FIRST}\n"
    assert f"tilescope resume {FIRST}" in out
    assert all(case.workload in out for case in CASES)
    assert cli.main(["recover", "latest"]) == 0
    recovered = store.open_run(runs / FIRST)
    assert recovered.run.complete is False and recovered.table["value"].tolist() == [32] * 3


@pytest.mark.parametrize("name", ["../victim", "", "a/b", "-rf", "a" * 200, "a\x00"])
def test_id_names_no_other_place(runs, tmp_path, name):
    victim = tmp_path / "victim"
    victim.mkdir()
    folder = filled(runs, FIRST).finish()
    made_up.redescribe(folder, id=name)
    with pytest.raises(StoreError, match=r"cannot be a run's id|null"):
        store.open_run(folder)
    with pytest.raises(StoreError, match="cannot be a run's id"):
        writer(runs, name)
    loaded = store.LoadedRun(made_up.run(name), schema.frame([]), folder)
    with pytest.raises(StoreError, match="cannot be a run's id"):
        publish(loaded, tmp_path / "target")
    assert victim.is_dir()


def test_publish_removes_older_copies_only(runs, tmp_path):
    loaded = store.open_run(filled(runs, FIRST).finish())
    target = tmp_path / "target" / FIRST
    target.mkdir(parents=True)
    (target / "mine.txt").touch()
    with pytest.raises(StoreError, match="is no copy of this run"):
        publish(loaded, tmp_path / "target")
    with pytest.raises(StoreError, match="is the run itself"):
        publish(loaded, runs)
    assert (target / "mine.txt").exists()


def test_damaged_part_loses_its_own_rows(runs):
    half = killed(runs, FIRST)
    part = next(path for path in half.joinpath("parts").iterdir() if CASES[1].slug in path.name)
    part.write_bytes(part.read_bytes()[:-9])
    again = RunWriter.reopen(half)
    assert set(again.rows["workload"]) == {CASES[0].workload, CASES[2].workload}
    assert [done.case for done in journal.read(half).settled] == [CASES[0].id, CASES[2].id]
    (note,) = again.run.notes
    assert f"compiler {CASES[1].id}, which is outstanding again" in note
    again.lock_file.close()
    final = store.recover(half)
    assert len(store.open_run(final).table) == 2
    assert store.find_interrupted("latest") == final


def test_part_damaged_beside_its_writer_loses_nothing(runs):
    made = filled(runs, FIRST)
    next(iter(made.folder.joinpath("parts").iterdir())).write_bytes(b"PAR1")
    loaded = store.open_run(made.finish())
    assert loaded.run.complete
    assert len(loaded.table) == 3
    assert loaded.run.notes == ()


def test_run_is_on_the_disk_before_it_has_its_name(runs, monkeypatch):
    synced, renamed = [], []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())), real(handle))
    )
    rename = atomic_writing.rename
    monkeypatch.setattr(
        "tilescope.files.atomic_writing.rename", lambda *of, **more: (rename(*of, **more), renamed.append(list(synced)))
    )
    made = writer(runs, FIRST)
    made.append(schema.frame([CASES[0].row("registers", 32, "compiler")]), "compiler", CASES[0])
    made.settle(journal.Settled("compiler", CASES[0].id, "result"))
    assert synced == []
    final = made.finish()
    names = [path.rpartition("/")[2] for path in renamed[0]]
    assert {"run.json", "table.parquet", made.folder.name} <= set(names)
    assert renamed[0][-1] == str(final.parent)


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def gone(name):
    return lambda folder: (folder / name).unlink()


def change(**fields):
    return lambda folder: made_up.redescribe(folder, **fields)


def away(path, target):
    path.unlink()
    path.symlink_to(target)


def pipe(folder):
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")


def bomb(folder):
    with gzip.open(folder / "run.json", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))


def cut_off(folder):
    os.truncate(folder / "table.parquet", (folder / "table.parquet").stat().st_size - 20)


@pytest.mark.parametrize(("damage", "said"), [
    (text("run.json", "{"), "damaged, record it again"),
    (text("run.json", json.dumps({"schema_version": SCHEMA_VERSION})), "damaged"),
    (text("run.json", "[]"), "holds no object"),
    (text("run.json", '{"schema_version": 1, "id": ' + "[" * 50_000 + "]" * 50_000 + "}"), "no JSON|nested"),
    (gone("run.json"), "run.json is missing"),
    (change(schema_version=SCHEMA_VERSION + 1, new=1), "upgrade with"),
    (change(schema_version="1"), "damaged"),
    (change(kernels=5), "kernels is a whole number, not an object"),
    (change(title="\ud800"), "half a character"),
    (lambda folder: away(folder / "run.json", "/dev/zero"), "no ordinary file"),
    (pipe, "no ordinary file"),
    (bomb, "unpacks to more"),
    (cut_off, "damaged, record it again"),
    (text("table.parquet", ""), "damaged, record it again"),
    (gone("table.parquet"), "table.parquet is missing"),
    (lambda folder: away(folder / "table.parquet", "/proc/kmsg"), "a link out"),
    (lambda folder: os.truncate(folder / "table.parquet", 1 << 40), "bytes, which is more than"),
    (lambda folder: pd.DataFrame({"a": [1]}).to_parquet(folder / "table.parquet"), "columns are not the schema's"),
])  # fmt: skip
def test_damaged_run_is_listed_with_its_error(runs, capsys, damage, said):
    bad, good = (filled(runs, name).finish() for name in (FIRST, SECOND))
    damage(bad)

    def files():
        return {(path, seen.st_size, seen.st_mtime_ns) for path in bad.iterdir() if (seen := path.lstat())}

    before = files()
    with pytest.raises(StoreError, match=said) as caught:
        store.open_run(bad)
    assert "\n" not in str(caught.value)
    listed = store.list_runs()
    assert [(summary.path, bool(summary.error)) for summary in listed] == [(good, False), (bad, True)]
    assert re.search(said, listed[1].error) and FIRST in listed[1].error and "\n" not in listed[1].error
    assert cli.main(["show"]) == 0
    assert SECOND in capsys.readouterr().out
    assert files() == before


def test_source_file_is_a_python_file(tmp_path):
    for file in ("/proc/kmsg", "/dev/zero", "__main__/x.py", "tilescope_kernels/../../secret.py", "a" * 5000 + ".py"):
        assert store.source_file(file) is None
    own = tmp_path / "own.py"
    own.write_text("x = 1\n")
    assert store.source_file(str(own)) == own
    assert store.source_file("tilescope_kernels/spec.py").name == "spec.py"


def test_artefact_lies_in_its_run(tmp_path):
    folder = tmp_path / "run"
    place = folder / "artefacts" / "compiler"
    place.mkdir(parents=True)
    path = place / f"{CASES[0].slug}.json.gz"
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps({"launches": []}))
    path.symlink_to(outside)
    assert artefacts.find(folder, "compiler", CASES[0]) is None
    assert listings.of_case(folder, CASES[0]) == []
    path.unlink()
    path.write_bytes(gzip.compress(json.dumps({"launches": [{"function": 5, "stages": {}}]}).encode()))
    with pytest.raises(ValueError, match=r"launches\[0\].function is a whole number, not a text"):
        listings.of_case(folder, CASES[0])


def test_lock_that_is_a_link_empties_nothing(runs, tmp_path):
    half = killed(runs, FIRST)
    mine = tmp_path / "mine"
    mine.write_text("all I have")
    away(half / ".lock", mine)
    with pytest.raises(StoreError, match="is a link"):
        store.recover(half)
    assert mine.read_text() == "all I have"


def test_journal_keeps_a_message_in_one_line(runs):
    made = writer(runs, FIRST)
    made.settle(journal.Settled("ncu", CASES[0].id, "error", "one\u2028two\r\n\x0cthree"))
    made.lock_file.close()
    (done,) = journal.read(made.folder).settled
    assert done.message == "one\u2028two\r\n\x0cthree"


def test_truncated_bytes_are_refused(tmp_path):
    packed = gzip.compress(b'{"a": 1}')
    assert bounded_reading.data(packed) == {"a": 1}
    for cut in range(3, len(packed)):
        with pytest.raises(bounded_reading.Unreadable):
            bounded_reading.data(packed[:cut])
