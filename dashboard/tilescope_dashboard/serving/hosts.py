"""Checks of a request's host name and of the page it comes from.

In DNS rebinding an attacker's name resolves to this machine, so that browsers take the attacker's page for the server's own. The ``Host``
header, which has the attacker's name, tells the two apart.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from bokeh.server.util import check_allowlist
from tornado.httputil import HTTPServerRequest

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
