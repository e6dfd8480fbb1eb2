"""Checks of every request, on every route, before the server handles it.

Bokeh 3.9 and Panel 1.9.4 check neither the host name of a request (``hosts``) nor the module of a component
(``panel_patches.component_files``), and let an address choose its session's id. ``install`` adds these checks to all of their servers in
this process that serve Tilescope's app. ``tilescope serve``, the launcher and the app's script call it. Plain ``panel serve`` runs
the script only at the first visit, but loads entry points of the group ``panel.io.rest`` before: ``routes`` is one.
"""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path
from typing import Any

from bokeh.application import Application
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.autoload_js_handler import AutoloadJsHandler
from bokeh.server.views.root_handler import RootHandler
from bokeh.server.views.session_handler import SessionHandler
from bokeh.server.views.ws import WSHandler
from bokeh.settings import settings
from bokeh.util.token import check_token_signature
from tornado.httputil import HTTPServerRequest, url_concat
from tornado.web import RequestHandler

from tilescope_dashboard.serving import hosts
from tilescope_dashboard.serving.headers import Headers

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
    return _own_components(found)


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
    name = hosts.host(request)
    if checked and not hosts.answers_to(name, allowed):
        called = f"by the name {name}" if name else "by that name"
        option = f"--origin {name}" if name else "--origin HOST:PORT"
        return 403, (
            f"This server does not answer {called}. To allow that name, start it with 'tilescope serve {option}', "
            "or 'panel serve' with --allow-websocket-origin."
        )
    if checked and hosts.foreign(request):
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


def _own_components(found: Any) -> Any:
    # A served app has imported Panel already; this module alone should not.
    from panel.io.server import ComponentResourceHandler  # noqa: PLC0415

    from tilescope_dashboard.panel_patches.component_files import ComponentFiles  # noqa: PLC0415

    if issubclass(getattr(found, "handler_class", RequestHandler), ComponentResourceHandler):
        found.handler_class = ComponentFiles
    return found


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
