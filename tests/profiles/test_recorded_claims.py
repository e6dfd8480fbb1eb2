"""Claims stored beside the recordings equal those computed by today's models."""

import shutil

from tilescope.cli import main
from tilescope.models import claims, claims_text, recorded_claims
from tilescope.runs import store

AGAIN = "run: tilescope claims --keep"


def test_every_recording_has_kept_claims():
    found = {folder.name: recorded_claims.kept(folder) for folder in store.recorded_dir().iterdir() if folder.is_dir()}
    assert [name for name, kept in found.items() if kept is None] == [], AGAIN


def test_kept_claims_are_those_computed(recording):
    rows, said = recorded_claims.kept(recording.folder)
    computed = claims.of_run(recording)
    apart = [
        (row["kernel"], name, row[name], other[name])
        for row, other in zip(rows, computed, strict=True)
        for name in other
        # As text, for NaN is not NaN.
        if str(row[name]) != str(other[name])
    ]
    assert apart == [], AGAIN
    assert said == claims_text.provenance([recording]), AGAIN


def test_claims_of_another_table_are_computed(recordings, runs, tmp_path, capsys):
    (source,) = (loaded.folder for loaded in recordings if loaded.folder.name == "20261126-055606-7e77")
    folder = shutil.copytree(source, tmp_path / "recorded" / source.name)
    assert recorded_claims.kept(folder) is None
    assert len(recorded_claims.every()[0]) == len(claims.claims([store.open_run(folder)]))
    for said in (folder.name, "none, all are up to date"):
        assert main(["claims", "--keep"]) == 0
        assert capsys.readouterr().out == f"computed again: {said}\n"
    assert recorded_claims.kept(folder) is not None
    with (folder / "run.json").open("ab") as table:
        table.write(b" ")
    assert recorded_claims.kept(folder) is None
