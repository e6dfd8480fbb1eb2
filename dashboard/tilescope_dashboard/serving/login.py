"""Login of the whole server: one token or password, one cookie. Bokeh checks it before every page and websocket. Wrong logins are rate
limited, with waits that double.

Wrong answers are counted per address and in total, as an attacker may have many addresses. A person behind the same proxy or on the same
machine as an attacker waits too, for at most five minutes. Tokens are exempt, as they cannot be guessed (see ``Login.weigh``).
"""

from __future__ import annotations

import ipaddress
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jinja2
from bokeh.server.auth_provider import AuthProvider
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

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


_TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("tilescope_dashboard"), autoescape=True)


class Login(AuthProvider):
    """Gives whoever knows ``secret`` a random cookie, valid until the server ends.

    ``name`` is the cookie's name. Browsers send a host's cookies to all its ports, so each server needs its own.
    ``chosen`` says that a person chose the secret, so it may be guessable.
    """

    def __init__(self, secret: str, name: str, home: str = "/app", *, chosen: bool = False) -> None:
        self.name, self.home, self.chosen, self.attempts = name, home, chosen, Attempts()
        self._secret, self._cookie = secret, secrets.token_urlsafe(32)
        super().__init__()

    def known(self, request: RequestHandler) -> str | None:
        """The user of a request, the same for everyone who has logged in; None for others."""
        return "person" if secrets.compare_digest(request.get_cookie(self.name, "") or "", self._cookie) else None

    def opens(self, given: str) -> bool:
        """Whether this is the secret."""
        return secrets.compare_digest(given.encode(errors="replace"), self._secret.encode())

    def weigh(self, given: str, address: str) -> int | None:
        """Check an answer from an address. Returns None if it is right, else the seconds until the next one is checked.

        A token is always checked: nobody guesses 192 bits, and wrong answers of others must not lock its owner out.
        A password is not checked before its wait is over.
        """
        wait = self.attempts.wait(address)
        if self.opens(given) and not (wait and self.chosen):
            self.attempts.right(address)
            return None
        if not wait:
            self.attempts.wrong(address)
        return wait

    def admit(self, answer: RequestHandler) -> None:
        """Set the cookie: hidden from scripts, not sent by other sites' pages, and over TLS only where there is TLS."""
        answer.set_cookie(
            self.name, self._cookie, httponly=True, samesite="Strict", path="/", secure=encrypted(answer.request)
        )

    @property
    def get_user(self) -> Callable[[RequestHandler], str | None]:
        """Bokeh's hook."""
        return self.known

    @property
    def login_url(self) -> str:
        """Where requests without a login are redirected."""
        return "/login"

    @property
    def login_handler(self) -> type[RequestHandler]:
        return type("BoundLoginPage", (LoginPage,), {"login": self})

    get_user_async = get_login_url = logout_url = logout_handler = None


class LoginPage(RequestHandler):
    """Asks for the secret, or takes it from the address that ``tilescope serve`` printed."""

    login: Login

    def set_default_headers(self) -> None:
        """Tornado's hook: for every answer, redirects as well."""
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def get(self) -> None:
        """Show the form, or check ``?token=`` of the address."""
        given = self._given("token", self.request.query_arguments)
        if given:
            self._answer(given)
        else:
            self._ask("")

    def post(self) -> None:
        """Check the form's answer."""
        self._answer(self._given("secret", self.request.body_arguments))

    @staticmethod
    def _given(name: str, arguments: dict[str, list[bytes]]) -> str:
        # Not with Tornado's ``get_argument``, which logs what it cannot decode.
        return (arguments.get(name) or [b""])[-1].decode(errors="replace").strip()

    def _answer(self, given: str) -> None:
        wait = self.login.weigh(given, str(self.request.remote_ip))
        if wait is None:
            self.login.admit(self)
            self.redirect(local(self._given("next", self.request.query_arguments), self.login.home))
        elif wait:
            self.set_status(429)
            self.set_header("Retry-After", str(wait))
            self._ask(f"Too many wrong answers. Try again in {wait} s.")
        else:
            self.set_status(403)
            self._ask(f"Wrong {'password' if self.login.chosen else 'token'}.")

    def _ask(self, said: str) -> None:
        self.finish(_TEMPLATES.get_template("login.html").render(said=said, chosen=self.login.chosen))


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def encrypted(request: HTTPServerRequest) -> bool:
    """Whether the browser uses TLS, to this server or to a proxy before it. A false header harms only its sender."""
    told = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip().lower()
    return "https" in (request.protocol, told) or "proto=https" in request.headers.get("Forwarded", "").lower()


def local(address: str, otherwise: str) -> str:
    """The address if it is a path on this server, else ``otherwise``: a link to the login must not redirect elsewhere."""
    parts: Any = urlsplit(address)
    # Browsers read a backslash as a slash, and skip tabs and line ends.
    inside = address.startswith("/") and not re.match(r"/[/\\]|.*[\x00-\x1f\x7f]", address, re.DOTALL)
    return address if inside and not parts.scheme and not parts.netloc else otherwise
