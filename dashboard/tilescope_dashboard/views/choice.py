"""A selector whose options change with the run and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import panel_material_ui as pmui


class Choice:
    """``widget`` and its choice. A person's choice is kept as long as the options include it.

    ``chosen`` is called when a person chose, not while the options are changed: others may not have theirs yet.
    """

    def __init__(self, label: str, width: int, chosen: Callable[[], Any]) -> None:
        self.widget = pmui.Select(label=label, options={}, size="small", width=width, visible=False)
        self._chosen, self._offering, self._picked = chosen, False, False
        self.widget.param.watch(self._pick, "value")

    @property
    def value(self) -> Any:
        """The chosen option, None where there is none."""
        return self.widget.value

    def offer(self, options: Mapping[str, Any] | Sequence[str], first: Any, *, anew: bool = False) -> None:
        """Put these options, labelled if they are a mapping, in place of the others; ``first`` is the one to start with, which
        ``anew`` puts in place of what a person picked, too.
        """
        values = options.values() if isinstance(options, Mapping) else options
        self._picked = self._picked and not anew
        value = self.value if self._picked and self.value in values else first
        self._offering = True
        self.widget.param.update(options=options, value=value, visible=bool(options))
        self._offering = False

    def _pick(self, _: Any) -> None:
        if not self._offering:
            self._picked = True
            self._chosen()
