"""Records of what a thread does, which no other thread's are in: autograd computes gradients in threads of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Notes(dict[int, list[Item]], Generic[Item]):
    """The records under way, by thread. It is true while there are any.

    Every launch asks whether it is, which takes 14 ns of a ``dict`` and 86 of a class with a ``__bool__`` (AMD EPYC, 2026-11-28,
    Python 3.11).
    """

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[Item]]:
        """Take a record of this thread. Yields the list it is appended to. What is noted within another record is in both."""
        thread = threading.get_ident()
        outer = self.get(thread)
        notes = self[thread] = []
        try:
            yield notes
        finally:
            if outer is None:
                del self[thread]
            else:
                outer += notes
                self[thread] = outer

    def here(self) -> list[Item] | None:
        """This thread's record. None where none is under way."""
        return self.get(threading.get_ident())
