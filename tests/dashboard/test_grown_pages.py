"""A page of whose models only those that came are looked at knows the same ones as one that is looked through."""

import pytest
from bokeh.document import Document
from bokeh.document.models import DocumentModelManager
from bokeh.model import Model
from bokeh.model.util import collect_models
from bokeh.models import Div, Row
from tilescope_dashboard.panel_patches import grown_pages


def test_a_page_that_grows_knows_what_one_that_was_looked_through_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "trigger", grown_pages.trigger)
    monkeypatch.setattr(DocumentModelManager, "recompute", grown_pages.recompute)
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
