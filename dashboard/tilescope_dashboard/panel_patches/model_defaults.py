"""Defaults of Bokeh's models, looked up once a class instead of once a model.

Bokeh 3.9 asks for the default of every property of every model, when it makes it and when it sends it: a third of the
server's time for a page. But for values that may change, which stay as they are, it is the same for all models of a class,
and what is not sent need not be asked for. An empty list is made where somebody asks for it.
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
    """Of a class, in their order: the properties with whether Bokeh's asking for one that was not set is more than asking, and
    those of which a model has a value of its own from the start.
    """

    every: list[tuple[str, PropertyDescriptor[Any], bool]]
    own: list[PropertyDescriptor[Any]]


_bokehs_unstable, _bokehs_default = PropertyDescriptor.has_unstable_default, PropertyDescriptor.instance_default
_bokehs_values, _bokehs_init, _bokehs_theme = (
    HasProps.query_properties_with_values, HasProps.__init__, HasProps.themed_values
)  # fmt: skip
_unstable: dict[_Of, bool] = {}
_defaults: dict[_Of, Any] = {}
#: What makes the default where that is an empty list, or another empty container.
_empty: dict[_Of, type[PropertyValueContainer] | None] = {}
_properties: dict[type[HasProps], _Properties] = {}


def init(model: HasProps, **properties: Any) -> None:
    """``HasProps.__init__``, but for empty containers, which are made once they are asked for."""
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
    """``HasProps.themed_values``, without the search that Bokeh makes for what a model does not have."""
    found: dict[str, Any] | None = vars(model).get("__themed_values__")
    return found


def has_unstable_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
    """Whether the default may change or be changed: ``PropertyDescriptor.has_unstable_default``, which goes by the class."""
    key = descriptor, type(model)
    if key not in _unstable:
        _unstable[key] = _bokehs_unstable(descriptor, model)
    return _unstable[key]


def instance_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> Any:
    """The value of a property that was not set: ``PropertyDescriptor.instance_default``. A theme's is the model's own."""
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
    """The values of the properties that ``query`` is true of: ``HasProps.query_properties_with_values``, which asks for those
    that were not set even where it leaves out defaults. Raises UnsetValueError where one must be set and was not."""
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
    """Whether every model of the class has a value of its own that cannot be made later. An alias has that of another."""
    alias = isinstance(descriptor, AliasPropertyDescriptor)
    return not alias and has_unstable_default(descriptor, model) and _empty_default(descriptor, model) is None


def _empty_default(descriptor: PropertyDescriptor[Any], model: HasProps) -> type[PropertyValueContainer] | None:
    """The class of a default that may change and is an empty container; None where it is anything else."""
    key = descriptor, type(model)
    if key not in _empty:
        found = descriptor.class_default(type(model))
        _empty[key] = type(found) if isinstance(found, PropertyValueContainer) and not found else None  # type: ignore[truthy-bool]
    return _empty[key]


def _is_missed(descriptor: PropertyDescriptor[Any], kind: type[HasProps]) -> bool:
    """Whether asking fails because it must be set."""
    return descriptor.class_default(kind) is Undefined


def remember() -> None:
    """From here on in this process."""
    HasProps.__init__ = init  # type: ignore[method-assign, assignment]
    HasProps.themed_values = themed_values  # type: ignore[method-assign]
    HasProps.query_properties_with_values = query_properties_with_values  # type: ignore[method-assign]
    PropertyDescriptor.has_unstable_default = has_unstable_default  # type: ignore[method-assign]
    PropertyDescriptor.instance_default = instance_default  # type: ignore[method-assign]
