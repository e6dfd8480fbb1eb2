"""Copies parameters without computing a default for each of their fields.

A component gets its own copy of a class's parameter object when that is first accessed, and Panel 1.9 accesses all of them when it makes
a model. Param 2.4.2 copies through a Python method that runs twice per field: a fourteenth of the server's time for a page.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from param import _utils, parameterized

_params_copy = parameterized._instantiate_param_obj


def copied(parameter: Any, owner: Any = None) -> Any:
    """``_instantiate_param_obj`` for a class's parameter, whose fields are all set."""
    kind: Any = type(parameter)
    made = kind.__new__(kind)
    get, put = object.__getattribute__, object.__setattr__
    for field in kind._all_slots_:
        value = get(parameter, field)
        put(made, field, copy.copy(value) if field != "default" and _is_container(type(value)) else value)  # type: ignore[arg-type]
    put(made, "owner", owner)
    put(made, "watchers", {})
    return made


@functools.cache
def _is_container(kind: Any) -> bool:
    return issubclass(kind, _utils.MUTABLE_TYPES)


def install() -> None:
    """Install the patch in this process."""
    parameterized._instantiate_param_obj = copied
