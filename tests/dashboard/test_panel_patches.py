"""Each fault of Panel and Bokeh is there without its correction: where one of these fails, upstream has fixed it.

Those of ``connections`` are shown in test_connections.py.
"""

import importlib.metadata
import importlib.util
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
import pytest
from bokeh.core.has_props import HasProps
from bokeh.core.property.descriptors import PropertyDescriptor
from bokeh.core.serialization import Serializer
from bokeh.document import Document
from bokeh.model import Model
from bokeh.models import Div, Plot, Row
from panel.models.tabulator import CellClickEvent
from param import Parameter
from tilescope_dashboard import panel_patches
from tilescope_dashboard.panel_patches import (
    gone,
    grown_pages,
    model_defaults,
    page_address,
    page_lifetime,
    parameter_copies,
)  # fmt: skip


def test_each_is_for_a_version_that_is_here() -> None:
    modules = {module.name for module in pkgutil.iter_modules(panel_patches.__path__)}
    assert modules == panel_patches.FOR.keys()
    for name, (distribution, version) in panel_patches.FOR.items():
        assert importlib.metadata.version(distribution) == version, f"look whether {name} is needed still"


def bare(code: str, *path: str) -> str:
    """What code prints in a process without any correction."""
    done = subprocess.run([sys.executable, "-c", code, *path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_panel_imports_the_module_that_an_address_names(tmp_path: Path) -> None:
    (tmp_path / "imported_by_address.py").write_text("print('imported')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from panel.io.server import ComponentResourceHandler as Handler\n"
        "try: Handler.parse_url_path(Handler.__new__(Handler), 'imported_by_address/x/css/y')\n"
        "except Exception: pass"
    )
    assert bare(code, str(tmp_path)) == "imported"


def test_panel_cannot_take_an_address_apart() -> None:
    ask = "from panel.io.location import _get_location_params as parts\nfor host, uri in (('[::1]:5006', '/app'), ('a', '/app?x=1?y')):"
    code = f"{ask}\n try: parts('http', host, uri)\n except ValueError: print('failed')"
    assert bare(code).split() == ["failed", "failed"]


@pytest.mark.parametrize(
    ("host", "uri", "found"),
    [
        ("[::1]:5006", "/app", {"hostname": "[::1]", "port": "5006", "pathname": "/app"}),
        ("[::1]", "/app?a=1?b", {"hostname": "[::1]", "pathname": "/app", "search": "?a=1?b"}),
        ("localhost:5006", "/app?", {"hostname": "localhost", "port": "5006", "pathname": "/app", "search": "?"}),
        ("a:b:c", "http://a/app?x#y?z", {"hostname": "a", "pathname": "/app", "search": "?x", "hash": "#y?z"}),
        (None, None, {}),
    ],
)
def test_an_address_is_taken_apart(host: str | None, uri: str | None, found: dict[str, str]) -> None:
    href = f"http:{f'//{host}' if host else ''}{uri or ''}"
    assert page_address.parts("http", host, uri) == {"protocol": "http:", "href": href, **found}
    assert set(found) <= set(pn.io.location.Location.param)


def test_bokeh_looks_the_defaults_of_a_class_up_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counted(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
        asked[descriptor.name] += 1
        return usual(descriptor, model)

    model_defaults.restore()
    usual = PropertyDescriptor.has_unstable_default
    monkeypatch.setattr(PropertyDescriptor, "has_unstable_default", counted)
    Serializer().encode(Plot())
    first = asked.total()
    Serializer().encode(Plot())
    assert asked.total() - first > 50


def test_bokeh_inspects_callback_signatures() -> None:
    code = """
from bokeh.models import Plot
from tilescope_dashboard.panel_patches import callback_checks
try: Plot().on_change("width", lambda: None)
except ValueError: print("inspected")
callback_checks.install()
Plot().on_change("width", lambda: None)
"""
    assert bare(code) == "inspected"


def test_param_asks_each_field_of_a_parameter_that_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [own for kind in (pmui.Select, pmui.Page, pn.pane.HTML) for own in kind.param.objects().values()]
    owner = pmui.Select()
    for parameter in parameters:
        theirs, ours = (make(parameter, owner) for make in (parameter_copies._params_copy, parameter_copies.copied))
        assert type(ours) is type(theirs)
        for field in type(theirs)._all_slots_:
            one, other = getattr(theirs, field), getattr(ours, field)
            assert one == other, field
            assert (one is getattr(parameter, field)) == (other is getattr(parameter, field)), field
    asked: list[str] = []
    monkeypatch.setattr(
        Parameter, "__getattribute__", lambda self, name: asked.append(name) or object.__getattribute__(self, name)
    )
    parameter_copies.copied(parameters[0], owner)
    assert not asked
    parameter_copies._params_copy(parameters[0], owner)
    assert len(asked) > 20


def test_panel_gathers_what_a_page_begins_with_for_each_page() -> None:
    code = """
from bokeh.models import Plot; from panel.io.resources import Resources
from tilescope_dashboard.panel_patches import page_resources
gathered, real = [], Resources._collect_external_resources
Resources._collect_external_resources = lambda self, name: gathered.append(name) or real(self, name)
def gathers(bundle):
    gathered.clear()
    found = [bundle([Plot()], Resources(mode="server", root_url="/", path_versioner=str)) for _ in range(2)]
    return len(gathered), [str(part) for part in found[-1]]
theirs, ours = gathers(page_resources._panels_bundle), gathers(page_resources.bundle_resources)
assert ours[1] == theirs[1], ours
print(theirs[0], ours[0])
"""
    often, once = map(int, bare(code).split())
    assert often == 2 * once > 0


def test_a_page_follows_whether_the_server_is_busy() -> None:
    before = page_lifetime._following()
    page = pmui.Page()
    followed = [watcher for watcher in page_lifetime._following() if watcher not in before]
    for watcher in followed:
        pn.state.param.unwatch(watcher)
    assert followed, page
    with page_lifetime.not_busy():
        pmui.Page()
    assert page_lifetime._following() == before


def test_panel_raises_at_a_choice_that_is_gone() -> None:
    bar = pmui.Select(label="Kernel", options=["choose one", "softmax"])
    field = bar.get_root().data
    gone.restore()
    bar.options, bar.value = ["matmul", "softmax"], "softmax"
    with pytest.raises(ValueError, match="choose one not in list"):
        bar._process_events({"value": "choose one"})
    gone.install()
    field.value = "choose one"  # as the page's message does
    bar._process_events({"value": "choose one"})
    assert bar.value == field.value == "softmax"
    bar._process_events({"value": "matmul"})
    assert bar.value == "matmul"


def test_panel_raises_at_a_click_on_a_row_that_is_gone() -> None:
    clicked: list[int] = []
    shown = pn.widgets.Tabulator(pd.DataFrame({"name": ["a", "b"]}, index=[4, 5]))
    shown.on_click(lambda event: clicked.append(event.row))
    gone.restore()
    click = CellClickEvent(model=None, column="name", row=8)
    with pytest.raises(KeyError):
        shown._process_event(click)
    gone.install()
    shown._process_event(click)
    shown._process_event(CellClickEvent(model=None, column="name", row=1))
    assert clicked == [1]
    shown.param.update(pagination="remote", page_size=1, page=2)
    for row in (1, 0):
        shown._process_event(CellClickEvent(model=None, column="name", row=row))
    assert clicked == [1, 1]


def test_bokeh_looks_through_the_whole_page_for_what_was_put_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Model] = []
    refs = Row.properties_with_refs
    monkeypatch.setattr(Row, "properties_with_refs", lambda self: (looked_at.append(self), refs())[1])
    for corrected in (False, True):
        grown_pages.install() if corrected else grown_pages.restore()
        page, place = Document(), Row()
        page.add_root(Row(children=[place, *(Row() for _ in range(20))]))
        looked_at.clear()
        place.children = [inner := Row(children=[Div(name="there")])]
        assert (len(looked_at) > 20) != corrected
        # It is the same page in either case.
        assert page.models[inner.id] is inner and inner.document is page and page.get_model_by_name("there")
        assert len(list(page.models)) == 24
