"""Claims stored beside the code equal those computed by today's code, and a line with changed code is not used."""

import json
import shutil
from pathlib import Path

from tilescope.cli import main
from tilescope.models import claims, claims_text, recorded_claims
from tilescope.runs import same_launches, store
from tilescope.runs.store import LoadedRun

AGAIN = "run: tilescope claims --keep"


def test_every_recording_has_its_claims_kept() -> None:
    found = {folder.name: recorded_claims.kept(folder) for folder in store.recorded_dir().iterdir() if folder.is_dir()}
    assert [name for name, kept in found.items() if kept is None] == [], AGAIN


def test_what_is_kept_is_what_is_computed(recording: LoadedRun) -> None:
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


def test_another_table_or_another_code_is_not_taken_for_what_was_kept(tmp_path: Path) -> None:
    folder, file = tmp_path / "20261126-055606-7e77", tmp_path / "kept.jsonl"
    shutil.copytree(store.recorded_dir() / folder.name, folder)
    assert recorded_claims.kept(folder, file) is None
    assert recorded_claims.keep([folder], file) == [folder.name]
    assert recorded_claims.kept(folder, file) is not None
    assert recorded_claims.keep([folder], file) == []
    line = json.loads(file.read_text())
    # A file that the recording's kernels are in now.
    assert any("cross_entropy" in name for name in [*line["declared"], *line["texts"]])
    declared = [name for name in line["declared"] if "linear" not in name]
    assert recorded_claims.digest(folder, declared, line["texts"][:-1]) != line["digest"]
    with (folder / "table.parquet").open("ab") as table:
        table.write(b" ")
    assert recorded_claims.kept(folder, file) is None


def test_the_command_says_what_it_computed(capsys) -> None:
    files = recorded_claims.FILE, same_launches.FILE
    before = [file.read_bytes() for file in files]
    assert main(["claims", "--keep"]) == 0
    assert capsys.readouterr().out.startswith("computed again: none"), AGAIN
    assert [file.read_bytes() for file in files] == before
