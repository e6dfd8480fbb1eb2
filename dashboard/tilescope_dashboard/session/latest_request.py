"""Requests that come again and again while somebody types, of which only the newest is carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

#: How long somebody has to leave it at that, in seconds, before the work begins.
PAUSE = 0.3


class LatestRequest:
    """Cancels the work of an older request, and waits until it has ended, before it begins that of the newest."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._task: asyncio.Future[Any] | None = None
        self._closed = False

    async def of(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        """Return what ``work`` gives; None where a newer request came meanwhile, or the page has gone."""
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
        """The page has gone: what is under way is ended, and nothing is begun any more."""
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Nobody asks any more: what is under way is ended."""
        if self._task is not None:
            self._task.cancel()

    async def _after_a_pause(self, work: Callable[[], Awaitable[Result]]) -> Result:
        await asyncio.sleep(PAUSE)
        async with self._turn:
            return await work()
