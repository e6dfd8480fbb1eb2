"""``tilescope serve``: the dashboard on this machine's own address, behind a login."""

from __future__ import annotations

import argparse
import errno
import getpass
import ipaddress
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

PORT = 5006
PASSWORD = "TILESCOPE_PASSWORD"  # noqa: S105 - the variable's name
_SHORTEST = 8


def command(subparsers: Any) -> None:
    """Adds ``tilescope serve`` (an entry point of the group ``tilescope.commands``)."""
    parser = subparsers.add_parser("serve", help="serve the dashboard, on this machine alone unless told otherwise")
    parser.add_argument("--address", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"the port ({PORT}, or a free one where that is taken)")
    parser.add_argument(
        "--origin", action="append", default=[], metavar="HOST[:PORT]",
        help="what browsers call this server, where a proxy or a tunnel renames it; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--password", action="store_true", help=f"log in with a password, from {PASSWORD} or asked for, not a new token"
    )
    parser.add_argument("--no-login", action="store_true", help="ask nobody who they are; on a loopback address only")
    parser.add_argument(
        "--allow-own-files", type=Path, metavar="FOLDER", help="let people profile Python files in this folder"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until it is interrupted. Raises ValueError, in one line, for what must not or cannot be served."""
    check(arguments)
    secret = "" if arguments.no_login else _password() if arguments.password else secrets.token_urlsafe(24)
    port = free_port(arguments.address, arguments.port)
    if arguments.allow_own_files:
        # In the environment, where the app finds it under plain ``panel serve`` too.
        os.environ["TILESCOPE_OWN_FILES"] = str(arguments.allow_own_files.resolve())
    _serve(arguments.address, port, origins(arguments.address, port, arguments.origin), secret, arguments.password)
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError, in one line, for a combination that would let strangers in or nobody at all."""
    if arguments.no_login and not loopback(arguments.address):
        raise ValueError(
            f"--no-login would let everyone who reaches {arguments.address} run code here: leave it out, or serve on 127.0.0.1"
        )
    if arguments.no_login and arguments.password:
        raise ValueError("choose --password or --no-login, not both")
    if _everywhere(arguments.address) and not arguments.origin:
        raise ValueError(
            f"{arguments.address} is every address: say with --origin HOST:PORT what browsers call this server"
        )
    if arguments.allow_own_files and not arguments.allow_own_files.is_dir():
        raise ValueError(f"--allow-own-files: {arguments.allow_own_files} is not a folder")


def loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _everywhere(address: str) -> bool:
    return address in ("", "0.0.0.0", "::")  # noqa: S104 - it is refused without an origin


def origins(address: str, port: int, others: list[str]) -> list[str]:
    """What a page may be called whose websocket is let in."""
    own = [] if _everywhere(address) else [f"[{address}]:{port}" if ":" in address else f"{address}:{port}"]
    return list(dict.fromkeys([*own, *([f"localhost:{port}"] if loopback(address) else []), *others]))


def _password() -> str:
    given = os.environ.pop(PASSWORD, "")
    if not given and sys.stdin.isatty():
        given = getpass.getpass("Password for the dashboard: ")
    if len(given) < _SHORTEST:
        raise ValueError(f"the password needs {_SHORTEST} characters or more: set {PASSWORD}, or type it when asked")
    return given


def free_port(address: str, wanted: int | None) -> int:
    """``wanted`` or, where that is left open, the usual port or any that is free.

    Raises ValueError, in words, for a port that is taken or an address that this machine does not have.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (wanted,) if wanted else (PORT, 0):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise ValueError(f"cannot serve on {address}, port {port}: {error.strerror}") from error
                continue
            return int(probe.getsockname()[1])
    raise ValueError(f"port {wanted} is taken: choose another, or leave --port out")


def _serve(address: str, port: int, allowed: list[str], secret: str, chosen: bool) -> None:
    """Run the server. ``secret`` is empty where nobody is asked; a ``chosen`` one is not printed."""
    # Panel takes a second to import: ``tilescope --help`` does not wait for it.
    from panel.io.server import get_server  # noqa: PLC0415

    from tilescope_dashboard.serving import guard  # noqa: PLC0415
    from tilescope_dashboard.serving.login import Login  # noqa: PLC0415
    from tilescope_dashboard.session import access  # noqa: PLC0415

    guard.install()
    options: dict[str, Any] = {}
    if secret:
        access.server.asks = True
        login = Login(secret, f"tilescope-{port}", chosen=chosen)
        # Bokeh writes a request's headers and cookies into the page, where a script could read them.
        options = {"auth_provider": login, "exclude_cookies": [login.name], "exclude_headers": ["Cookie"]}
    where = f"http://{allowed[0]}"
    # Bokeh 3.9 takes no IPv6 address for a host, but compares with one.
    told = [origin for origin in allowed if not origin.startswith("[")]
    server = get_server(
        {"app": str(guard.script())}, port=port, address=address, websocket_origin=told, warm=True, **options
    )
    server._tornado._websocket_origins.update(allowed)
    print(
        f"Tilescope: {where}{f'/login?token={secret}' if secret and not chosen else '/app'} (stop with Ctrl-C)",
        flush=True,
    )
    if not loopback(address):
        print("Nothing is encrypted: put a proxy with TLS in front of it, or use an SSH tunnel.", flush=True)
    server.run_until_shutdown()
