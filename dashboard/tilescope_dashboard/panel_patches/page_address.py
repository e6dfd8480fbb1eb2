"""Parses the address of a page.

Panel 1.9.4 splits it at every ``:`` and ``?``. An IPv6 host (``[::1]:5006``), or a second question mark, which a query may contain
(RFC 3986, 3.4), raises ValueError before the page is built, and the person sees a blank one.
"""

from __future__ import annotations

import re

from panel.io import location

_HOST = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*)(?::(?P<port>\d+))?")


def install() -> None:
    location._get_location_params = parts


def parts(protocol: str | None, host: str | None, uri: str | None) -> dict[str, str]:
    """As Panel's function: the parameters of ``Location`` that the request determines."""
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
        # Proxies send the whole address in the request line.
        path, _, fragment = re.sub(r"^https?://[^/?#]*", "", uri).partition("#")
        found["pathname"], asks, query = path.partition("?")
        found |= {"search": f"?{query}"} if asks else {}
        found |= {"hash": f"#{fragment}"} if fragment else {}
    return found
