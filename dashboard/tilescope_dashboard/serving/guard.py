"""Checks of every request, on every route, before the server handles it.

Bokeh 3.9 and Panel 1.9.4 check neither the host name of a request nor the module of a component
(``panel_patches.component_files``), and let an address choose its session's id. ``install`` adds these checks to all of their servers in
this process that serve Tilescope's app. ``tilescope serve``, the launcher and the app's script call it. Plain ``panel serve`` runs
the script only at the first visit, but loads entry points of the group ``panel.io.rest`` before: ``routes`` is one.

In DNS rebinding an attacker's name resolves to this machine, so that browsers take the attacker's page for the server's own. The ``Host``
header, which has the attacker's name, tells the two apart.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from bokeh.application import Application
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import check_allowlist
from bokeh.server.views.autoload_js_handler import AutoloadJsHandler
from bokeh.server.views.root_handler import RootHandler
from bokeh.server.views.session_handler import SessionHandler
from bokeh.server.views.ws import WSHandler
from bokeh.settings import settings
from bokeh.util.token import check_token_signature
from panel.io.server import ComponentResourceHandler
from tornado.httputil import HTTPHeaders, HTTPServerRequest, url_concat
from tornado.web import OutputTransform, RequestHandler

from tilescope_dashboard.panel_patches.component_files import ComponentFiles
from tilescope_dashboard.serving.serve import loopback

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.ASCII)


def host(request: HTTPServerRequest) -> str:
    """The request's host name in lower case; empty where ``Host`` is missing, repeated or malformed."""
    said = request.headers.get_list("Host")
    lowered = said[0].lower() if len(said) == 1 else ""
    return lowered if _HOST.fullmatch(lowered) else ""


def answers_to(name: str, allowed: Collection[str]) -> bool:
    """Whether a server with these origins answers to the name that ``host`` returned: an origin, or loopback with any port.

    Nobody else owns a loopback name, and a tunnel may change the port.
    """
    found = _HOST.fullmatch(name)
    return found is not None and (loopback(found["name"].strip("[]")) or check_allowlist(name, list(allowed)))


def foreign(request: HTTPServerRequest) -> bool:
    """Whether another site's page loads this as a part of itself, such as an image, script or frame. Links are allowed.

    Browsers send ``Sec-Fetch-*`` to loopback and TLS addresses. For websockets Bokeh compares ``Origin``.
    """
    told = {name: request.headers.get(f"Sec-Fetch-{name}", "").lower() for name in ("Site", "Mode", "Dest")}
    followed = told["Mode"] == "navigate" and told["Dest"] == "document" and request.method in ("GET", "HEAD")
    return told["Site"] in ("cross-site", "same-site") and told["Mode"] != "websocket" and not followed


