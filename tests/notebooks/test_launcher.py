"""The tile in JupyterLab's launcher: what jupyter-server-proxy is told, and that what it starts serves the app."""

import http.client
import os
import re
import signal
import socket
import subprocess
import time
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

from tilescope_dashboard.serving import launcher

ROOT = Path(__file__).parents[2]


def test_the_tile_is_declared_where_jupyter_looks():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["jupyter_serverproxy_servers"] == {
        launcher.NAME: "tilescope_dashboard.serving.launcher:tile"
    }
    assert "jupyter-server-proxy" in project["optional-dependencies"]["jupyter"]


def test_the_tile_says_how_to_start_the_app():
    tile = launcher.tile()
    assert tile["unix_socket"] is True
    assert tile["absolute_url"] is True
    assert tile["command"][-2:] == ["{unix_socket}", "{base_url}tilescope"]
    assert tile["launcher_entry"]["path_info"] == "tilescope/app"
    icon = ET.parse(tile["launcher_entry"]["icon_path"]).getroot()  # noqa: S314 - our own
    assert icon.tag.endswith("svg")


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(self._path)


def get(path, address, **headers):
    connection = UnixConnection(path)
    try:
        connection.request("GET", address, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_what_it_starts_serves_the_app_under_jupyters_prefix(tmp_path):
    path = tmp_path / "socket"
    filled = [part.format(unix_socket=path, base_url="/user/me/") for part in launcher.tile()["command"]]
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {**os.environ, "TILESCOPE_RUNS": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(filled, env=environment, stdout=out, stderr=out, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 240
        while not path.exists():
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        status, page = get(
            path, "/user/me/tilescope/app", Cookie="jupyter=secret-of-jupyter", Authorization="token t0k3n"
        )
        assert status == 200
        assert "<title>Tilescope</title>" in page
        # What the page asks for is under the prefix as well.
        style = re.search(r'href="(static/[^"?]*\.css)', page)
        assert style
        assert get(path, f"/user/me/tilescope/{style[1]}")[0] == 200
        # What lets one into Jupyter is in no page.
        assert "secret-of-jupyter" not in page
        assert "t0k3n" not in page
        assert get(path, "/app")[0] == 404
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(120)
    assert "Traceback" not in log.read_text()
