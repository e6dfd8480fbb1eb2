"""A case of many launches: what a page reads of them grows with their number, not with its square."""

from pathlib import Path

import pytest
from tilescope.table.case_table import CaseValues
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.groups import APART, GROUPS

pytest.importorskip("playwright")

from benchmarks import dashboard as benchmark


def read_all(folder: Path, launches: int) -> list[int]:
    """Open every view of one kernel in a run with so many launches; how long each list of launches was that a model asked for."""
    asked: list[int] = []
    launches_of = CaseValues.launches

    def counted(case: CaseValues, source: str) -> list[int]:
        found = launches_of(case, source)
        asked.append(len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESCOPE_RUNS", str(folder))
        patch.setattr(CaseValues, "launches", counted)
        state = State(run=benchmark.many_launches(folder, launches), kernel="many")
        assert len(state.table) == 5 * launches
        for view in (view for title, group in GROUPS.items() if title != APART for view in group):
            shown = view(state)
            shown.refresh()
            assert "could not be drawn" not in shown.head.object, (view.title, shown.head.object)
    return asked


def test_no_view_lists_the_launches_once_a_launch(tmp_path: Path) -> None:
    few, many = read_all(tmp_path, 40), read_all(tmp_path, 80)
    assert max(many) == 2 * max(few) == 40  # two cases share the launches
    assert len(many) == len(few)
