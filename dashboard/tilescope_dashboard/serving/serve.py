"""``tilescope serve``: the dashboard on a loopback address, behind a login."""

from __future__ import annotations

import argparse
import errno
import getpass
import ipaddress
import os
import secrets
import socket
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope_dashboard.session import access

if TYPE_CHECKING:
    from tilescope.notebook.watching import Watch

PORT = 5006
PASSWORD = "TILESCOPE_PASSWORD"  # noqa: S105 - the variable's name
_SHORTEST = 8


def command(subparsers: Any) -> None:
    """Adds ``tilescope serve`` (an entry point of the group ``tilescope.commands``)."""
    parser = subparsers.add_parser("serve", help="serve the dashboard, by default for this machine alone")
    parser.add_argument("--address", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help=f"the port ({PORT}, or a free one where that is taken)")
    parser.add_argument(
        "--origin", action="append", default=[], metavar="HOST[:PORT]",
        help="host name that browsers use for this server, where a proxy or a tunnel changes it; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--password", action="store_true", help=f"require a password, from {PASSWORD} or typed, instead of a new token"
    )
    parser.add_argument("--no-login", action="store_true", help="serve without a login; on a loopback address only")
    parser.add_argument(
        "--allow-own-files",
        type=Path,
        metavar="FOLDER",
        help="run Python files in this folder (without this, on a loopback address with a login: the folder it is started in)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted. Raises ValueError, in one line, for options that are unsafe or cannot be served."""
    check(arguments)
    secret = "" if arguments.no_login else _password() if arguments.password else secrets.token_urlsafe(24)
    port = free_port(arguments.address, arguments.port)
    given = arguments.allow_own_files or os.environ.get(access.OWN_FILES)
    if given or (secret and loopback(arguments.address)):
        # An environment variable, as the app reads it under plain ``panel serve`` too.
        os.environ[access.OWN_FILES] = str(Path(given or "").resolve())
    allowed = origins(arguments.address, port, arguments.origin)
    _serve(arguments.address, port, allowed, secret, chosen=arguments.password)
    return 0


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError, in one line, for options that would let everybody in, or nobody."""
    if arguments.no_login and not loopback(arguments.address):
        raise ValueError(
            f"--no-login lets everyone who reaches {arguments.address} run code here: leave it out, or serve on 127.0.0.1"
        )
    if arguments.no_login and arguments.password:
        raise ValueError("choose --password or --no-login, not both")
    if _everywhere(arguments.address) and not arguments.origin:
        raise ValueError(
            f"{arguments.address} means every address: name the host that browsers use with --origin HOST:PORT"
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
    """Host names and ports of pages whose websockets are accepted."""
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
    """``wanted``, else the default port if it is free, else any free port.

    Raises ValueError, with a message for the person, if ``wanted`` is taken or the address is not this machine's.
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


def watch(script: Watch) -> int:
    """Serve the page of a watched script (an entry point of the group ``tilescope.pages``), and open it where there is a browser."""
    port = free_port("127.0.0.1", None)
    os.environ.setdefault(access.OWN_FILES, str(Path.cwd()))
    _serve("127.0.0.1", port, origins("127.0.0.1", port, []), secrets.token_urlsafe(24), watched=script)
    return 0


def _open(address: str) -> None:
    """Open the address in a graphical browser, if there is one: by a file of this user's, as other users see a command's arguments."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        with tempfile.NamedTemporaryFile("w", prefix="tilescope-", suffix=".html", delete=False) as page:
            page.write(f'<meta http-equiv="refresh" content="0; url={address}">')
        webbrowser.open(Path(page.name).as_uri())


def _serve(
    address: str, port: int, allowed: list[str], secret: str, *, chosen: bool = False, watched: Watch | None = None
) -> None:
    """Run the server. An empty ``secret`` means no login; a ``chosen`` one is not printed. A ``watched`` script's page is opened."""
    # Importing Panel takes a second, which ``tilescope --help`` should not.
    from panel.io.server import get_server  # noqa: PLC0415

    from tilescope_dashboard.serving import guard  # noqa: PLC0415
    from tilescope_dashboard.serving.login import Login  # noqa: PLC0415
    from tilescope_dashboard.session import watching  # noqa: PLC0415

    guard.install()
    options: dict[str, Any] = {}
    if secret:
        access.server.asks = True
        login = Login(secret, f"tilescope-{port}", "/app?view=watch" if watched else "/app", chosen=chosen)
        # Bokeh writes a request's headers and cookies into the page, where a script could read them.
        options = {"auth_provider": login, "exclude_cookies": [login.name], "exclude_headers": ["Cookie"]}
    where = f"http://{allowed[0]}"
    # Bokeh 3.9 cannot parse an IPv6 host here, but accepts one in the set below.
    told = [origin for origin in allowed if not origin.startswith("[")]
    server = get_server(
        {"app": str(guard.script())}, port=port, address=address, websocket_origin=told, warm=True, **options
    )
    server._tornado._websocket_origins.update(allowed)
    link = f"{where}{f'/login?token={secret}' if secret and not chosen else '/app'}"
    print(f"Tilescope: {link} (stop with Ctrl-C)", flush=True)
    folder = access.own_folder()
    runs = f"runs Python files in {folder}" if folder else "runs no files of your own"
    print(f"It {runs}: --allow-own-files FOLDER chooses another folder.", flush=True)
    if not loopback(address):
        print("The connection is not encrypted: use a TLS proxy or an SSH tunnel.", flush=True)
    if watched:
        server.io_loop.add_callback(lambda: watching.shared().start(watched))
        _open(link)
    server.run_until_shutdown()
    server.io_loop.run_sync(watching.shared().end)
