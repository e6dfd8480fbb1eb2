"""A report as one HTML file that makes no request, in the colours that the reader's system prefers.

BokehJS is inlined: with Panel imported, Bokeh's own ``file_html(INLINE)`` asks a CDN. A policy in the file forbids every
request and every script but the two that are named by their digest; BokehJS makes functions of tick formats, which is why
it allows ``unsafe-eval``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jinja2
from bokeh.embed import json_item
from bokeh.util.paths import bokehjs_path
from markupsafe import Markup
from tilescope.files.bounded_reading import printable
from tilescope.models.advice import Finding

from tilescope_dashboard.components import cards, code_pair
from tilescope_dashboard.data.meanings import MEANINGS, meaning
from tilescope_dashboard.data.units import unbroken
from tilescope_dashboard.figures.style import DARK, LIGHT, Theme
from tilescope_dashboard.report.content import Listing, Part, Report, Table

#: Longer tables belong in the app.
_ROWS = 200
_COLOURS = [field.name for field in fields(Theme) if isinstance(getattr(LIGHT, field.name), str)]


def _marked(look: Theme) -> Theme:
    """The theme with each colour's opacity written out: nothing else in a figure is, so the page finds them by it."""
    colours: dict[str, Any] = {name: f"{getattr(look, name)}ff" for name in _COLOURS}
    return replace(look, **colours, series=tuple(f"{colour}ff" for colour in look.series))


def _darker() -> dict[str, str]:
    """The dark theme's colour for each of the light one's, as figures have them."""
    light, dark = _marked(LIGHT), _marked(DARK)
    return dict(zip(light.series, dark.series, strict=True)) | {
        getattr(light, name): getattr(dark, name) for name in _COLOURS
    }


def html(report: Report) -> str:
    scripts = [_script(text) for text in scripts_of_figures().values()]
    allowed = " ".join(_digest(script) for script in scripts)
    return _document("report.html", allowed, title=report.title, report=report, scripts=scripts)


def site_page(template: str, title: str, files: Iterable[str], **content: Any) -> str:
    """A page whose scripts are the ``files`` beside it."""
    return _document(template, "'self'", title=title, files=files, **content)


@functools.cache
def scripts_of_figures() -> dict[str, str]:
    """Scripts of a page with figures, by their names as files."""
    library = Path(bokehjs_path()) / "js" / "bokeh.min.js"
    return {library.name: library.read_text(encoding="utf-8"), "report.js": script("report.js")}


def script(name: str) -> str:
    """One of our scripts."""
    return _templates().get_template(name).render()


def _document(template: str, allowed: str, **content: Any) -> str:
    policy = (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template(template)
        .render(
            policy=policy,
            styles=Markup(cards.CSS),  # noqa: S704 - our own
            colours=_data(_darker()),
            figures=_figures,
            grid=_grid,
            cards=_cards,
            lines=_lines,
            rows=_ROWS,
            terms=sorted(MEANINGS.items(), key=lambda one: one[0].casefold()),
            **content,
        )
    )


@functools.cache
def _templates() -> jinja2.Environment:
    files = jinja2.Environment(loader=jinja2.PackageLoader("tilescope_dashboard"), autoescape=True, finalize=_visible)
    files.filters["unbroken"] = unbroken
    return files


def _visible(value: object) -> object:
    # Markup is a text of ours.
    return printable(value) if type(value) is str else value


def _script(text: str) -> Markup:
    # "</script" inside a string of the library would end the element.
    return Markup(text.replace("</script", "<\\/script"))  # noqa: S704 - files of BokehJS and our own


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _data(value: Any) -> Markup:
    """JSON for a script element, which the text ``</script>`` would end."""
    return Markup(json.dumps(value).replace("<", "\\u003c"))  # noqa: S704 - no markup is left in it


def _figures(part: Part, *origin: str) -> list[Markup]:
    """The part's figures as data. ``origin`` goes into the names of the files that they are saved as."""
    look = replace(_marked(LIGHT), origin=origin)
    items = [json_item(draw(look)) for draw in part.drawings]
    for item in items:
        # Panel's own models, 150 kB a figure where the app makes the report; no figure holds one.
        item["doc"].pop("defs", None)
    return [_data(item) for item in items]


def _grid(table: Table) -> dict[str, Any]:
    """A table's titles and cells, each with whether it is a number."""
    numbers = [column.number for column in table.columns]
    return {
        "titles": [(column.title, column.number, meaning(column.title)) for column in table.columns],
        "rows": [list(zip(row, numbers, strict=True)) for row in table.cells(_ROWS)],
        "more": max(0, len(table.rows) - _ROWS),
    }


def _cards(found: Iterable[Finding]) -> Markup:
    return Markup(unbroken(printable(cards.cards(tuple(found)))))  # noqa: S704 - escaped where it is made


def _lines(shown: Listing) -> Markup:
    own = code_pair.source(shown.text, shown.file, shown.rows, shown.columns, shown.spans) if shown.text else ""
    # Escaped where it is made.
    return Markup(printable(own + code_pair.elsewhere(shown.rows, shown.file, shown.columns)))  # noqa: S704
