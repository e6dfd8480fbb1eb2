"""Defaults of Bokeh's models, looked up once a class instead of once a model.

Bokeh 3.9 asks for the default of every property of every model, when it makes it and when it sends it: a quarter of the
server's time for a page. But for values that may change, which stay as they are, it is the same for all models of a class.
"""

from __future__ import annotations

from typing import Any

from bokeh.core.has_props import HasProps
from bokeh.core.property.descriptors import PropertyDescriptor

_Of = tuple[PropertyDescriptor[Any], type[HasProps]]

_bokehs_unstable, _bokehs_default = PropertyDescriptor.has_unstable_default, PropertyDescriptor.instance_default
_unstable: dict[_Of, bool] = {}
_defaults: dict[_Of, Any] = {}


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


def remember() -> None:
    """From here on in this process."""
    PropertyDescriptor.has_unstable_default = has_unstable_default  # type: ignore[method-assign]
    PropertyDescriptor.instance_default = instance_default  # type: ignore[method-assign]
