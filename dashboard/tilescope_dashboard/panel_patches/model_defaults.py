"""Caches the property defaults of Bokeh's model classes.

Bokeh 3.9 computes the default of every property of every model when it makes the model and again when it sends it: a third of the
server's time for a page. Immutable defaults are the same for all models of a class, defaults are not sent at all, and an empty
container can be made when it is first read. Other mutable defaults are left to Bokeh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bokeh.core.has_props import HasProps
from bokeh.core.property.descriptors import AliasPropertyDescriptor, PropertyDescriptor
from bokeh.core.property.singletons import Intrinsic, Undefined
from bokeh.core.property.wrappers import PropertyValueContainer

_Of = tuple[PropertyDescriptor[Any], type[HasProps]]


class _Properties(NamedTuple):
    """Properties of a class, in order.

    ``every`` has each with its name and whether it must be read even if it was not set; ``own`` those that each model has its own
    value of from the start.
    """

    every: list[tuple[str, PropertyDescriptor[Any], bool]]
    own: list[PropertyDescriptor[Any]]


_bokehs_unstable, _bokehs_default = PropertyDescriptor.has_unstable_default, PropertyDescriptor.instance_default
_bokehs_values, _bokehs_init, _bokehs_theme = (
    HasProps.query_properties_with_values, HasProps.__init__, HasProps.themed_values
)  # fmt: skip
_unstable: dict[_Of, bool] = {}
_defaults: dict[_Of, Any] = {}
#: The class of a default that is an empty container.
_empty: dict[_Of, type[PropertyValueContainer] | None] = {}
_properties: dict[type[HasProps], _Properties] = {}


def init(model: HasProps, **properties: Any) -> None:
    """``HasProps.__init__``, without making empty containers before they are read."""
    super(HasProps, model).__init__()
    model._property_values, model._unstable_default_values, model._unstable_themed_values = {}, {}, {}
    for name, value in properties.items():
        if value is not Undefined and value is not Intrinsic:
            setattr(model, name, value)
    for descriptor in _of_class(model).own:
        if descriptor.name not in properties:
            descriptor._get(model)
    model._initialized = True


def themed_values(model: HasProps) -> dict[str, Any] | None:
    """``HasProps.themed_values``, without a failing attribute lookup for models without a theme."""
    found: dict[str, Any] | None = vars(model).get("__themed_values__")
    return found


def has_unstable_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
    """Whether the default is mutable or computed: ``PropertyDescriptor.has_unstable_default``, cached by class."""
    key = descriptor, type(model)
    if key not in _unstable:
        _unstable[key] = _bokehs_unstable(descriptor, model)
    return _unstable[key]


def instance_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> Any:
    """The value of a property that was not set: ``PropertyDescriptor.instance_default``, cached unless a theme sets it."""
    key, themed = (descriptor, type(model)), themed_values(model)
    if themed and descriptor.name in themed:
        return _bokehs_default(descriptor, model)
    if has_unstable_default(descriptor, model):
        empty = _empty_default(descriptor, model)
        return empty() if empty else _bokehs_default(descriptor, model)
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
    for name, descriptor, asked in _of_class(model).every:
        if (name in given or asked) and query(descriptor):
            value = descriptor.get_value(model)
            untouched = isinstance(value, PropertyValueContainer) and name in model._unstable_default_values
            if name in given and (name in themed or not untouched):
                values[name] = value
    return values


def _of_class(model: HasProps) -> _Properties:
    kind = type(model)
    if kind not in _properties:
        descriptors = {name: model.lookup(name) for name in model.properties(_with_props=True)}
        own = [found for found in descriptors.values() if _has_its_own(found, model)]
        asked = [
            (name, found, found in own or isinstance(found, AliasPropertyDescriptor) or _is_missed(found, kind))
            for name, found in descriptors.items()
        ]
        _properties[kind] = _Properties(asked, own)
    return _properties[kind]


def _has_its_own(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
    """Whether each model needs its own default from the start. An alias has the value of another property."""
    alias = isinstance(descriptor, AliasPropertyDescriptor)
    return not alias and has_unstable_default(descriptor, model) and _empty_default(descriptor, model) is None


def _empty_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> type[PropertyValueContainer] | None:
    """The class of a mutable default that is an empty container, else None."""
    key = descriptor, type(model)
    if key not in _empty:
        found = descriptor.class_default(type(model))
        _empty[key] = type(found) if isinstance(found, PropertyValueContainer) and not found else None
    return _empty[key]


def _is_missed(descriptor: PropertyDescriptor[Any], kind: type[HasProps]) -> bool:
    """Whether the property is required: it has no default."""
    return descriptor.class_default(kind) is Undefined


def install() -> None:
    _put(init, themed_values, query_properties_with_values, has_unstable_default, instance_default)


def restore() -> None:
    """Put back what ``install`` replaced."""
    _put(_bokehs_init, _bokehs_theme, _bokehs_values, _bokehs_unstable, _bokehs_default)


def _put(made: Any, themed: Any, values: Any, unstable: Any, default: Any) -> None:
    HasProps.__init__, HasProps.themed_values = made, themed  # type: ignore[method-assign]
    HasProps.query_properties_with_values = values  # type: ignore[method-assign]
    PropertyDescriptor.has_unstable_default, PropertyDescriptor.instance_default = unstable, default
