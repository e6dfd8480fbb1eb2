"""Small pieces of HTML. Texts from outside are escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import panel as pn
from tilescope.files.bounded_reading import printable

from tilescope_dashboard.data.meanings import meaning, term
from tilescope_dashboard.data.units import unbroken

#: Colours derive from ``currentColor``, so they follow the page's theme.
CSS = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


class Html(pn.pane.HTML):
    """An HTML pane that keeps a number and its unit on one line, and shows characters that would turn the text as escapes."""

    def _transform_object(self, obj: Any) -> dict[str, Any]:
        return super()._transform_object(unbroken(printable(obj or "")))


class Spoken(Html):
    """An HTML pane whose new text screen readers announce: the part of the page that holds it stays."""

    def _get_properties(self, doc: Any) -> dict[str, Any]:
        return {**super()._get_properties(doc), "html_attributes": {"role": "status"}}


def pane(markup: str = "", *css: str, kind: type[Html] = Html, **options: object) -> pn.pane.HTML:
    """A pane with the shared typography, and more ``css``. ``markup`` must already be escaped."""
    return kind(markup, stylesheets=[CSS, *css], sizing_mode="stretch_width", margin=(4, 8), **options)


def notice(kind: str, title: str, text: str = "") -> str:
    """A notice. ``kind`` is ``info``, ``warning`` or ``error``."""
    role = "alert" if kind == "error" else "status"
    return f'<div class="notice {kind}" role="{role}"><b>{escape(title)}</b> {escape(text)}</div>'


def notices(said: Iterable[str]) -> str:
    """``notice``'s, beside each other where there is room: what is below them begins sooner."""
    every = "".join(said)
    return f'<div class="notices">{every}</div>' if every else ""


def paragraph(text: str) -> str:
    """A paragraph; nothing for an empty text."""
    return f'<p class="quiet">{escape(text)}</p>' if text else ""


def heading(title: str, text: str = "") -> str:
    """A view's title with a sentence below it."""
    return f"<h2>{escape(title)}</h2>{paragraph(text)}"


def subheading(title: str, text: str = "") -> str:
    """A section's title with a sentence below it."""
    return f"<h3>{escape(title)}</h3>" + (f'<p class="quiet small">{escape(text)}</p>' if text else "")


def whose(*origins: str) -> str:
    """A line with the origin of a panel's recordings (``data.recordings.origin``); empty without one."""
    said = "; ".join(filter(None, origins))
    return f'<p class="quiet small">From {escape(said)}.</p>' if said else ""


def link(label: str, **address: str) -> str:
    """A line with a link to that address of the page."""
    return f'<p><a href="?{escape(urlencode(address))}">{escape(label)}</a></p>'


def more(title: str, lines: Iterable[str]) -> str:
    """A line that unfolds into a list."""
    points = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<details class="more"><summary>{escape(title)}</summary><ul>{points}</ul></details>'


def stats(values: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers: label, value and a note on the source; nothing without any."""
    cells = "".join(
        f'<div class="stat" title="{escape(meaning(label))}"><dt>{explained(label)}</dt><dd>{escape(value)}'
        + (f'<span class="note">{escape(note)}</span>' if note else "")
        + "</dd></div>"
        for label, value, note in values
    )
    return f'<dl class="stats">{cells}</dl>' if cells else ""


def explained(title: str, words: str = "") -> str:
    """The title, or other ``words``, as a link to the title's entry in the glossary (``browser/page.js``); text where it has none."""
    shown, entry = escape(words or title), escape(term(title))
    return f'<a href="#glossary" data-term="{entry}">{shown}</a>' if entry else shown


def title_of(markup: str) -> str:
    """The text of the first heading in ``markup``; empty without one."""
    found = re.search(r"<h[23]>(.*?)</h[23]>", markup, re.DOTALL)
    return text_of(found[1]) if found else ""


def text_of(markup: str) -> str:
    """The text of ``markup``, a line for each of its blocks."""
    blocks = re.split(
        r"<style.*?</style>|</?(?:p|div|li|h[1-6]|dt|dd|tr|summary|details)\b[^>]*>", markup, flags=re.DOTALL
    )
    lines = (" ".join(unescape(re.sub(r"<[^>]*>", " ", block)).split()) for block in blocks)
    return "\n".join(filter(None, lines))


def plain(text: str) -> str:
    """One escaped line."""
    return escape(" ".join(text.split()))


def status(said: str) -> str:
    """A line that screen readers announce when it changes; nothing for an empty text. Escaped here."""
    return f'<p class="small" role="status">{escape(said)}</p>' if said else ""
