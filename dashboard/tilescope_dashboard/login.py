"""A login for the whole server: one token or password, one cookie. Bokeh asks it before every page and websocket."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import jinja2
from bokeh.server.auth_provider import AuthProvider
from tornado.web import RequestHandler

_TEMPLATES = jinja2.Environment(loader=jinja2.PackageLoader("tilescope_dashboard"), autoescape=True)
#: Seconds that a wrong answer takes: nobody tries a million passwords.
_PAUSE = 1.0


class Login(AuthProvider):
    """Whoever gives ``secret`` gets a cookie that holds until the server ends; the cookie does not tell the secret.

    ``name`` is the cookie's: browsers send a host's cookies to all its ports, so each server has a name of its own.
    """

    def __init__(self, secret: str, name: str, home: str = "/app") -> None:
        self.name, self.home = name, home
        self._secret, self._cookie = secret, secrets.token_urlsafe(32)
        super().__init__()

    def known(self, request: RequestHandler) -> str | None:
        """Who asks: everyone who has logged in is the same person. None is nobody."""
        return "person" if secrets.compare_digest(request.get_cookie(self.name, "") or "", self._cookie) else None

    def opens(self, given: str) -> bool:
        """Whether this is the secret."""
        return secrets.compare_digest(given.encode(), self._secret.encode())

    def admit(self, answer: RequestHandler) -> None:
        """Give the cookie: no script reads it, and no other site's page sends it."""
        answer.set_cookie(self.name, self._cookie, httponly=True, samesite="Strict", path="/")

    @property
    def get_user(self) -> Callable[[RequestHandler], str | None]:
        """Bokeh's hook."""
        return self.known

    @property
    def login_url(self) -> str:
        """Where those who are not known are sent."""
        return "/login"

    @property
    def login_handler(self) -> type[RequestHandler]:
        """The page that asks."""
        return type("BoundLoginPage", (LoginPage,), {"login": self})

    get_user_async = get_login_url = logout_url = logout_handler = None


class LoginPage(RequestHandler):
    """Asks for the secret, or takes it from the address that ``tilescope serve`` printed."""

    login: Login

    async def get(self) -> None:
        """The form; with ``?token=`` in the address, the answer to it."""
        given = self.get_query_argument("token", "")
        if given:
            await self._answer(given)
        else:
            self._ask("")

    async def post(self) -> None:
        """The answer to the form."""
        await self._answer(self.get_body_argument("secret", ""))

    async def _answer(self, given: str) -> None:
        if self.login.opens(given):
            self.login.admit(self)
            self.redirect(local(self.get_query_argument("next", ""), self.login.home))
            return
        await asyncio.sleep(_PAUSE)
        self.set_status(403)
        self._ask("That is not it.")

    def _ask(self, said: str) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)
        self.finish(_TEMPLATES.get_template("login.html").render(said=said))


_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def local(address: str, otherwise: str) -> str:
    """The address if it is a path on this server, so that a link to the login leads nowhere else."""
    parts: Any = urlsplit(address)
    # A browser reads a backslash as a slash, and skips tabs and line ends before it looks.
    inside = address.startswith("/") and not re.match(r"/[/\\]|.*[\x00-\x1f\x7f]", address, re.DOTALL)
    return address if inside and not parts.scheme and not parts.netloc else otherwise
