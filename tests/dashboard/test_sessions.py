"""Sessions that begin at once ask no other host for anything, and once closed leave nothing behind in the server."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: A server and its clients in one process, so that what is left can be counted. Prints how often another host
#: is named, and how many documents are left.
COUNT = """
import asyncio, gc, json, re, sys
import panel as pn
from bokeh.document import Document
from panel.io.server import get_server
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.ioloop import IOLoop
from tornado.websocket import websocket_connect

server = get_server({"app": sys.argv[1]}, address="127.0.0.1", show=False, start=False,
                    unused_session_lifetime_milliseconds=100, check_unused_sessions_milliseconds=100)

async def session():
    address = f"127.0.0.1:{server.port}"
    page = await AsyncHTTPClient().fetch(f"http://{address}/app?kernel=softmax", connect_timeout=240, request_timeout=240)
    token = re.search(rb'"token":"([^"]+)"', page.body)[1].decode()
    asked = HTTPRequest(f"ws://{address}/app/ws", headers={"Origin": f"http://localhost:{server.port}"})
    socket = await websocket_connect(asked, subprotocols=["bokeh", token])
    for part in ({"msgid": "1", "msgtype": "PULL-DOC-REQ"}, {}, {}):
        await socket.write_message(json.dumps(part))
    said = ""
    while '"Figure"' not in said:
        said += str(await socket.read_message())
    socket.close()
    return said.count("//cdn.")

async def main():
    print("elsewhere", sum(await asyncio.gather(*(session() for _ in range(2)))))
    while server.get_sessions("/app"):
        await asyncio.sleep(0.1)
    print("settled", gc.get_freeze_count() > 100_000)
    gc.unfreeze()
    for _ in range(60):  # what was put off may hold a session a little longer
        await asyncio.sleep(0.5)
        gc.collect()
        # One is there without a session.
        left = sum(isinstance(thing, Document) for thing in gc.get_objects()) - 1
        if not left:
            break
    print("left", left)

server.start()
IOLoop.current().run_sync(main)
"""


def test_sessions_keep_to_this_server_and_are_let_go(runs: Path, tmp_path: Path) -> None:
    paths = [str(ROOT / part) for part in ("kernels", "profiles", "dashboard")]
    environment = {**os.environ, "TILESCOPE_RUNS": str(runs), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", COUNT, str(ROOT / "dashboard" / "app.py")]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, cwd=tmp_path, check=False
    )
    assert told.stdout.split()[-6:] == ["elsewhere", "0", "settled", "True", "left", "0"], told.stdout + told.stderr
