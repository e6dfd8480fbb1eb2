"""Defaults of Bokeh's models that are remembered are those that Bokeh finds."""

import re
from typing import Any

import panel_material_ui as pmui
import pytest
from bokeh.core.has_props import HasProps
from bokeh.core.property.descriptors import PropertyDescriptor, UnsetValueError
from bokeh.core.property.override import Override
from bokeh.core.serialization import Serializer
from bokeh.models import ColumnDataSource, Model, Plot, Range1d
from bokeh.themes import Theme
from tilescope_dashboard.panel_patches import model_defaults

pytestmark = pytest.mark.filterwarnings("ignore::bokeh.util.warnings.BokehDeprecationWarning")


@pytest.fixture(autouse=True)
def bokehs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bokeh's own way, whatever was done in this process before, and that again afterwards."""
    monkeypatch.setattr(PropertyDescriptor, "has_unstable_default", model_defaults._bokehs_unstable)
    monkeypatch.setattr(PropertyDescriptor, "instance_default", model_defaults._bokehs_default)
    monkeypatch.setattr(HasProps, "query_properties_with_values", model_defaults._bokehs_values)
    monkeypatch.setattr(HasProps, "themed_values", model_defaults._bokehs_theme)
    monkeypatch.setattr(HasProps, "__init__", model_defaults._bokehs_init)


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
    model_defaults.remember()
    for _ in range(2):
        assert all_said() == before


def test_what_may_change_is_each_models_own() -> None:
    model_defaults.remember()
    first, second = ColumnDataSource(), ColumnDataSource()
    first.data["x"] = [1]
    first.selected.indices = [0]
    assert not second.data
    assert not second.selected.indices
    assert Plot().x_range is not Plot().x_range


class Wide(Range1d):
    """Of another default."""

    end = Override(default=7)


def test_a_theme_and_a_subclass_prevail() -> None:
    model_defaults.remember()
    plots: list[Any] = [Plot() for _ in range(3)]
    Theme(json={"attrs": {"Plot": {"border_fill_color": "red"}}}).apply_to_model(plots[1])
    assert [plot.border_fill_color for plot in plots] == ["#ffffff", "red", "#ffffff"]
    assert [kind().end for kind in (Range1d, Wide, Range1d)] == [1, 7, 1]
