"""Finds models added to a page by following the changed value alone.

Bokeh 3.9.2 walks all models of a document from its roots whenever a property that holds models changes: once for each view, table and
figure whose style sheets Material UI sends back. A page has thousands of models, and the walk was a quarter of the server's time
after a click.
"""

from __future__ import annotations

from typing import Any

from bokeh.document.events import DocumentPatchedEvent
from bokeh.document.models import DocumentModelManager
from bokeh.model import Model
from bokeh.model.util import collect_filtered_models, visit_value_and_its_immediate_references

_bokehs_trigger, _bokehs_recompute = Model.trigger, DocumentModelManager.recompute


def install() -> None:
    Model.trigger, DocumentModelManager.recompute = trigger, recompute


def trigger(  # noqa: PLR0917 - as Bokeh calls it
    self: Model, attr: str, old: Any, new: Any, hint: DocumentPatchedEvent | None = None, setter: Any = None
) -> None:
    """``Model.trigger``, which also records the models that the new value adds."""
    if hint is None and self._document is not None:
        models, before, after = self._document.models, _referred(old), _referred(new)
        if before.keys() - after.keys():  # only a full walk tells whether anything else refers to them
            models._looked_through = None
        else:
            models.__dict__.setdefault("_come", []).extend(after[key] for key in after.keys() - before.keys())
    _bokehs_trigger(self, attr, old, new, hint=hint, setter=setter)


def recompute(self: DocumentModelManager) -> None:
    """``DocumentModelManager.recompute``. Where no model was removed it visits the added ones alone."""
    document = self._document()
    if document is None:
        return
    roots, come = tuple(document.roots), self.__dict__.get("_come", [])
    if self.__dict__.get("_looked_through") != roots:
        _bokehs_recompute(self)
        self._looked_through = roots
    else:
        for model in collect_filtered_models(lambda model: model.id in self._models, *come):
            self._models[model.id] = model
            if model.name is not None:
                self._models_by_name.add_value(model.name, model)
            model._attach_document(document)
            self._new_models.add(model)
    self._come = []


def _referred(value: Any) -> dict[str, Model]:
    found: dict[str, Model] = {}
    visit_value_and_its_immediate_references(value, lambda model: found.setdefault(model.id, model))
    return found
