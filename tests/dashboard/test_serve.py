"""``tilescope serve``: who is let in, and from which page. Real servers, real requests."""

import argparse
import asyncio
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.server.util import create_hosts_allowlist
from tilescope_dashboard.serving import serve
from tilescope_dashboard.serving.login import FREE, Login, encrypted
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httputil import HTTPHeaders
from tornado.websocket import websocket_connect

from tests.held_port import HeldPort

from .conftest import ROOT, Process

COMMAND = """
import argparse
from tilescope_dashboard.serving import serve
parser = argparse.ArgumentParser()
serve.command(parser.add_subparsers())
chosen = parser.parse_args()
chosen.run(chosen)
"""


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.command(parser.add_subparsers())
    return parser.parse_args(["serve", *given])


class Served(Process):
    """A ``tilescope serve`` with a token, and what it printed."""

    def __init__(self, folder: Path, runs: Path) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        super().__init__(folder, "-c", COMMAND, "serve", "--port", str(self.port), TILESCOPE_RUNS=str(runs))
        printed = re.compile(r"http://\S+/login\?token=(\S+)")
        self.token = self.until(lambda: printed.search(self.log.read_text()))[1]

    def ask(self, path: str, cookie: str = "", method: str = "GET", body: str = "") -> tuple[int, dict[str, str], str]:
        """Status, headers and text of one answer; a redirect is not followed."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Cookie": cookie} if cookie else {}
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read().decode()
        connection.close()
        return found

    def cookie(self) -> str:
        """The cookie of someone who has logged in."""
        return self.ask(f"/login?token={self.token}")[1]["Set-Cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def served(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"), runs)
    yield one
    one.stop()


def test_without_a_login_the_page_is_a_question(served: Served) -> None:
    for path, expected in (
        ("/app", 302),
        ("/", 302),
        ("/app/metadata", 302),
        ("/app/autoload.js?bokeh-autoload-element=1", 404),
    ):
        status, headers, text = served.ask(path)
        assert status == expected, path
        assert "Overview" not in text
        assert status == 404 or headers["Location"].lstrip(".").startswith("/login?next=")
    status, headers, text = served.ask("/login")
    assert (status, 'type="password"' in text) == (200, True)
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"
    # A newcomer is told where the token is.
    assert all(word in text for word in ("make serve", "tilescope serve", "printed a", "link"))


@pytest.mark.parametrize("given", ["wrong", "wröng", "<b>", "a" * 5000])
def test_a_wrong_token_is_refused_and_not_repeated(served: Served, given: str) -> None:
    quoted = urllib.parse.quote(given)
    for status, headers, text in (
        served.ask(f"/login?token={quoted}"),
        served.ask("/login", method="POST", body=f"secret={quoted}"),
    ):
        # The first few of this server's are told so; then one has to wait.
        assert status in (403, 429)
        assert "Set-Cookie" not in headers
        assert "Wrong token." in text or "Too many wrong answers" in text
        assert given not in text or given == "wrong"


def test_many_guesses_are_refused_but_not_the_owner(served: Served) -> None:
    with ThreadPoolExecutor(20) as many:
        answers = list(many.map(lambda n: served.ask("/login", method="POST", body=f"secret=guess{n}"), range(200)))
    assert sum(status == 403 for status, _, _ in answers) <= FREE
    refused = [(headers, text) for status, headers, text in answers if status == 429]
    assert len(refused) >= 200 - FREE
    assert all(int(headers["Retry-After"]) > 0 and "Too many wrong answers" in text for headers, text in refused)
    # By the printed link, and by the form.
    assert served.ask(f"/login?token={served.token}")[0] == 302
    assert served.ask("/login", method="POST", body=f"secret={served.token}")[0] == 302


def test_no_log_and_no_redirect_has_a_token(served: Served) -> None:
    for path in (f"/login?token={served.token}", f"/login?token={served.token}x", f"/app?token={served.token}&view=gpu",
                 f"/nothing?token={served.token}", f"/login?next=%2Fapp%3Ftoken%3D{served.token}&token=%FF{served.token}",
                 f"/app?%74oken={served.token}"):  # fmt: skip
        for method in ("GET", "HEAD", "PUT"):
            _, headers, text = served.ask(path, method=method)
            assert served.token not in headers.get("Location", ""), path
            assert served.token not in text, path
    assert served.ask(f"/app?token={served.token}&view=gpu")[1]["Location"].endswith("next=%2Fapp%3Fview%3Dgpu")
    asked = served.ask(f"/?token={served.token}&kernel=softmax&view=roofline", served.cookie())
    assert asked[1]["Location"] == "./app?kernel=softmax&view=roofline"
    # Once: where it was printed.
    assert served.log.read_text().count(served.token) == 1


def test_the_cookie_is_for_tls_alone_where_there_is_tls() -> None:
    def asked(protocol: str = "http", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return SimpleNamespace(protocol=protocol, headers=HTTPHeaders(named))

    assert not encrypted(asked())
    assert not encrypted(asked(X_Forwarded_Proto="http"))
    assert encrypted(asked("https"))
    assert encrypted(asked(X_Forwarded_Proto="https, http"))
    assert encrypted(asked(Forwarded="for=192.0.2.7;proto=https"))


def test_behind_a_proxy_with_tls_the_cookie_says_so(served: Served) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=120)
    connection.request("GET", f"/login?token={served.token}", headers={"X-Forwarded-Proto": "https"})
    assert "; Secure" in (connection.getresponse().getheader("Set-Cookie") or "")
    connection.close()
    assert "Secure" not in served.ask(f"/login?token={served.token}")[1]["Set-Cookie"]


def test_other_names_are_refused_before_the_login(served: Served) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=120)
    connection.request("GET", "/login", headers={"Host": f"evil.example:{served.port}"})
    answer = connection.getresponse()
    assert (answer.status, "--origin evil.example" in answer.read().decode()) == (403, True)
    connection.close()
    assert served.ask("/components/unittest.__main__/x/css/y")[0] == 404
    assert served.ask("/app?bokeh-session-id=fixed", served.cookie())[0] == 403
    assert served.process.poll() is None


def test_token_opens_the_app_with_a_strict_cookie(served: Served) -> None:
    status, headers, _ = served.ask(f"/login?token={served.token}&next=%2Fapp%3Fview%3Droofline")
    assert (status, headers["Location"]) == (302, "/app?view=roofline")
    for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert word in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert served.token not in cookie
    status, _, text = served.ask("/app", cookie)
    assert status == 200
    assert "Tilescope" in text
    # Bokeh writes what it knows of the request into the page.
    assert cookie.partition("=")[2] not in text
    assert served.ask("/app", cookie + "x")[0] == 302
    status, headers, _ = served.ask("/login", method="POST", body=f"secret={served.token}")
    assert (status, headers["Location"]) == (302, "/app")


def connect(served: Served, **headers: str) -> str:
    """What a websocket gets: its first message, or how it was refused."""
    _, _, text = served.ask("/app", served.cookie())
    token = re.search(r'"token":"([^"]+)"', text)
    assert token

    async def talk() -> str:
        request = HTTPRequest(f"ws://127.0.0.1:{served.port}/app/ws", headers=headers)
        try:
            socket = await websocket_connect(request, subprotocols=["bokeh", token[1]])
        except HTTPClientError as error:
            return f"HTTP {error.code}"
        said = await asyncio.wait_for(socket.read_message(), 20)
        socket.close()
        while await socket.read_message() is not None:
            pass
        return "closed" if said is None else str(said)

    return asyncio.run(talk())


def test_the_websocket_wants_the_cookie_and_the_right_origin(served: Served) -> None:
    cookie, here = served.cookie(), f"http://127.0.0.1:{served.port}"
    assert "msgtype" in connect(served, Cookie=cookie, Origin=here)
    assert connect(served, Cookie=cookie, Origin="http://evil.example") == "HTTP 403"
    assert connect(served, Cookie=cookie, Origin=f"http://127.0.0.1:{served.port + 1}") == "HTTP 403"
    assert "msgtype" not in connect(served, Origin=here)
    assert "msgtype" not in connect(served)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--address", "0.0.0.0"], "--origin HOST:PORT"),  # noqa: S104 - refused
        (["--address", "192.0.2.7", "--no-login"], "--no-login lets everyone"),
        (["--address", "example.org", "--no-login"], "--no-login lets everyone"),
        (["--no-login", "--password"], "not both"),
        (["--allow-own-files", "/nowhere/at/all"], "is not a folder"),
    ],
)
def test_what_would_let_strangers_in_is_refused_in_a_line(given: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        serve.run(arguments(*given))
    assert "\n" not in str(refused.value)


def test_serve_says_whose_files_it_runs(served: Served) -> None:
    served.until(lambda: f"It runs Python files in {served.log.parent}" in served.log.read_text())


def test_a_password_comes_from_the_environment_and_is_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serve.PASSWORD, "short")
    with pytest.raises(ValueError, match="8 characters"):
        serve.run(arguments("--password"))
    monkeypatch.setenv(serve.PASSWORD, "long enough")
    assert serve._password() == "long enough"
    # The worker, which runs people's code, does not inherit it.
    assert serve.PASSWORD not in os.environ


def test_origins_are_what_is_served_and_nothing_else() -> None:
    assert serve.origins("127.0.0.1", 5006, []) == ["127.0.0.1:5006", "localhost:5006"]
    assert serve.origins("::1", 5006, []) == ["[::1]:5006", "localhost:5006"]
    assert serve.origins("192.0.2.7", 80, ["gpu.example"]) == ["192.0.2.7:80", "gpu.example"]
    assert serve.origins("::", 80, ["gpu.example"]) == ["gpu.example"]


def test_an_ipv6_address_is_an_origin_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``create_hosts_allowlist`` takes it, Bokeh has fixed what ``serve`` goes around."""
    with pytest.raises(ValueError, match="Invalid host value"):
        create_hosts_allowlist(["[::1]:5006"], 5006)
    kept: set[str] = set()

    def get_server(apps: Any, *, websocket_origin: list[str], **options: Any) -> SimpleNamespace:
        kept.update(create_hosts_allowlist(websocket_origin, options["port"]))
        loop = SimpleNamespace(run_sync=lambda _: None)
        return SimpleNamespace(
            _tornado=SimpleNamespace(_websocket_origins=kept), run_until_shutdown=lambda: None, io_loop=loop
        )

    monkeypatch.setattr("panel.io.server.get_server", get_server)
    serve._serve("::1", 5006, serve.origins("::1", 5006, []), "")
    assert kept == {"[::1]:5006", "localhost:5006"}


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", serve.PORT))
            taken.listen()
        except OSError:
            pass  # someone else has it: all the same
        assert serve.free_port("127.0.0.1", None) != serve.PORT


def test_a_port_that_was_asked_for_and_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} is taken"):
            serve.free_port("127.0.0.1", port)
    assert serve.free_port("127.0.0.1", port) == port
    with pytest.raises(ValueError, match=r"cannot serve on 192\.0\.2\.7"):
        serve.free_port("192.0.2.7", None)


def test_two_servers_do_not_take_each_others_cookie() -> None:
    first, second = Login("same secret", "one"), Login("same secret", "two")
    assert first._cookie != second._cookie
    assert first.opens("same secret") and not first.opens("same secre")


def test_make_serve_asks_for_a_token() -> None:
    if shutil.which("make") is None:
        pytest.skip("no make: apt-get install make")
    for given, command in (([], "tilescope serve"), (["PORT=7001"], "tilescope serve --port 7001")):
        said = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", "serve", *given], cwd=ROOT, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert said.stdout.strip().endswith(command)
