"""The layout of a tile: its cells, the transfer with the most conflicts first, on the page and in the report."""

import dataclasses
import gzip
import json
from pathlib import Path

import pandas as pd
import pytest
from tilescope.models.compare import Side
from tilescope.runs import store
from tilescope.runs.listings import Shared, Transfer
from tilescope.table import line_values, schema
from tilescope.table.case import Case
from tilescope_dashboard.figures.layout import layout as draw
from tilescope_dashboard.figures.style import LIGHT
from tilescope_dashboard.report.build import build
from tilescope_dashboard.topics import layouts as topic
from tilescope_dashboard.views.source import Source

from tests.profiles import made_up

from .conftest import RUN, field, opened
from .conftest import said as words

CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")
#: A warp reads columns of 32 rows: each lane has the element of a row.
READ = Transfer(
    "local_load", 26, (32, 8), 32, ((0, 1), (0, 2), (0, 4)), tuple((1 << n, 0) for n in range(5)), (),
    Shared("swizzled", (1, 0), 1, 1, 1), matrices=True,
)  # fmt: skip
WRITTEN = dataclasses.replace(READ, operation="local_store", line=24, shared=Shared("swizzled", (0, 1), 1, 1, 1))
CONVERTED = dataclasses.replace(READ, operation="convert_layout", shape=(64,), shared=None, registers=((32,),), lanes=tuple((1 << n,) for n in range(5)))  # fmt: skip


@pytest.fixture(name="folder")
def _folder(own_runs: Path) -> Path:
    """A run whose launch writes a tile without conflicts and reads it with them."""
    writer = store.RunWriter(own_runs, made_up.run(RUN, {"softmax": {}}))
    place = {"launch": 0, "function": "softmax_kernel", "file": "softmax.py", "line": 26}
    writer.append(schema.frame([CASE.row("registers", 40.0, "compiler", launch=0, function="softmax_kernel")]))
    writer.append_lines("softmax", line_values.frame([CASE.row("sass_instructions", 8.0, "compiler", **place)]), {})
    folder = writer.finish()
    moved = [dataclasses.asdict(one) for one in (WRITTEN, READ, READ)]
    launch = {"function": "softmax_kernel", "file": "softmax.py", "stages": {}, "transfers": moved}
    artefact = made_up.artefact(folder, "compiler", f"{CASE.slug}.json.gz")
    artefact.write_bytes(gzip.compress(json.dumps({"launches": [launch]}).encode()))
    return folder


def test_elements_have_their_lane_register_and_bank() -> None:
    found = topic.elements(READ).set_index(["row", "column"])
    assert len(found) == 32 * 8
    assert found.loc[(5, 3)].to_dict() == {"warp": 0, "lane": 5, "register": 3, "bank": (5 * 8 + 3) % 32, "words": 8}
    assert set(topic.elements(WRITTEN)["words"]) == {1}
    assert list(topic.elements(CONVERTED).columns) == ["row", "column", "warp", "lane", "register"]


def test_sentence_names_the_layout_that_takes_less() -> None:
    said = topic.sentence(READ)
    assert said.title == "Line 26: local_load of 32×8, 32 bits: 64 wavefronts a warp, 8 without bank conflicts"
    assert (
        "The layout is SwizzledSharedLayout(1, 1, 1, [1, 0]), and SwizzledSharedLayout(" in said.text
        and " takes 8. " in said.text
    )
    assert "no bank conflicts" in topic.sentence(WRITTEN).title
    assert "the compiler lays out the memory" in topic.sentence(CONVERTED).title


@pytest.mark.parametrize("transfer", [READ, WRITTEN, CONVERTED])
def test_figure_draws_a_cell_for_each_element(transfer: Transfer) -> None:
    (cells,) = [one for one in draw(topic.elements(transfer), LIGHT).renderers if one.name == "elements"]
    data = pd.DataFrame(dict(cells.data_source.data))
    assert len(data) == transfer.shape[0] * (transfer.shape[1] if len(transfer.shape) > 1 else 1)
    assert set(data["strength"]) == {0.95}
    # Conflicts have a colour for each bank, other tiles one for each lane.
    assert (
        data["colour"].nunique() == 32
        and data.groupby("bank" if transfer is READ else "lane")["colour"].nunique().max() == 1
    )
    assert data["bank"].str.contains("8 words in one request").all() == (transfer is READ)


@pytest.mark.usefixtures("folder")
def test_source_draws_the_transfer_with_the_most_conflicts() -> None:
    shown = opened(Source, run=RUN, kernel="softmax")
    assert "64 wavefronts a warp" in words(shown)
    choice = field(shown, "transfer")
    assert list(choice.options) == ["1. line 26: local_load 32×8, 32 bits", "2. line 24: local_store 32×8, 32 bits"]
    choice.value = choice.options["2. line 24: local_store 32×8, 32 bits"]
    assert "no bank conflicts, 8 wavefronts a warp" in words(shown)


def test_report_has_the_layout(folder: Path) -> None:
    report = build([Side(store.open_run(folder))])
    (part,) = [one for one in report.runs[0].kernels[0].parts if one.title == "Layout"]
    assert part.text.startswith("Line 26: local_load") and part.drawings[0](LIGHT).renderers
