"""What an outsider may ask of a server that has the app: plain ``panel serve``, which asks nobody who they are, and raw sockets."""

import re
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.util.token import generate_jwt_token, generate_session_id, get_session_id
from panel.io.resources import resolve_custom_path
from panel.theme.material import MaterialDefaultTheme
from tilescope.version import VERSION
from tilescope_dashboard.serving import guard
from tornado.httputil import HTTPHeaders

from tests.held_port import HeldPort

from .conftest import ROOT, Process

#: In a folder of its own on the path: a module that says so when it is imported, as an address may make Panel do.
SPY = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\n"
PLAIN = "import panel as pn\npn.pane.Str('plain').servable()\n"


def installed(folder: Path) -> Path:
    """A folder on whose account Python finds the entry points that the project declares, as an installed Tilescope's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = folder / f"tilescope-{VERSION}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tilescope\nVersion: {VERSION}\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in points.items()))]
    (place / "entry_points.txt").write_text("\n".join(lines))
    (folder / "importable_spy.py").write_text(SPY)
    return folder


class Panel(Process):
    """The app as README's plain command serves it: not made warm, so that its script has not run before the first visit."""

    def __init__(self, runs: Path, folder: Path) -> None:
        self.spied, self._held = installed(folder / "site") / "imported", HeldPort()
        self.port = self._held.number
        super().__init__(
            folder, "-m", "panel", "serve", str(ROOT / "dashboard" / "app.py"), "--port", str(self.port), "--address",
            "127.0.0.1", path=(folder / "site",), TILESCOPE_RUNS=str(runs),
        )  # fmt: skip
        self.until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def ask(self, target: str, *headers: str, method: str = "GET", host: str = "") -> tuple[int, str]:
        """Status and the rest of the answer to a request that is sent as it is written here.

        ``host`` is localhost where it is not given, and is left out as ``-``.
        """
        named = [] if host == "-" else [f"Host: {host or f'localhost:{self.port}'}"]
        lines = [f"{method} {target} HTTP/1.{0 if host == '-' else 1}", *named, "Connection: close", *headers]
        with socket.create_connection(("127.0.0.1", self.port), timeout=240) as place:
            place.sendall("\r\n".join([*lines, "", ""]).encode())
            said = b""
            while part := place.recv(65536):
                said += part
                # A websocket goes on, and a connection that was to become one stays.
                top, _, body = said.partition(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", top)
                if said.startswith((b"HTTP/1.1 101", b"HTTP/1.1 400")) or (length and len(body) >= int(length[1])):
                    break
        found = re.match(rb"HTTP/1\.[01] (\d+)", said)
        return int(found[1]) if found else 0, said.decode(errors="replace")


def websocket(token: str, origin: str = "") -> tuple[str, ...]:
    """The headers of a websocket's beginning."""
    return (
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: bokeh, {token}", *([f"Origin: {origin}"] if origin else []),
    )  # fmt: skip


@pytest.fixture(scope="module")
def bare(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    one = Panel(runs, tmp_path_factory.mktemp("bare"))
    yield one
    assert "Traceback" not in one.stop()


#: Ways to write the address of a module that nobody has asked for.
SPIES = [
    "/components/importable_spy/x/css/y", "/components/%69mportable_spy/x/css/y", "/components/importable%5Fspy/x/css/y",
    "//components/importable_spy/x/css/y", "/components//importable_spy/x/css/y", "/components/%2569mportable_spy/x/css/y",
    "/components/panel/../importable_spy/x/css/y", "/components/panel%2F..%2Fimportable_spy/x/css/y",
    "/components/tilescope_dashboard.importable_spy/x/css/y", "/components/importable_spy", "/components/importable_spy/x/css/y?a=b",
    "http://localhost/components/importable_spy/x/css/y",
]  # fmt: skip


def test_address_imports_no_module(bare: Panel) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS"):
        for target in SPIES:
            status, said = bare.ask(target, method=method)
            assert status in (403, 404, 405), (method, target, said)
    assert bare.ask("/components/unittest.__main__/x/css/y")[0] == 404
    # In a process of its own, to be run; in Panel, and not imported by the app; imported, and no component.
    for target in ("antigravity/x/css/y", "panel.command.bundle/x/css/y", "panel.io.server/os/css/y", "sys/x/css/y",
                   "tilescope_dashboard.serving.guard/Refused/css/y", "panel/config/css/y"):  # fmt: skip
        assert bare.ask(f"/components/{target}")[0] == 404, target
    assert not bare.spied.exists()
    assert bare.process.poll() is None


def test_a_component_of_panels_still_has_its_files(bare: Panel) -> None:
    bare.ask("/app")  # what the page has is imported with it
    file = resolve_custom_path(MaterialDefaultTheme, str(MaterialDefaultTheme.base_css), relative=True)
    there = "/components/panel.theme.material/MaterialDefaultTheme/base_css"
    status, said = bare.ask(f"{there}/{file}")
    assert (status, "text/css" in said) == (200, True)
    assert bare.ask(f"{there}/..%2F..%2F__init__.py")[0] == 403


NAMES = ["evil.example", "evil.example:{port}", "localhost.evil.example:{port}", "0.0.0.0:{port}", "127.0.0.1.nip.io:{port}",
         "localhost.", "-"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_by_another_name_nothing_is_answered(bare: Panel, name: str) -> None:
    called = name.format(port=bare.port)
    evil = f"http://{called}"
    token = generate_jwt_token(generate_session_id())
    targets = "/app / /static/js/bokeh.min.js /components/panel/x/css/y /app/metadata /nothing /favicon.ico"
    for target in targets.split():
        status, said = bare.ask(target, host=called)
        assert status == 403, (target, said)
        assert said.rpartition("\r\n\r\n")[2].count("\n") == 1
        assert "--allow-websocket-origin" in said
    assert bare.ask("/app/ws", *websocket(token, evil), host=called)[0] == 403


def test_what_is_no_name_or_two_names_is_answered_by_nobody(bare: Panel) -> None:
    for name in (f"localhost:{bare.port}@evil.example", "evil.example, localhost", "local host", "a/b", "::1"):
        assert bare.ask("/app", host=name)[0] in (400, 403), name
    assert bare.ask("/app", "Host: evil.example")[0] in (400, 403)


def test_names_that_are_this_machines_or_allowed_are_answered() -> None:
    allowed = ["gpu.example:80", "tunnel.example:8443"]
    known = "localhost localhost:1 127.0.0.1:5006 127.8.8.8 [::1]:5006 gpu.example gpu.example:80 tunnel.example:8443"
    for name in known.split():
        assert guard.answers_to(name, allowed), name
    others = "gpu.example:81 tunnel.example xgpu.example ::1 [::2] localhost. 2130706433 0x7f.1"
    for name in ("", "a b", *others.split()):
        assert not guard.answers_to(name, allowed), name
    assert guard.answers_to("whatever.example", ["*"])


def test_other_sites_may_link_but_not_embed(bare: Panel) -> None:
    image = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")
    frame = ("Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe")
    for sent in (image, frame):
        assert bare.ask("/static/js/bokeh.min.js", *sent)[0] == 403
        assert bare.ask("/app", *sent)[0] == 403
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert bare.ask("/app", *link)[0] == 200
    assert bare.ask("/app", *link, method="POST")[0] == 403
    assert bare.ask("/app/autoload.js?bokeh-autoload-element=1")[0] == 404


def session(page: str) -> str:
    """The token in a page."""
    found = re.search(r'"token":"([^"]+)"', page)
    assert found
    return found[1]


def test_no_address_and_no_header_choose_a_session(bare: Panel) -> None:
    mine = session(bare.ask("/app")[1])
    for chosen in ("fixed", get_session_id(mine)):
        assert bare.ask(f"/app?bokeh-session-id={chosen}")[0] == 403
        assert bare.ask(f"/app?%62okeh-session-id={chosen}")[0] == 403
        assert bare.ask("/app", f"Bokeh-Session-Id: {chosen}")[0] == 403
    assert bare.ask(f"/app?bokeh-token={mine}")[0] == 403
    # What people hand on says what to look at, and no more.
    assert bare.ask("/app?run=latest&kernel=softmax&view=roofline")[0] == 200


def test_a_websocket_needs_a_token_that_this_server_has_signed(bare: Panel) -> None:
    here, mine = f"http://localhost:{bare.port}", session(bare.ask("/app")[1])
    assert bare.ask("/app/ws", *websocket(mine, here))[0] == 101
    theirs = get_session_id(mine)
    signed = generate_jwt_token(theirs, secret_key=b"guessed", signed=True)
    for forged in (generate_jwt_token(theirs), signed, generate_jwt_token(generate_session_id()), mine[:-2], mine + "x",
                   mine.partition(".")[0], "", ".", "a.b", "é"):  # fmt: skip
        assert bare.ask("/app/ws", *websocket(forged, here))[0] == 403, forged
    assert bare.ask("/app/ws", *websocket(mine, "http://evil.example"))[0] == 403


def test_static_files_are_those_of_the_page_only(bare: Panel) -> None:
    for way in ("../../../../../../etc/passwd", "..%2f..%2f..%2f..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/%2e%2e/server.py", "//etc/passwd",
                "..%252f..%252fetc/passwd", "extensions/panel/../../../../../../../etc/passwd", "extensions/panel//etc/passwd"):  # fmt: skip
        status, said = bare.ask(f"/static/{way}")
        assert status in (403, 404), (way, said)
        assert "root:" not in said


def test_answers_have_security_headers(bare: Panel) -> None:
    for target in ("/app", "/static/js/bokeh.min.js", "/nothing", "/components/x/y/css/z"):
        _, said = bare.ask(target)
        top = said.partition("\r\n\r\n")[0]
        for line in ("X-Frame-Options: SAMEORIGIN", "X-Content-Type-Options: nosniff", "Referrer-Policy: same-origin"):
            assert line in top, (target, line)
        assert "frame-ancestors 'self'" in top
        assert "object-src 'none'" in top
        assert f"connect-src 'self' ws://localhost:{bare.port} " in top


def test_a_handlers_own_headers_stay_and_no_host_becomes_a_rule() -> None:
    request: Any = SimpleNamespace(headers=HTTPHeaders({"Host": "a; script-src *"}))
    _, found, _ = guard.Headers(request).transform_first_chunk(
        200, HTTPHeaders({"Referrer-Policy": "no-referrer"}), b"", True
    )
    assert found["Referrer-Policy"] == "no-referrer"
    assert "*" not in found["Content-Security-Policy"]


def test_other_peoples_apps_are_left_as_they_are() -> None:
    other: Any = SimpleNamespace(
        handlers=[SimpleNamespace(_runner=SimpleNamespace(path="/elsewhere/app.py", source=PLAIN))]
    )
    script = ROOT / "dashboard" / "app.py"
    own: Any = SimpleNamespace(handlers=[SimpleNamespace(_runner=SimpleNamespace(path=str(script), source=""))])
    copy: Any = SimpleNamespace(
        handlers=[SimpleNamespace(_runner=SimpleNamespace(path="/elsewhere/x.py", source=script.read_text()))]
    )
    assert [guard.ours({"/x": one}) for one in (other, own, copy)] == [False, True, True]
    assert guard.ours({"/x": other, "/y": own})
    assert not guard.ours(lambda document: None)
