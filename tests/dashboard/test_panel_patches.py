"""Each fault of Panel and Bokeh is there without its correction: where one of these fails, upstream has fixed it.

``delivery``'s fault is shown in test_delivery.py, beside what mends it.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import panel as pn
import panel_material_ui as pmui
import pytest
from bokeh.core.has_props import HasProps
from bokeh.core.property.descriptors import PropertyDescriptor
from bokeh.core.serialization import Serializer
from bokeh.models import Plot
from bokeh.server.connection import ServerConnection
from bokeh.server.views.ws import WSHandler
from tilescope_dashboard import panel_patches
from tilescope_dashboard.panel_patches import closed_connection, model_defaults, page_lifetime


def test_each_is_for_a_version_that_is_here() -> None:
    modules = {module.name for module in pkgutil.iter_modules(panel_patches.__path__)}
    assert modules == panel_patches.FOR.keys()
    for name, (distribution, version) in panel_patches.FOR.items():
        assert importlib.metadata.version(distribution) == version, f"look whether {name} is needed still"


def bare(code: str, *path: str) -> str:
    """What code prints in a process without any correction."""
    done = subprocess.run([sys.executable, "-c", code, *path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_panel_imports_the_module_that_an_address_names(tmp_path: Path) -> None:
    (tmp_path / "imported_by_address.py").write_text("print('imported')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from panel.io.server import ComponentResourceHandler as Handler\n"
        "try: Handler.parse_url_path(Handler.__new__(Handler), 'imported_by_address/x/css/y')\n"
        "except Exception: pass"
    )
    assert bare(code, str(tmp_path)) == "imported"


def test_panel_waits_before_it_acts_on_a_change() -> None:
    assert bare("from panel.reactive import Syncable; print(Syncable._debounce)") == "50"


def test_bokeh_looks_the_defaults_of_a_class_up_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counted(descriptor: PropertyDescriptor[Any], model: HasProps) -> bool:
        asked[descriptor.name] += 1
        return model_defaults._bokehs_unstable(descriptor, model)

    monkeypatch.setattr(PropertyDescriptor, "instance_default", model_defaults._bokehs_default)
    monkeypatch.setattr(HasProps, "query_properties_with_values", model_defaults._bokehs_values)
    monkeypatch.setattr(PropertyDescriptor, "has_unstable_default", counted)
    Serializer().encode(Plot())
    first = asked.total()
    Serializer().encode(Plot())
    assert asked.total() - first > 50


def test_a_page_follows_whether_the_server_is_busy() -> None:
    before = page_lifetime._following()
    page = pmui.Page()
    followed = [watcher for watcher in page_lifetime._following() if watcher not in before]
    for watcher in followed:
        pn.state.param.unwatch(watcher)
    assert followed, page
    with page_lifetime.not_busy():
        pmui.Page()
    assert page_lifetime._following() == before


def test_bokeh_asks_a_connection_that_has_gone_for_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    session = SimpleNamespace(
        subscribe=lambda _: None, unsubscribe=lambda _: None, notify_connection_lost=lambda: heard.append("lost")
    )
    socket: Any = SimpleNamespace(close_code=1001, close_reason="")
    socket.connection = ServerConnection(None, socket, None, session)
    socket.application = SimpleNamespace(client_lost=lambda connection: connection.detach_session())
    closed_connection._ON_CLOSE(socket)
    with pytest.raises(AssertionError):
        closed_connection._ON_CLOSE(socket)
    monkeypatch.setattr(WSHandler, "on_close", WSHandler.on_close)
    monkeypatch.setattr(WSHandler, "_handle", WSHandler._handle)
    closed_connection.ignore()
    WSHandler.on_close(socket)
    assert asyncio.run(WSHandler._handle(socket, object())) is None
    assert heard == ["lost"]
