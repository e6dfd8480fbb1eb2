"""Which names a server answers to, and which pages elsewhere may ask it for anything.

A foreign name whose owner lets it point to this machine makes a page of theirs the server's own, as browsers see it ("DNS
rebinding"): what tells the two apart is the name that the browser sends in ``Host``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from bokeh.server.util import check_allowlist
from tornado.httputil import HTTPServerRequest

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?", re.ASCII)


def host(request: HTTPServerRequest) -> str:
    """What the client calls this server, in small letters; empty where it says nothing, several things or no name at all."""
    said = request.headers.get_list("Host")
    lowered = said[0].lower() if len(said) == 1 else ""
    return lowered if _HOST.fullmatch(lowered) else ""


def loopback(name: str) -> bool:
    """Whether a host's name or address, without a port, is this machine whoever asks."""
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def answers_to(name: str, allowed: Collection[str]) -> bool:
    """Whether a server with those origins goes by the name, as ``host`` gives it: by them, and on loopback at every port.

    Nobody else owns a loopback name, and a tunnel may have changed the port.
    """
    found = _HOST.fullmatch(name)
    return found is not None and (loopback(found["name"]) or check_allowlist(name, list(allowed)))


def foreign(request: HTTPServerRequest) -> bool:
    """Whether a page of another site asks, for a part of itself: an image, a script, a frame. Its links may lead here.

    Browsers say so, on addresses that they trust not to be listened to: loopback and TLS. Websockets say where they are from
    in ``Origin``, which Bokeh compares.
    """
    told = {name: request.headers.get(f"Sec-Fetch-{name}", "").lower() for name in ("Site", "Mode", "Dest")}
    followed = told["Mode"] == "navigate" and told["Dest"] == "document" and request.method in ("GET", "HEAD")
    return told["Site"] in ("cross-site", "same-site") and told["Mode"] != "websocket" and not followed
