"""A headline, for the page, the report and notebooks."""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    """A title and an explaining text. Neither is escaped."""

    title: str
    text: str = ""

    @property
    def line(self) -> str:
        """Both in one line."""
        return f"{self.title.removesuffix('.')}. {self.text}".rstrip()
