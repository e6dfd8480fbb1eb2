"""Caches the property defaults of Bokeh's model classes.

Bokeh 3.9 computes the default of every property of every model when it makes the model and again when it sends it: two fifths of the
server's time for a page. Immutable defaults are the same for all models of a class, and defaults are not sent at all.
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
_bokehs_values, _bokehs_theme = HasProps.query_properties_with_values, HasProps.themed_values
_unstable: dict[_Of, bool] = {}
_defaults: dict[_Of, Any] = {}
#: The properties of a class, in order, each with whether it must be read even if it was not set.
_properties: dict[type[HasProps], list[tuple[str, PropertyDescriptor[Any], bool]]] = {}


def themed_values(model: HasProps) -> dict[str, Any] | None:
    """``HasProps.themed_values``, without a failing attribute lookup for models without a theme."""
    found: dict[str, Any] | None = model.__dict__.get("__themed_values__")
    return found


def has_unstable_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
    """Whether the default is mutable or computed: ``PropertyDescriptor.has_unstable_default``, cached by class."""
    key = descriptor, type(model)
    if key not in _unstable:
        _unstable[key] = _bokehs_unstable(descriptor, model)
    return _unstable[key]


def instance_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> Any:
    """``PropertyDescriptor.instance_default``, cached by class unless it is mutable or a theme sets it."""
    key, themed = (descriptor, type(model)), themed_values(model)
    if has_unstable_default(descriptor, model) or (themed and descriptor.name in themed):
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
    """``HasProps.query_properties_with_values``, without reading the unset properties whose defaults are left out.

    Raises UnsetValueError for a required property that was not set.
    """
    if include_defaults or include_undefined:
        return _bokehs_values(model, query, include_defaults=include_defaults, include_undefined=include_undefined)
    themed = themed_values(model) or {}
    given = {*model._property_values, *model._unstable_default_values, *themed}
    values = {}
    for name, descriptor, asked in _of_class(model):
        if (name in given or asked) and query(descriptor):
            value = descriptor.get_value(model)
            untouched = isinstance(value, PropertyValueContainer) and name in model._unstable_default_values
            if name in given and (name in themed or not untouched):
                values[name] = value
    return values


def _of_class(model: HasProps) -> list[tuple[str, PropertyDescriptor[Any], bool]]:
    kind = type(model)
    if kind not in _properties:
        descriptors = {name: model.lookup(name) for name in model.properties(_with_props=True)}
        # A required property has no default, and reading it says so.
        _properties[kind] = [
            (name, found, isinstance(found, AliasPropertyDescriptor) or found.class_default(kind) is Undefined)
            for name, found in descriptors.items()
        ]
    return _properties[kind]


def install() -> None:
    _put(themed_values, query_properties_with_values, has_unstable_default, instance_default)


def restore() -> None:
    """Put back what ``install`` replaced."""
    _put(_bokehs_theme, _bokehs_values, _bokehs_unstable, _bokehs_default)


def _put(themed: Any, values: Any, unstable: Any, default: Any) -> None:
    HasProps.themed_values, HasProps.query_properties_with_values = themed, values  # type: ignore[method-assign]
    PropertyDescriptor.has_unstable_default, PropertyDescriptor.instance_default = unstable, default
