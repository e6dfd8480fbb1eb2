"""Scripts in a notebook's outputs: compressed, whole again in the browser, each there once; tables where none may run."""

import base64
import gzip
import json
import re

import pandas as pd
from panel_material_ui import Button
from tilescope_dashboard.components.html_text import heading
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.notebook.compressed_scripts import compressed, lender
from tilescope_dashboard.notebook.without_scripts import below
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.base import View

JS, LOAD = "application/javascript", "application/vnd.holoviews_load.v0+json"


def decompressed(script):
    """The text that a script decompresses."""
    found = re.search(r'atob\("([A-Za-z0-9+/=]+)"\)', script)
    assert found
    return gzip.decompress(base64.b64decode(found[1])).decode()


def test_a_library_is_there_once():
    library = "console.log('ünïcode </script>')\n" * 10_000
    data = compressed({JS: library, LOAD: library})
    assert list(data) == [JS]
    assert decompressed(data[JS]) == library
    assert len(data[JS]) < len(library) / 50


def test_what_is_short_or_no_script_stays():
    for data in ({JS: "1", LOAD: "1"}, {"text/html": "<style></style>"}, {"text/plain": "x" * 100_000}):
        assert compressed(data) == data


def test_the_widgets_module_is_left_out_of_a_view_and_lent_once():
    model = Button(label="a").get_root()
    module = decompressed(lender()[JS])
    assert len(module) > 1_000_000
    docs = json.dumps([{"esm": module, "id": "1"}, {"esm": module, "id": "2"}, {"esm": "short", "id": model.id}])
    shown = compressed(
        {"text/html": f'<div id="r"></div>\n<script type="{JS}">run({docs})</script>', "text/plain": "view"}
    )
    script = decompressed(shown["text/html"])
    assert len(script) < 2_000
    assert script.startswith("run(")
    left = json.loads(script.removeprefix("run(").removesuffix(")"))
    assert left[0]["esm"] == left[1]["esm"] != left[2]["esm"] == "short"
    # By the name that it is lent under.
    name = re.search(r'tilescopeLent \?\?= \{\}\)\["(\w+)"\]', lender()[JS])
    assert name
    assert name[1] in left[0]["esm"]
    assert shown["text/html"].startswith('<div id="r"></div>')
    assert shown["text/plain"] == "view"


class Two(View):
    """A headline and a table."""

    name_in_address, title = "two", "Two"

    def build(self):
        self.head.object = heading("<b>fast & new</b>")
        self.table = table(
            [Column("function", "function"), Column("time", "time", "second"), Column("none", "none", "byte")]
        )
        return [self.table]

    def update(self):
        names = ["<script>alert(1)</script>", *[f"f{n}" for n in range(14)]]
        self.table.fill(pd.DataFrame({"function": names, "time": [float("nan"), *[n * 1e-6 for n in range(14)]]}))


def test_headline_and_rows_stand_where_no_script_runs():
    view = Two(State(run="", kernel="softmax", view="two"))
    view.refresh()
    said = below("<div></div>", view)
    assert said.startswith("<div></div><div")
    assert "&lt;b&gt;fast &amp; new&lt;/b&gt;" in said
    assert "<script" not in said
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td><td>–</td>" in said
    assert "<td>f3</td><td>3.00 µs</td>" in said
    assert "(softmax" in said
    assert "none" not in said.partition("<style>")[0]
    assert "3 more rows." in said
