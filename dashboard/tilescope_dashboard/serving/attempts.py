"""Rate limit of wrong logins, with waits that double.

Wrong answers are counted per address and in total, as an attacker may have many addresses. A person behind the same proxy or on the same
machine as an attacker waits too, for at most five minutes. Tokens are exempt, as they cannot be guessed (see ``Login.weigh``).
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tilescope_dashboard.session.access import parsed

#: Wrong answers from one address before the first wait.
FREE = 5
#: Seconds of the first wait, which doubles with each further wrong answer, and of the longest.
FIRST, LONGEST = 5.0, 300.0
#: Seconds after which an address's wrong answers are forgotten.
_FORGOTTEN = 3600.0
#: Wrong answers in total, within so many seconds, after which only addresses that have logged in before are heard.
MOST, WITHIN = 60, 300.0


@dataclass
class _Known:
    wrong: int = 0
    last: float = 0.0
    welcome: bool = False


class Attempts:
    """Wrong answers given to one server. ``now`` is a clock in seconds; tests replace it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, _Known] = {}
        self._recent: deque[float] = deque(maxlen=MOST)

    def wait(self, address: str) -> int:
        """Whole seconds until an answer from the address is checked; 0 is now."""
        known, now = self._known.get(_network(address), _Known()), self._now()
        pause = min(FIRST * 2.0 ** min(known.wrong - FREE, 20), LONGEST) if known.wrong >= FREE else 0.0
        until = known.last + pause
        if not known.welcome and len(self._recent) == MOST:
            until = max(until, self._recent[0] + WITHIN)
        return max(0, math.ceil(until - now))

    def wrong(self, address: str) -> None:
        now = self._now()
        self._known = {name: one for name, one in self._known.items() if one.welcome or now - one.last < _FORGOTTEN}
        known = self._known.setdefault(_network(address), _Known())
        if now - known.last >= _FORGOTTEN:
            known.wrong = 0
        known.wrong, known.last = known.wrong + 1, now
        self._recent.append(now)

    def right(self, address: str) -> None:
        """Record a login from the address, and forget its wrong answers."""
        self._known[_network(address)] = _Known(welcome=True)


def _network(address: str) -> str:
    """The address, or with IPv6 its /64 network: what one person controls."""
    found = parsed(address)
    if found is None:
        return address
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))
