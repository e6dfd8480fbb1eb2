"""Who may start work on this machine, and which files of their own they may run."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Variable that names the folder whose files people may profile. Unset, they profile the library alone.
OWN_FILES = "TILESCOPE_OWN_FILES"
#: Headers in which proxies name the client.
_FORWARDED = ("x-forwarded-for", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
#: Whether this process's server asks everyone to log in; ``tilescope serve`` says so.
server = SimpleNamespace(asks=False)


def may_launch(doc: Any) -> bool:
    """Whether the document's client may start work: it has logged in, or no login is required and it is on this machine."""
    return server.asks or is_local(doc)


def is_local(doc: Any) -> bool:
    """Whether the document's client is on this machine, as far as the request tells.

    ``panel serve`` listens on every interface without a login, so remote clients may look but not launch. For a proxy on this machine
    its forwarding header decides.
    """
    copy = getattr(getattr(doc, "session_context", None), "request", None)
    # Bokeh's copy of the headers passes through the browser, which may drop some. A warm-up has no request.
    request = getattr(copy, "_request", copy)
    if request is None:
        return False
    headers = {str(name).lower(): str(value) for name, value in dict(request.headers or {}).items()}
    # Check every address: the first may be the client's own claim.
    chains = [headers[name] for name in _FORWARDED if name in headers]
    forwarded = [address.strip() for chain in chains for address in chain.split(",")]
    if "forwarded" in headers or "via" in headers:
        return False
    return all(_loopback(address) for address in [*_peers(request), *forwarded])


def _peers(request: Any) -> list[str]:
    """Addresses of the request and of its socket: with ``--use-xheaders``, the former is what a header claims."""
    context = getattr(getattr(request, "connection", None), "context", None)
    told = str(getattr(request, "remote_ip", ""))
    return [told, str(getattr(context, "_orig_remote_ip", told))]


def _loopback(address: str) -> bool:
    found = parsed(address)
    return found is not None and found.is_loopback


def parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address without its zone. An IPv4-mapped IPv6 address becomes IPv4; anything else is None."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def user_kernel(text: str) -> str:
    """Resolve ``FILE.py:SPEC`` to the file's absolute path, if this server runs such files.

    A relative path starts at the allowed folder. Raises ValueError with a message for the person otherwise.
    """
    path, _, name = text.strip().rpartition(":")
    return f"{_user_file(path, name.isidentifier())}:{name}"


def user_script(text: str) -> Path:
    """As ``user_kernel``, for ``FILE.py``."""
    return _user_file(text.strip())


def _user_file(path: str, named: bool = True) -> Path:
    allowed = os.environ.get(OWN_FILES)
    if not allowed:
        raise ValueError(
            "this server runs no files of your own. Start it with 'tilescope serve --allow-own-files FOLDER', "
            f"or set {OWN_FILES}=FOLDER."
        )
    folder = Path(allowed).resolve()
    file = (folder / path).resolve()
    if not named or file.suffix != ".py" or not file.is_relative_to(folder):
        raise ValueError(f"give FILE.py:SPEC or a script FILE.py, a file in {folder}.")
    if not file.is_file():
        raise ValueError(f"there is no file {file}.")
    return file
