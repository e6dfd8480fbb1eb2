"""JavaScript of a notebook's outputs, compressed: a notebook is saved with megabytes of what draws its figures."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from textwrap import dedent
from typing import Any

from panel_material_ui.base import BUNDLE_PATH

_JS = "application/javascript"
#: JupyterLab's extension of Panel takes this before ``_JS``. Both hold the same, and without the extension only ``_JS`` runs.
_LOAD = "application/vnd.holoviews_load.v0+json"
_SCRIPT, _END = f'<script type="{_JS}">', "</script>"
#: Characters from which on a script is worth packing.
_LONG = 50_000

_UNPACK = """(async () => {
  const bytes = Uint8Array.from(atob("%s"), (letter) => letter.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  %s
})();"""
_RUN = 'document.head.append(Object.assign(document.createElement("script"), { text }));'
_LEND = '(window.tilescopeLent ??= {})["%s"] = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));'
#: The widgets' module, for each of them: it waits for the one that was lent, which another cell's output unpacks.
_BORROW = """const lent = () => window.tilescopeLent?.["%s"];
while (!lent()) await new Promise((tried) => setTimeout(tried, 25));
export default (await importShim(lent())).default;"""


def lender() -> dict[str, str]:
    """A mime bundle with the module of all Material widgets, which ``compressed`` leaves out."""
    return {_JS: _compress(_module(), _LEND % _digest())}


def compressed(data: dict[str, Any], around: Callable[[str], str] = str) -> dict[str, Any]:
    """A mime bundle of Panel's with its long scripts compressed, each of them once.

    What loads a library comes once instead of once for each kind of front end. A view comes without the module that Panel
    writes into it for every widget again. Anything else stays as it is. ``around`` is given the HTML that
    a view is drawn in, and gives what stands there instead.
    """
    if data.keys() == {_JS, _LOAD} and len(data[_JS]) > _LONG:
        return {_JS: _compress(data[_JS], _RUN)}
    place, found, script = data.get("text/html", "").partition(_SCRIPT)
    if len(script) < _LONG:
        return data
    script = script.removesuffix(_END).replace(json.dumps(_module()), json.dumps(_BORROW % _digest()))
    return {**data, "text/html": f"{around(place)}{found}{_compress(script, _RUN)}{_END}"}


def _compress(script: str, then: str) -> str:
    """A script that unpacks ``script`` to ``text`` in the browser, and ``then`` does something with it."""
    return _UNPACK % (base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode(), then)


@lru_cache(maxsize=1)
def _module() -> str:
    """As Panel sends it."""
    return dedent(BUNDLE_PATH.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _digest() -> str:
    """Another version's widgets in the same page need that version's module."""
    return sha256(_module().encode()).hexdigest()[:16]
