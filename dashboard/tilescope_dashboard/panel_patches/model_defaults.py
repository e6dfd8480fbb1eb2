"""Defaults of Bokeh's models, looked up once a class instead of once a model.

Bokeh 3.9 asks for the default of every property of every model, when it makes it and when it sends it: a third of the
server's time for a page. But for values that may change, which stay as they are, it is the same for all models of a class,
and what is not sent need not be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bokeh.core.has_props import HasProps
from bokeh.core.property.descriptors import AliasPropertyDescriptor, PropertyDescriptor
from bokeh.core.property.singletons import Undefined
from bokeh.core.property.wrappers import PropertyValueContainer

_Of = tuple[PropertyDescriptor[Any], type[HasProps]]

_bokehs_unstable, _bokehs_default = PropertyDescriptor.has_unstable_default, PropertyDescriptor.instance_default
_bokehs_values = HasProps.query_properties_with_values
_unstable: dict[_Of, bool] = {}
_defaults: dict[_Of, Any] = {}
#: Of each class, in their order: the properties, and whether Bokeh's asking for one that was not set is more than asking.
_properties: dict[type[HasProps], list[tuple[str, PropertyDescriptor[Any], bool]]] = {}


def has_unstable_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
    """Whether the default may change or be changed: ``PropertyDescriptor.has_unstable_default``, which goes by the class."""
    key = descriptor, type(model)
    if key not in _unstable:
        _unstable[key] = _bokehs_unstable(descriptor, model)
    return _unstable[key]


def instance_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> Any:
    """The value of a property that was not set: ``PropertyDescriptor.instance_default``. A theme's is the model's own."""
    key, themed = (descriptor, type(model)), model.themed_values()
    if (themed and descriptor.name in themed) or has_unstable_default(descriptor, model):
        return _bokehs_default(descriptor, model)
    if key not in _defaults:
        _defaults[key] = _bokehs_default(descriptor, model)
    return _defaults[key]


def query_properties_with_values(
    model: HasProps,
    query: Callable[[PropertyDescriptor[Any]], bool],
    *,
    include_defaults: bool = True,
    include_undefined: bool = False,
) -> dict[str, Any]:
    """The values of the properties that ``query`` is true of: ``HasProps.query_properties_with_values``, which asks for those
    that were not set even where it leaves out defaults. Raises UnsetValueError where one must be set and was not."""
    if include_defaults or include_undefined:
        return _bokehs_values(model, query, include_defaults=include_defaults, include_undefined=include_undefined)
    themed = model.themed_values() or {}
    given = {*model._property_values, *model._unstable_default_values, *themed}
    values = {}
    for name, descriptor, asked in _asked_for(model):
        if (name in given or asked) and query(descriptor):
            value = descriptor.get_value(model)
            untouched = isinstance(value, PropertyValueContainer) and name in model._unstable_default_values
            if name in given and (name in themed or not untouched):
                values[name] = value
    return values


def _asked_for(model: HasProps) -> list[tuple[str, PropertyDescriptor[Any], bool]]:
    kind = type(model)
    if kind not in _properties:
        descriptors = {name: model.lookup(name) for name in model.properties(_with_props=True)}
        _properties[kind] = [
            (name, found, isinstance(found, AliasPropertyDescriptor) or _kept_or_missed(found, model))
            for name, found in descriptors.items()
        ]
    return _properties[kind]


def _kept_or_missed(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
    """Whether asking makes the model keep a value of its own, or fails because one must be set."""
    return has_unstable_default(descriptor, model) or descriptor.class_default(type(model)) is Undefined


def remember() -> None:
    """From here on in this process."""
    HasProps.query_properties_with_values = query_properties_with_values  # type: ignore[method-assign]
    PropertyDescriptor.has_unstable_default = has_unstable_default  # type: ignore[method-assign]
    PropertyDescriptor.instance_default = instance_default  # type: ignore[method-assign]
