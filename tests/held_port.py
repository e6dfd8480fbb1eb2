"""A port that is kept for a server which is started later."""

import socket


class HeldPort:
    """A port that nobody else is given until this is collected: it stays bound, and nothing listens there.

    Servers bind with SO_REUSEADDR, as this does, so that one that is told the port may listen on it.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind((host, 0))
        self.number: int = self._held.getsockname()[1]

    def __del__(self) -> None:
        self._held.close()
