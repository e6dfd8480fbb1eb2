"""Models of a page: the defaults that are remembered, and the models that came, are those that Bokeh finds."""

import re
from collections.abc import Iterator
from typing import Any

import panel_material_ui as pmui
import pytest
from bokeh.core.property.descriptors import UnsetValueError
from bokeh.core.property.override import Override
from bokeh.core.serialization import Serializer
from bokeh.document import Document
from bokeh.model.util import collect_models
from bokeh.models import ColumnDataSource, Div, Model, Plot, Range1d, Row
from bokeh.themes import Theme
from tilescope_dashboard.panel_patches import grown_pages, model_defaults

pytestmark = pytest.mark.filterwarnings("ignore::bokeh.util.warnings.BokehDeprecationWarning")


@pytest.fixture(autouse=True)
def bokehs() -> Iterator[None]:
    """Bokeh's own way, whatever was done in this process before, and that again afterwards."""
    model_defaults.restore()
    yield
    model_defaults.restore()


def said(model: Model) -> str:
    """What is sent of a model, and every value that it has, with models numbered in the order in which they come."""
    values = model.query_properties_with_values(lambda known: known.serialized, include_undefined=True)
    try:
        sent = repr(Serializer().encode(model))
    except UnsetValueError as error:
        sent = str(error)
    text = "\n".join([sent, *(f"{name}: {value!r}" for name, value in values.items())])
    numbers: dict[str, str] = {}
    named = re.sub(r"\bp\d+\b", lambda found: numbers.setdefault(found[0], f"model {len(numbers)}"), text)
    return re.sub(r" at 0x\w+", "", named)


def all_said() -> dict[str, str]:
    """Of a model of every class that can be made of nothing."""
    kinds = {name: kind for name, kind in Model.model_class_reverse_map.items() if not name.endswith(".IPyWidget")}
    return {name: said(kind()) for name, kind in kinds.items()}


def test_models_of_every_class_are_sent_as_bokeh_does() -> None:
    pmui.Page().get_root()  # classes that Panel makes once they are used
    before = all_said()
    assert len(before) > 600
    model_defaults.install()
    for _ in range(2):
        assert all_said() == before


def test_models_keep_their_own_values() -> None:
    model_defaults.install()
    first, second = ColumnDataSource(), ColumnDataSource()
    first.data["x"] = [1]
    first.selected.indices = [0]
    assert not second.data
    assert not second.selected.indices
    assert Plot().x_range is not Plot().x_range
    plots: list[Any] = [Plot() for _ in range(3)]
    Theme(json={"attrs": {"Plot": {"border_fill_color": "red"}}}).apply_to_model(plots[1])
    assert [plot.border_fill_color for plot in plots] == ["#ffffff", "red", "#ffffff"]
    assert [kind().end for kind in (Range1d, Wide, Range1d)] == [1, 7, 1]


class Wide(Range1d):
    """Of another default."""

    end = Override(default=7)


def test_growing_page_knows_its_models() -> None:
    grown_pages.install()
    page, root = Document(), Row(children=[Row()])
    page.add_root(root)

    def settled() -> None:
        roots = [page.roots, *([each] for each in page.roots)]
        assert {model.id for model in page.models} == {model.id for model in collect_models(*roots)}
        assert all(model.document is page for model in page.models)

    shared, moved = Div(name="shared"), Row(children=[Div()])
    root.children = [*root.children, moved, Row(children=[shared])]
    settled()
    root.children[0].children = [shared]  # in two places: where it goes from one it stays in the other
    root.children = root.children[:2]
    settled()
    assert page.get_model_by_name("shared") is shared
    with page.models.freeze():  # one comes and goes before anybody looks
        root.children = [*root.children, gone := Row(children=[Div()])]
        gone.children = [late := Div()]
        root.children[0].children = [late]
        root.children = [root.children[0]]
    settled()
    assert late.document is page and gone.document is None and moved.document is None
    page.add_root(other := Row(children=[moved]))
    settled()
    page.remove_root(other)
    settled()
    assert moved.document is None
