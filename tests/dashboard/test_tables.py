"""Tables and the files people save: raw values, units in the names, and where they come from in the file's name."""

import asyncio
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from panel.models.tabulator import CellClickEvent, SelectionEvent
from tilescope_dashboard.components.download import Download
from tilescope_dashboard.components.tables import downloads, table
from tilescope_dashboard.data import exports
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.figures.style import theme

from .conftest import RUN

COLUMNS = (
    Column("impl", "impl.", "text"), Column("registers", "registers", "count"),
    Column("gpu_time", "GPU time", "second"), Column("over", "of the floor", "times"), Column("why", "why", "text"),
)  # fmt: skip
ROWS = pd.DataFrame(
    {
        "impl": ["triton", "=cmd()", None], "registers": pd.array([32, None, 40], dtype="Int64"),
        "gpu_time": [1.8278e-4, float("nan"), 2e-6], "over": [1.015625, 2.0, None], "hidden": [1, 2, 3],
    }
)  # fmt: skip


def filled() -> Any:
    widget = table(COLUMNS)
    widget.fill(ROWS)
    return widget


def test_a_table_shows_a_dash_and_keeps_the_value_that_is_absent() -> None:
    widget = filled()
    assert list(widget.value["impl"]) == ["triton", "=cmd()", "–"]
    plain = exports.plain(widget.filled, widget.units)
    assert list(plain.columns) == ["impl", "registers", "gpu_time (second)", "over (ratio)", "why"]
    assert plain["gpu_time (second)"].iloc[0] == 1.8278e-4
    assert plain["registers"].isna().tolist() == [False, True, False]
    assert plain["why"].isna().all()


def test_long_table_shows_first_rows_and_saves_all() -> None:
    widget = table(COLUMNS)
    plain = exports.plain(widget.filled, widget.units)
    assert pq.read_table(exports.as_parquet(plain)).num_rows == 0
    assert exports.as_csv(plain).read().decode().strip() == "impl,registers,gpu_time (second),over (ratio),why"
    widget.fill(pd.DataFrame({"registers": range(10_002)}))
    assert len(widget.value) == 10_000
    assert "10,000 of 10,002 rows" in widget.note.object
    assert len(exports.plain(widget.filled, widget.units)) == 10_002
    widget.fill(ROWS)
    assert (len(widget.value), widget.note.object) == (3, "")


def test_a_link_writes_the_table_as_it_is_when_it_is_pressed() -> None:
    widget, names = table(COLUMNS), ["first"]
    as_csv, as_parquet = downloads(widget, lambda: names[-1]).select(Download)
    widget.fill(ROWS)
    names.append("second")
    assert b"triton" in asyncio.run(as_csv.callback()).read()
    assert as_csv.filename == "second.csv"
    assert asyncio.run(as_parquet.callback()).read(4) == b"PAR1"
    assert as_parquet.filename == "second.parquet"


def test_column_of_words_widens_up_to_a_limit() -> None:
    widget = table(
        [Column("kernel", "kernel", "text"), Column("registers", "registers", "count"), Column("why", "why", "text")]
    )
    narrow = dict(widget.widths)
    widget.fill(pd.DataFrame({"kernel": ["add"], "registers": [10**9]}))
    assert widget.widths == narrow, "short words, and numbers, leave the widths as they are"
    widget.fill(pd.DataFrame({"kernel": ["linear_cross_entropy"]}))
    wide = widget.widths["kernel"]
    assert narrow["kernel"] < wide < 180
    widget.fill(pd.DataFrame({"kernel": [None, "add"]}))
    assert widget.widths["kernel"] == wide
    widget.fill(pd.DataFrame({"kernel": ["a" * 300, None], "why": ["w" * 300, "w"]}))
    assert widget.widths == {"kernel": 180, "registers": narrow["registers"]}


def test_a_title_has_room_for_its_longest_word() -> None:
    titles = [Column("a", "theoretical", "ratio"), Column("b", "of the roof", "ratio"), Column("c", "rest", "text")]
    widths = table(titles).widths
    assert widths["a"] > 11 * 8 + 20
    assert widths["b"] < widths["a"]
    assert "c" not in widths, "the last column takes what is left"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("overview", "softmax", RUN, "NVIDIA H200"), f"tilescope-overview-softmax-{RUN}-NVIDIA-H200"),
        (("a/../b", "", "<script>x</script>"), "tilescope-a-..-b-script-x-script"),
        (("k" * 300,), "tilescope-" + "k" * 110),
    ],
)
def test_a_files_name_says_where_it_is_from_and_holds_no_path(parts: tuple[str, ...], expected: str) -> None:
    assert exports.stem(*parts) == expected


def test_a_theme_carries_the_origin_and_is_else_the_same() -> None:
    assert theme(True, "softmax").origin == ("softmax",)
    assert theme(True, "softmax").ground == theme(True).ground != theme(False).ground


def test_choose_turns_to_page_of_row() -> None:
    shown = table(COLUMNS)
    picked = []
    shown.picked = picked.append
    shown.fill(pd.concat([ROWS] * 20, ignore_index=True))
    shown.choose(30)
    assert (shown.page, shown.selection) == (3, [30])
    # It is the user's own choice, on the page that they see.
    shown.page = 1
    shown.choose(30)
    assert shown.page == 1
    # Where the browser has sorted the rows, only it knows the page.
    shown.sorters = [{"field": "impl", "dir": "asc"}]
    shown.choose(59)
    assert (shown.page, shown.selection) == (1, [59])
    shown.choose(None)
    assert (shown.selection, picked) == ([], [])
    shown.selection = [2]
    assert picked == [2]


def test_click_on_a_row_that_is_gone_changes_nothing() -> None:
    shown = table(COLUMNS, pagination="remote")
    shown.fill(ROWS)
    shown._process_event(CellClickEvent(model=None, column="impl", row=800))
    assert shown.selection == []
    shown._process_event(SelectionEvent(model=None, indices=[1], selected=True, flush=True))
    assert shown.selection == [1]


def test_table_names_implementations_and_saves_their_own_names() -> None:
    widget = table(COLUMNS)
    widget.declared = lambda: {"aten": "torch.nn.functional.softmax"}
    widget.fill(pd.DataFrame({"impl": ["triton", "eager", "compile", "aten"]}))
    assert list(widget.value["impl"]) == ["triton", "unfused", "torch.compile", "F.softmax"]
    assert list(widget.filled["impl"]) == ["triton", "eager", "compile", "aten"]
    assert widget.frozen_columns == ["impl"], "the row's name must not scroll away"