#: Panel and Bokeh use inline scripts, functions made from text, and components imported as blobs.
_CONTENT = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'{sockets} data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
#: JupyterLab frames the app from the same origin.
_OTHERS = {
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def content(name: str) -> str:
    """The content security policy for a server with this host name. It lists websockets, as in some browsers 'self' has none.

    A policy cannot name an IPv6 address.
    """
    return _CONTENT.format(sockets=f" ws://{name} wss://{name}" if name and not name.startswith("[") else "")


class Headers(OutputTransform):
    """Adds the headers to an answer, except those that its handler has set."""

    def __init__(self, request: HTTPServerRequest) -> None:
        self._name = host(request)

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Tornado's hook."""
        for name, value in {**_OTHERS, "Content-Security-Policy": content(self._name)}.items():
            if name not in headers:
                headers[name] = value
        return status_code, headers, chunk


#: Query arguments that would choose a session.
_SESSION = ("bokeh-session-id", "bokeh-token")
_begin, _find = BokehTornado.__init__, BokehTornado.find_handler


class Refused(RequestHandler):
    """Answers any request in one line."""

    def initialize(self, status: int, said: str) -> None:
        """Tornado's hook."""
        self._status, self._said = status, said

    def prepare(self) -> None:
        """Answer, whatever the method."""
        self.set_status(self._status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self._said + "\n")


class _WithQuery(RequestHandler):
    """Added to Panel's redirect to the app, which drops what the address asks for."""

    def redirect(self, url: str, *settings: Any, **others: Any) -> None:
        """Redirect with the query."""
        super().redirect(f"{url}?{self.request.query}", *settings, **others)


def script() -> Path:
    """The app's script: in the package where it is installed, one folder up in a checkout."""
    package = Path(__file__).parents[1]
    here = package / "app.py"
    return here if here.exists() else package.parent / "app.py"


@cache
def _text() -> str:
    return script().read_text(encoding="utf-8")


def ours(applications: Any) -> bool:
    """Whether one of the server's applications is Tilescope's script or a copy of it."""
    every = applications.values() if hasattr(applications, "values") else [applications]
    runners = [
        getattr(handler, "_runner", None)
        for one in every
        for handler in getattr(getattr(one, "application", one), "handlers", ())
    ]
    return any(
        Path(runner.path).resolve() == script().resolve() or runner.source == _text() for runner in runners if runner
    )


def install() -> None:
    BokehTornado.__init__, BokehTornado.find_handler = _begin_signing, _find_guarded


def routes(files: Any, endpoint: str) -> list[Any]:
    """An entry point of the group ``panel.io.rest`` without routes. It exists so that Panel imports this module."""
    return []


def _begin_signing(server: BokehTornado, applications: Application | Any, **options: Any) -> None:
    """``BokehTornado.__init__`` with signed sessions, so that only this process makes their ids."""
    if ours(applications) and not (options.get("sign_sessions") and options.get("secret_key")):
        options.update(sign_sessions=True, secret_key=secrets.token_bytes(32))
    _begin(server, applications, **options)


def _find_guarded(server: BokehTornado, request: HTTPServerRequest, **options: Any) -> Any:
    """``BokehTornado.find_handler``, or a handler that refuses the request."""
    found = _find(server, request, **options)
    if not _guarded(server):
        return found
    _hide_tokens(request)
    handler = getattr(found, "handler_class", RequestHandler)
    if request.query and issubclass(handler, RootHandler):
        found.handler_class = type("RootWithQuery", (_WithQuery, handler), {})
    refusal = refused(server, request, handler)
    if refusal:
        return server.get_handler_delegate(request, Refused, dict(zip(("status", "said"), refusal, strict=True)))
    if issubclass(handler, ComponentResourceHandler):
        found.handler_class = ComponentFiles
    return found


def _guarded(server: BokehTornado) -> bool:
    """Whether the server has Tilescope's app. Adds ``Headers`` to its answers if so."""
    known = getattr(server, "_has_tilescope", None)
    if known is None:
        known = server._has_tilescope = ours(server._applications)
        server.transforms += [Headers] if known else []
    return bool(known)


def refused(server: BokehTornado, request: HTTPServerRequest, handler: type) -> tuple[int, str] | None:
    """Status and message for a refused request: a wrong host name, another site's page, a session chosen by the address."""
    allowed = set(settings.allowed_ws_origin() or server.websocket_origins)
    # Any origin is allowed where a proxy, such as Jupyter's, has checked.
    checked = "*" not in allowed
    name = host(request)
    if checked and not answers_to(name, allowed):
        called = f"by the name {name}" if name else "by that name"
        option = f"--origin {name}" if name else "--origin HOST:PORT"
        return 403, (
            f"This server does not answer {called}. To allow that name, start it with 'tilescope serve {option}', "
            "or 'panel serve' with --allow-websocket-origin."
        )
    if checked and foreign(request):
        return 403, "This server refuses requests from other sites."
    if issubclass(handler, AutoloadJsHandler):
        return 404, "Other pages cannot embed this app: open its own address."
    if issubclass(handler, SessionHandler):
        return _chosen_session(request)
    if issubclass(handler, WSHandler) and not _signed(server, request):
        return 403, "The server does not know this page's session: reload the page."
    return None


def _chosen_session(request: HTTPServerRequest) -> tuple[int, str] | None:
    chosen = any(name in request.arguments for name in _SESSION) or "Bokeh-Session-Id" in request.headers
    return (403, "Remove bokeh-session-id from the address: the server chooses the session.") if chosen else None


def _signed(server: BokehTornado, request: HTTPServerRequest) -> bool:
    """Whether a websocket's token is this server's. Bokeh checks as well, but logs a traceback."""
    offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    try:
        return check_token_signature(offered[-1], secret_key=server.secret_key, signed=server.sign_sessions)
    except Exception:  # a stranger's text may fail in any way
        return False


def _hide_tokens(request: HTTPServerRequest) -> None:
    """Remove tokens from the address that logs and redirects show. The login reads the parsed arguments."""
    if request.path.rstrip("/").endswith("/login"):
        request.uri, request.query = request.path, ""
    elif "token" in request.query_arguments:
        kept = [
            (name, value) for name, values in request.query_arguments.items() for value in values if name != "token"
        ]
        request.uri = url_concat(request.path, kept)  # type: ignore[arg-type]
        request.query = request.uri.partition("?")[2]
        for arguments in (request.arguments, request.query_arguments):
            arguments.pop("token", None)


install()
