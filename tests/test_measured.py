"""docs/measured.md shows the results that benchmarks/results holds."""

import pytest

from benchmarks import measured


def test_page_shows_every_file_of_results() -> None:
    text = measured.PAGE.read_text(encoding="utf-8")
    assert text == measured.page(text), "run: python -m benchmarks.measured"
    shown = {block[1] for block in measured.BLOCK.finditer(text)}
    assert shown == {path.stem for path in measured.RESULTS.glob("*.csv")}


def test_results_without_provenance_are_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    (tmp_path / "new.csv").write_text("# title: New\n# text: Times.\n# where: here\n# versions: 1\nsize,time\n1,2\n")
    with pytest.raises(KeyError, match="when"):
        measured.table("new")
