"""Requests repeated while somebody types: only the newest is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Seconds without a newer request before the work begins.
PAUSE = 0.3


class LatestRequest:
    """Cancels the work of an older request, and waits for its end, before it begins the newest."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._task: asyncio.Future[Any] | None = None
        self._closed = False

    async def of(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        """Return the result of ``work``; None where a newer request came meanwhile or the page has closed."""
        self.drop()
        if self._closed:
            return None
        task = self._task = asyncio.ensure_future(self._after_a_pause(work))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        return None if task.cancelled() else task.result()

    def close(self) -> None:
        """Cancel the work under way, and begin no more: the page has closed."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Cancel the work under way."""
        if self._task is not None:
            self._task.cancel()

    async def _after_a_pause(self, work: Callable[[], Awaitable[Result]]) -> Result:
        await asyncio.sleep(PAUSE)
        async with self._turn:
            return await work()
