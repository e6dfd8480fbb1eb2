"""Memory and stalls: what is drawn of a launch's counters, and what is absent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.models import Arrow
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.case_table import CaseValues, gather
from tilescope_dashboard.figures.counters import memory, stalls
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.topics import counters as topic
from tilescope_dashboard.views.counters import Counters

from .conftest import RUN, grid, opened
from .conftest import said as words


def counted(source: str = "ncu", **metrics: float) -> CaseValues:
    case = Case("softmax", "triton", "forward", "8x8-fp32")
    at: dict[str, Any] = {"launch": 0, "function": "softmax_kernel"}
    return gather(schema.frame([case.row(name, value, source, **at) for name, value in metrics.items()]))[0]


def test_what_was_not_recorded_is_absent_and_has_no_arrow() -> None:
    case = counted(dram_bytes_read=3e6, dram_bytes_written=1e6, l2_hit_rate=0.5, stall_wait=0.0)
    moved = topic.memory(case, 0)
    assert topic.memory(counted("cupti", dram_bytes_read=3e6, dram_bytes_written=1e6), 0).flows == moved.flows
    assert {flow[:2]: flow.value for flow in moved.flows} == {
        ("L1", "both"): None, ("L2", "read"): None, ("L2", "written"): None, ("HBM", "read"): 3e6, ("HBM", "written"): 1e6,
    }  # fmt: skip
    assert [level.lines for level in moved.levels] == [(), (), ("50.0 % hit rate",), ()]
    for look in (LIGHT, DARK):
        plot = memory(moved, look)
        Document().add_root(plot)
        arrows = sorted((arrow.line_width, arrow.y_end > arrow.y_start) for arrow in plot.select(Arrow))
        # What is read goes up, to the SMs, and is drawn three times as wide.
        assert [up for _, up in arrows] == [False, True]
        assert arrows[1][0] == pytest.approx(3 * arrows[0][0])
        texts = [text for r in plot.renderers if hasattr(r.glyph, "text") for text in r.data_source.data["text"]]
        assert texts.count("not recorded") == 6


@pytest.mark.parametrize("by", ["l2_to_l1_bytes", "l2_bytes"])
def test_memory_past_l1_is_absent(by: str) -> None:
    moved = topic.memory(counted(l1_bytes=12160.0, l1_hit_rate=0.0, **{by: 1.6e9}), 0)
    assert moved.flows[0].value is None and moved.levels[1].lines == ("TMA's loads are not counted",)
    moved = topic.memory(counted(l1_bytes=1.6e9, l1_hit_rate=0.0, **{by: 1.6e9}), 0)
    assert moved.flows[0].value == 1.6e9 and moved.levels[1].lines == ("0 % hit rate",)


def test_a_box_holds_its_text_on_a_phone() -> None:
    moved = topic.memory(counted(sm_throughput=0.59123, bank_conflicts=1.23e8, l2_hit_rate=0.5, l2_bytes=1.234e11), 0)
    plot = memory(moved, replace(DARK, narrow=True))
    box = next(r for r in plot.renderers if r.name == "levels")
    # A phone's figure is 330 pixels wide inside, and a letter of 12 pixels height 6.2 wide.
    assert max(len(", ".join(level.lines)) for level in moved.levels) * 6.2 < 330 * box.glyph.width


def test_stalls_are_shares_of_all_cycles_and_selected_is_none() -> None:
    case = counted(stall_selected=1.0, stall_long_scoreboard=2.0, stall_wait=1.0, stall_drain=0.0)
    found = topic.stalls(case, 0)
    assert found["name"].tolist()[0] == "Long Scoreboard"
    assert found["share"].tolist() == [0.5, 0.25, 0.25, 0.0]
    assert found.set_index("reason")["meaning"]["long_scoreboard"] == "data from L2 or HBM"
    drawn = stalls(found, LIGHT).select_one({"name": "stalls"}).data_source.data
    assert len(drawn["name"]) == 3
    assert drawn["colour"][list(drawn["name"]).index("Selected")] == LIGHT.muted
    assert topic.stalls(counted(gpu_time=1.0), 0).empty


def test_counters_of_a_recorded_launch_are_listed(own_runs: Path) -> None:
    runs = store.list_runs()
    # Opened on a sweep, which has no counters: those of another recording, of the case that is most like the chosen one.
    sweep = next(one for one in runs if one.title == "reductions: autotune sweeps")
    shown = opened(Counters, run=sweep.id, kernel="softmax")
    assert shown.origin[1] == next(run.id for run in runs if run.title == "softmax")
    assert "through HBM" in words(shown)
    assert "From softmax, recorded" in words(shown)
    assert "through HBM; warps spend" in words(shown)
    assert len(grid(shown).filled) > 50
    shown.state.choose(direction="backward")
    assert ", backward" in words(shown)


def test_without_run_it_says_what_to_do(in_runs: None) -> None:
    shown = opened(Counters, run=RUN, kernel="softmax")
    assert "through HBM" in words(shown)
    shown.state.kernel = "in_no_run"
    assert "in_no_run has no run yet" in words(shown)
    assert not shown.body.visible
