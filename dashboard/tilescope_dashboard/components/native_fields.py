"""HTML form fields in one component. Their script is ``native_fields.js``.

Ten fields of Material UI are ten roots of React: a form of them took the browser two thirds of the time until it stood there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import param

from tilescope_dashboard.components.script import ScriptComponent

#: Most characters of a text from a page.
_LONGEST = 4096


class Field(param.Parameterized):
    """Base class of fields. ``told`` takes a value from a page, which may be anything, and returns whether it is valid."""

    label = param.String()
    visible = param.Boolean(default=True)
    disabled = param.Boolean(default=False)
    kind = ""

    def described(self) -> dict[str, Any]:
        """The field as the browser shows it."""
        shared = {"kind": self.kind, "label": self.label, "visible": self.visible, "disabled": self.disabled}
        return shared | self._described()

    def _described(self) -> dict[str, Any]:
        return {}

    def told(self, value: Any) -> bool:
        return False


class Boxes(Field):
    """A checkbox for each of ``options``: values, or values by label."""

    options = param.ClassSelector(class_=(list, dict), default=[])
    value = param.List()
    kind = "boxes"

    def _described(self) -> dict[str, Any]:
        return {"options": _pairs(self.options), "value": self.value}

    def told(self, value: Any) -> bool:
        known = [one for _, one in _pairs(self.options)]
        good = isinstance(value, list) and all(one in known for one in value)
        if good:
            self.value = [one for one in known if one in value]
        return good


class Box(Field):
    """One checkbox."""

    value = param.Boolean(default=False)
    kind = "box"

    def _described(self) -> dict[str, Any]:
        return {"value": self.value}

    def told(self, value: Any) -> bool:
        if isinstance(value, bool):
            self.value = value
        return isinstance(value, bool)


class Text(Field):
    """A line of text: ``value_input`` as it is typed, ``value`` once that is done. ``helper_text`` stands below it, in the colour of a
    warning where it is in an ``error_state``."""

    value = param.String()
    value_input = param.String()
    placeholder = param.String()
    error_state = param.Boolean(default=False)
    helper_text = param.String()
    kind = "text"

    def _described(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "placeholder": self.placeholder,
            "error": self.error_state,
            "helper": self.helper_text,
        }

    def told(self, value: Any) -> bool:
        if not (isinstance(value, dict) and isinstance(value.get("text"), str) and len(value["text"]) <= _LONGEST):
            return False
        self.value_input = value["text"]
        if value.get("done") is True:
            self.value = value["text"]
        return True


class Choice(Field):
    """A choice of ``options``, values by label. Those in ``disabled_options`` cannot be chosen."""

    options = param.Dict(default={})
    disabled_options = param.List()
    value = param.String()
    kind = "choice"

    def _described(self) -> dict[str, Any]:
        return {"options": _pairs(self.options), "refused": self.disabled_options, "value": self.value}

    def told(self, value: Any) -> bool:
        good = value in self.options.values() and value not in self.disabled_options
        if good:
            self.value = value
        return good


class Note(Field):
    """Markup between fields, which must be escaped already."""

    object = param.String()
    kind = "note"

    def _described(self) -> dict[str, Any]:
        return {"markup": self.object}


class NativeFields(ScriptComponent):
    """The fields, one below the other. Values from a page are checked, as anyone may send them."""

    shown = param.List(
        item_type=dict, doc="The fields as they are described, each with the turn of the page's last word on it."
    )

    def __init__(self, fields: Sequence[Field], **settings: Any) -> None:
        super().__init__(**settings)
        self._fields, self._turns = tuple(fields), [0] * len(fields)
        for field in fields:
            field.param.watch(self._describe, [name for name in field.param if name != "name"])
        self._describe()

    def _describe(self, *_: param.parameterized.Event) -> None:
        turned = zip(self._fields, self._turns, strict=True)
        self.shown = [{**field.described(), "turn": turn} for field, turn in turned]

    def _handle_msg(self, said: Any) -> None:
        at, turn = (said.get(name) for name in ("at", "turn")) if isinstance(said, dict) else (None, None)
        if type(at) is not int or type(turn) is not int or not 0 <= at < len(self._fields):
            return
        field = self._fields[at]
        self._turns[at] = turn
        if field.disabled or not field.told(said.get("value")):
            self._describe()  # send the page the valid value again


def _pairs(options: Iterable[Any] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(options.items()) if isinstance(options, Mapping) else [(str(one), one) for one in options]
