"""Corrections of Panel and Bokeh, each for one version. Those of ``connections`` are in test_connections.py."""

import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import panel as pn
import panel_material_ui as pmui
import pytest
from bokeh.model import Model
from tilescope_dashboard import panel_patches
from tilescope_dashboard.panel_patches import (
    gone,
    page_address,
    page_lifetime,
)  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize(
    ("host", "uri", "found"),
    [
        ("[::1]:5006", "/app", {"hostname": "[::1]", "port": "5006", "pathname": "/app"}),
        ("[::1]", "/app?a=1?b", {"hostname": "[::1]", "pathname": "/app", "search": "?a=1?b"}),
        ("localhost:5006", "/app?", {"hostname": "localhost", "port": "5006", "pathname": "/app", "search": "?"}),
        ("a:b:c", "http://a/app?x#y?z", {"hostname": "a", "pathname": "/app", "search": "?x", "hash": "#y?z"}),
        (None, None, {}),
    ],
)
def test_an_address_is_taken_apart(host: str | None, uri: str | None, found: dict[str, str]) -> None:
    href = f"http:{f'//{host}' if host else ''}{uri or ''}"
    assert page_address.parts("http", host, uri) == {"protocol": "http:", "href": href, **found}
    assert set(found) <= set(pn.io.location.Location.param)


def test_resources_are_panels_and_gathered_once() -> None:
    code = """
from bokeh.models import Plot; from panel.io.resources import Resources
from tilescope_dashboard.panel_patches import page_resources
gathered, real = [], Resources._collect_external_resources
Resources._collect_external_resources = lambda self, name: gathered.append(name) or real(self, name)
def gathers(bundle):
    gathered.clear()
    found = [bundle([Plot()], Resources(mode="server", root_url="/", path_versioner=str)) for _ in range(2)]
    return len(gathered), [line for part in found[-1] for line in str(part).splitlines()]
theirs, ours = gathers(page_resources._panels_bundle), gathers(page_resources.bundle_resources)
assert ours[1] == [line for line in theirs[1] if "bokeh-gl" not in line] != theirs[1], ours
print(theirs[0], ours[0])
"""
    often, once = map(int, bare(code).split())
    assert often == 2 * once > 0


def test_start_of_the_server_does_what_is_slow_for_its_first_page() -> None:
    code = """
import logging, sys
from panel.command.serve import build_single_handler_applications
from panel.io.session import generate_session
from tilescope_dashboard.panel_patches import page_resources
from tilescope_dashboard.serving import guard
from tilescope_dashboard.views.summary import Summary
failed, drawn, update = [], [], Summary.update
Summary.update = lambda view: drawn.append(view) or update(view)
logging.Handler.emit = lambda self, record: failed.append(record.getMessage())
logging.getLogger("tilescope").addHandler(logging.Handler(logging.ERROR))
(app,) = build_single_handler_applications([str(guard.script())]).values()
page = generate_session(app).document
assert not failed, failed
assert drawn and "narwhals.stable.v1" in sys.modules  # which Bokeh imports with the first table
assert [key[:2] for key in page_resources._bundles] == [("server", "/")]
assert "place-home" in str(page.to_json())
"""
    bare(code)


def test_page_is_sent_the_models_that_views_use_alone() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "dashboard").rglob("*.py"))
    used = {*re.findall(r"pmui\.([A-Z]\w+)", code), "NotificationArea"}
    assert used == page_lifetime.USED
    page_lifetime.settle()
    known = {model.__name__ for model in Model.model_class_reverse_map.values()}
    assert not [name for name in used if getattr(pmui, name)._data_model.__name__ not in known]
    assert pmui.IntSlider._data_model.__name__ not in known


def test_page_does_not_follow_whether_the_server_is_busy() -> None:
    before = page_lifetime._following()
    with page_lifetime.not_busy():
        pmui.Page()
    assert page_lifetime._following() == before


def test_choice_that_is_gone_changes_nothing() -> None:
    bar = pmui.Select(label="Kernel", options=["choose one", "softmax"])
    field = bar.get_root().data
    gone.install()
    bar.options, bar.value = ["matmul", "softmax"], "softmax"
    field.value = "choose one"  # as the page's message does
    bar._process_events({"value": "choose one"})
    assert bar.value == field.value == "softmax"
    bar._process_events({"value": "matmul"})
    assert bar.value == "matmul"
