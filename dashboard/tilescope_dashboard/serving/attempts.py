"""How often somebody may guess the secret of the login: no more than a few times, then ever more seldom.

Guesses are counted by the address that they come from, and all together, for an attacker may have many addresses. Whoever
cannot be told apart from an attacker, as behind the same proxy or on the same machine, waits with them; for at most five
minutes, and not with a token, which is right or not and cannot be guessed: see ``Login.opens``.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tilescope_dashboard.session.access import parsed

#: Wrong answers that cost nothing, from one address.
FREE = 5
#: Seconds: the first wait, which doubles with each wrong answer after it, and the longest.
FIRST, LONGEST = 5.0, 300.0
#: Seconds after which an address' wrong answers are forgotten.
_FORGOTTEN = 3600.0
#: Wrong answers of all addresses together, within as many seconds, after which nobody is heard who has not logged in before.
MOST, WITHIN = 60, 300.0


@dataclass
class _Known:
    wrong: int = 0
    last: float = 0.0
    welcome: bool = False


class Attempts:
    """Wrong answers of one server. ``now`` is a clock in seconds; tests give their own."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, _Known] = {}
        self._recent: deque[float] = deque(maxlen=MOST)

    def wait(self, address: str) -> int:
        """Whole seconds until an answer from the address is heard; 0 is now."""
        known, now = self._known.get(_network(address), _Known()), self._now()
        pause = min(FIRST * 2.0 ** min(known.wrong - FREE, 20), LONGEST) if known.wrong >= FREE else 0.0
        until = known.last + pause
        if not known.welcome and len(self._recent) == MOST:
            until = max(until, self._recent[0] + WITHIN)
        return max(0, math.ceil(until - now))

    def wrong(self, address: str) -> None:
        """Note a wrong answer that was heard."""
        now = self._now()
        self._known = {name: one for name, one in self._known.items() if one.welcome or now - one.last < _FORGOTTEN}
        known = self._known.setdefault(_network(address), _Known())
        if now - known.last >= _FORGOTTEN:
            known.wrong = 0
        known.wrong, known.last = known.wrong + 1, now
        self._recent.append(now)

    def right(self, address: str) -> None:
        """Note that somebody at the address has logged in: what was wrong before was a slip."""
        self._known[_network(address)] = _Known(welcome=True)


def _network(address: str) -> str:
    """What one person has: an address, or with IPv6 the network of 64 bits that it is in."""
    found = parsed(address)
    if found is None:
        return address
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))
