"""A finding in words, as the page, the report and a notebook say it."""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    """A title and a text that explains it. Neither is escaped."""

    title: str
    text: str = ""

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.title.removesuffix('.')}. {self.text}".rstrip()
