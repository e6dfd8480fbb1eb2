"""Who may start work on this machine, and which files of their own they may run."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Variable that names the folder whose files people may profile. Unset, they profile the library alone.
OWN_FILES = "TILESCOPE_OWN_FILES"
_NO_FILES = (
    "this server runs no files of your own. Start 'tilescope serve' in their folder, or name the folder: "
    f"--allow-own-files FOLDER or {OWN_FILES}=FOLDER."
)
#: Most files that are offered.
_MOST = 1000
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


def own_folder() -> Path | None:
    """The folder whose files people may run; None where they may run none."""
    allowed = os.environ.get(OWN_FILES)
    return Path(allowed).resolve() if allowed else None


def own_files(profiled: Collection[str] = ()) -> list[str]:
    """Relative paths of the folder's Python files: first those whose names are ``profiled``, each group by last save.

    Hidden folders, environments and installed packages are left out. At most ``_MOST`` files are listed.
    """
    folder, found = own_folder(), list[Path]()
    for place, folders, names in os.walk(folder) if folder else ():
        skipped = {"site-packages", "node_modules", "__pycache__"}
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [one for one in folders if one[0] != "." and one not in skipped]
        found += [Path(place, name) for name in names if name.endswith(".py")]
        if len(found) > _MOST:
            break
    found.sort(key=lambda file: (file.name in profiled, file.lstat().st_mtime), reverse=True)
    return [str(file.relative_to(folder)) for file in found[:_MOST] if folder]


def no_own_files() -> str:
    """Why this server runs no files of a visitor, and how it would; empty where it does."""
    return "" if own_folder() else _NO_FILES


def user_kernel(text: str) -> str:
    """Resolve ``FILE.py:SPEC`` to the file's absolute path, if this server runs such files.

    A relative path starts at the allowed folder. Raises ValueError with a message for the person otherwise.
    """
    path, _, name = text.strip().rpartition(":")
    if not name.isidentifier():
        raise ValueError(f"{text.strip()} is neither FILE.py:SPEC nor a script FILE.py.")
    return f"{user_script(path)}:{name}"


def user_script(path: str) -> Path:
    """As ``user_kernel``, for ``FILE.py``."""
    path = path.strip()
    folder = own_folder()
    if folder is None:
        raise ValueError(_NO_FILES)
    file = (folder / path).resolve()
    if not file.is_relative_to(folder):
        raise ValueError(
            f"{path} lies outside of {folder}, the folder whose files this server runs. "
            "To run it, start 'tilescope serve' with --allow-own-files FOLDER."
        )
    if file.suffix != ".py":
        raise ValueError(f"{path} is neither FILE.py:SPEC nor a script FILE.py.")
    if not file.is_file():
        raise ValueError(f"there is no file {file}.")
    return file
