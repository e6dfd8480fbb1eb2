"""Who may start work on this machine."""

from __future__ import annotations

import ipaddress
from typing import Any


def is_local(doc: Any) -> bool:
    """Whether the document's client is on this machine, as far as the request tells.

    ``panel serve`` listens everywhere and asks nobody who they are, so others look but do not launch. A proxy on this
    machine forwards for someone: its header decides then.
    """
    request = getattr(getattr(doc, "session_context", None), "request", None)
    if request is None:
        return False
    headers = {str(name).lower(): str(value) for name, value in dict(request.headers or {}).items()}
    forwarded = [headers[name].split(",")[0].strip() for name in ("x-forwarded-for", "x-real-ip") if name in headers]
    if "forwarded" in headers:
        return False
    return all(_loopback(address) for address in [str(getattr(request, "remote_ip", "")), *forwarded])


def _loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
