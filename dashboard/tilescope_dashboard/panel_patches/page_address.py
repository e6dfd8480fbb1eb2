"""The address that a page was asked for by, taken apart.

Panel 1.9.4 cuts it at every ``:`` and ``?``: an IPv6 host (``[::1]:5006``) and a second question mark, which a query may have
(RFC 3986, 3.4), raise ValueError before the page is begun, and the person sees a blank one.
"""

from __future__ import annotations

import re

from panel.io import location

_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(?::(?P<port>\d+))?")


def mend() -> None:
    """From here on in this process."""
    location._get_location_params = parts


def parts(protocol: str | None, host: str | None, uri: str | None) -> dict[str, str]:
    """What Panel's function gives: the parameters of ``Location`` that the request tells."""
    found = {"href": f"{protocol}:" if protocol else ""}
    if protocol:
        found["protocol"] = f"{protocol}:"
    if host:
        found["href"] += f"//{host}"
        told = _HOST.match(host)
        named = told.groupdict() if told else {}
        found |= {name: text for name, text in (("hostname", named.get("name")), ("port", named.get("port"))) if text}
    if uri:
        found["href"] += uri
        # Of a request line that has the whole address, which proxies are sent.
        path, _, fragment = re.sub(r"^https?://[^/?#]*", "", uri).partition("#")
        found["pathname"], asks, query = path.partition("?")
        found |= {"search": f"?{query}"} if asks else {}
        found |= {"hash": f"#{fragment}"} if fragment else {}
    return found
