"""Headers on every answer of the server: where its pages may get things from, and who may show them in a frame."""

from __future__ import annotations

from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import OutputTransform

from tilescope_dashboard.serving import hosts

#: Panel and Bokeh write scripts into the page, make functions of text, and import components as blobs.
_CONTENT = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'{sockets} data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
#: JupyterLab shows the app in a frame of its own address, which is the same origin.
_OTHERS = {
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def content(name: str) -> str:
    """The policy for pages of a server that goes by the name: browsers differ in whether 'self' is its websocket, too.

    A policy has no way to write an IPv6 address, and a browser says so each time.
    """
    return _CONTENT.format(sockets=f" ws://{name} wss://{name}" if name and not name.startswith("[") else "")


class Headers(OutputTransform):
    """Adds them to an answer, except those that its handler has set."""

    def __init__(self, request: HTTPServerRequest) -> None:
        self._name = hosts.host(request)

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Tornado's hook."""
        for name, value in {**_OTHERS, "Content-Security-Policy": content(self._name)}.items():
            if name not in headers:
                headers[name] = value
        return status_code, headers, chunk
