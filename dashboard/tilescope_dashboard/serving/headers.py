"""Security headers of every answer: where pages may load from, and who may frame them. Each answer is noted."""

from __future__ import annotations

from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import OutputTransform

from tilescope_dashboard.serving import hosts
from tilescope_dashboard.session import scheduling

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
        self._name = hosts.host(request)

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Tornado's hook."""
        scheduling.answering()
        for name, value in {**_OTHERS, "Content-Security-Policy": content(self._name)}.items():
            if name not in headers:
                headers[name] = value
        return status_code, headers, chunk
