"""The tile in JupyterLab's launcher: the dashboard behind Jupyter's own login, through jupyter-server-proxy.

The server listens on a Unix socket in a folder that only this user can enter, so it is reached only through Jupyter and its login.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

#: The last part of the tile's address, and the entry point's name: jupyter-server-proxy serves it under that.
NAME = "tilescope"


def tile() -> dict[str, Any]:
    """The settings that jupyter-server-proxy reads from an entry point of the group ``jupyter_serverproxy_servers``.

    It fills in ``{unix_socket}`` and ``{base_url}``.
    """
    return {
        "command": [sys.executable, "-m", __name__, "{unix_socket}", f"{{base_url}}{NAME}"],
        "unix_socket": True,
        # The server adds its prefix to every address itself.
        "absolute_url": True,
        "timeout": 60,
        "launcher_entry": {
            "title": "Tilescope",
            "icon_path": str(Path(__file__).parents[1] / "icon.svg"),
            "path_info": f"{NAME}/app",
        },
    }


def main(arguments: list[str]) -> None:
    """Serve the app on the socket ``arguments[0]`` under the prefix ``arguments[1]`` until the process ends."""
    from panel.io.server import get_server  # noqa: PLC0415 - Jupyter reads ``tile`` whenever it starts

    from tilescope_dashboard.serving import guard  # noqa: PLC0415
    from tilescope_dashboard.session import access  # noqa: PLC0415

    socket, prefix = arguments
    guard.install()
    access.server.asks = True  # Jupyter does
    server = get_server(
        {"app": str(guard.script())},
        unix_socket=socket,
        prefix=prefix,
        # Every request comes from Jupyter's proxy, which checks origins and host names.
        websocket_origin="*",
        # Bokeh writes headers and cookies into the page, where any script could read Jupyter's.
        include_headers=["User-Agent"],
        include_cookies=[],
        warm=True,
    )
    server.start()
    server.io_loop.start()


if __name__ == "__main__":
    main(sys.argv[1:])
