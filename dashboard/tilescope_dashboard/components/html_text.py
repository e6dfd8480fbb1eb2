"""Small pieces of HTML. Texts from outside are escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape
from typing import Any

import panel as pn

from tilescope_dashboard.data.units import unbroken

#: Colours derive from ``currentColor``, so they follow the page's theme.
CSS = """
:host { color: inherit; font-family: Inter, Roboto, 'Helvetica Neue', Arial, sans-serif; }
h2 { font-size: 22px; line-height: 1.25; font-weight: 650; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h3 { font-size: 15px; font-weight: 650; margin: 0; }
p { margin: 4px 0 0; font-size: 14px; line-height: 1.5; max-width: 860px; overflow-wrap: anywhere; }
:is(h2, h3) + p { margin-bottom: 10px; }
.quiet { opacity: .72; }
.small { font-size: 13px; }
.stats { display: flex; flex-wrap: wrap; gap: 14px 36px; margin: 14px 0 6px; padding: 0; }
.stat dt { font-size: 12px; opacity: .72; }
.stat dd { margin: 2px 0 0; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; letter-spacing: -0.01em; }
.stat .note { font-size: 12px; font-weight: 400; opacity: .72; letter-spacing: 0; display: block; }
.notice { border-left: 3px solid; padding: 8px 14px; font-size: 14px; line-height: 1.5; border-radius: 2px;
  background: color-mix(in srgb, currentColor 6%, transparent); overflow-wrap: anywhere; }
.notice.info { border-color: #3a87b8; } .notice.warning { border-color: #D55E00; } .notice.error { border-color: #c62828; }
.notice + .notice { margin-top: 4px; }
.notices { display: flex; flex-wrap: wrap; gap: 4px; } .notices .notice { flex: 1 1 auto; margin: 0; }
.notice b { font-weight: 650; } .notice summary { font-size: 14px; }
ul { margin: 6px 0 0; padding-left: 18px; font-size: 13px; line-height: 1.5; } li { overflow-wrap: anywhere; }
progress { appearance: none; width: 100%; height: 6px; border: 0; border-radius: 3px; overflow: hidden; margin-top: 8px;
  background: color-mix(in srgb, currentColor 14%, transparent); }
progress::-webkit-progress-bar { background: color-mix(in srgb, currentColor 14%, transparent); }
progress:not([value]) { background: linear-gradient(90deg, transparent, #2a8ac6, transparent) 0 0 / 40% 100% no-repeat,
  color-mix(in srgb, currentColor 14%, transparent); animation: under-way 1.6s linear infinite; }
progress:not([value])::-webkit-progress-bar { background: transparent; }
progress:not([value])::-moz-progress-bar { background: transparent; }
@keyframes under-way { from { background-position: -70% 0, 0 0; } to { background-position: 170% 0, 0 0; } }
@media (prefers-reduced-motion: reduce) { progress:not([value]) { animation: none; background-position: 50% 0, 0 0; } }
@media (max-width: 640px) { .stats { display: grid; grid-template-columns: 1fr 1fr; gap: 12px 20px; } }
progress::-webkit-progress-value { background: #2a8ac6; } progress::-moz-progress-bar { background: #2a8ac6; }
pre { font-size: 12px; max-height: 160px; overflow: auto; white-space: pre-wrap; margin: 6px 0 0; opacity: .8; }
summary { cursor: pointer; font-size: 13px; }
.greyed { display: flex; flex-wrap: wrap; gap: 4px 16px; } .greyed + .greyed { margin-top: 8px; } .greyed p { flex-basis: 100%; margin: 0; }
.greyed label { display: flex; align-items: center; gap: 9px; min-height: 24px; font-size: 16px; opacity: .64; }
.greyed input { appearance: none; box-sizing: border-box; flex: none; width: 18px; height: 18px; margin: 0 0 0 5px; border: 2px solid; border-radius: 2px; }
.more { margin: 4px 0 8px; } .more > summary { opacity: .72; width: fit-content; }
@media (pointer: coarse) { summary { padding: 10px 0; } .notice > details > summary { margin: -8px 0; } }
"""


class Html(pn.pane.HTML):
    """An HTML pane that keeps a number and its unit on one line."""

    def _transform_object(self, obj: Any) -> dict[str, Any]:
        return super()._transform_object(unbroken(obj or ""))


def pane(markup: str = "", **options: object) -> pn.pane.HTML:
    """A pane with the shared typography. ``markup`` must already be escaped."""
    return Html(markup, stylesheets=[CSS], sizing_mode="stretch_width", margin=(4, 8), **options)


def notice(kind: str, title: str, text: str = "", more: Iterable[str] = ()) -> str:
    """A notice. ``kind`` is ``info``, ``warning`` or ``error``."""
    role = "alert" if kind == "error" else "status"
    head = f"<b>{escape(title)}</b> {escape(text)}"
    points = "".join(f"<li>{escape(point)}</li>" for point in more)
    body = f"<details><summary>{head}</summary><ul>{points}</ul></details>" if points else head
    return f'<div class="notice {kind}" role="{role}">{body}</div>'


def notices(said: Iterable[str]) -> str:
    """``notice``'s, beside each other where there is room: what is below them begins sooner."""
    every = "".join(said)
    return f'<div class="notices">{every}</div>' if every else ""


def heading(title: str, text: str = "") -> str:
    """A view's title with a sentence below it."""
    return f"<h2>{escape(title)}</h2>" + (f'<p class="quiet">{escape(text)}</p>' if text else "")


def subheading(title: str, text: str = "") -> str:
    """A section's title with a sentence below it."""
    return f"<h3>{escape(title)}</h3>" + (f'<p class="quiet small">{escape(text)}</p>' if text else "")


def whose(*origins: str) -> str:
    """A line with the origin of a panel's recordings (``data.recordings.origin``); empty without one."""
    said = "; ".join(filter(None, origins))
    return f'<p class="quiet small">From {escape(said)}.</p>' if said else ""


def more(title: str, lines: Iterable[str]) -> str:
    """A line that unfolds into a list."""
    points = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<details class="more"><summary>{escape(title)}</summary><ul>{points}</ul></details>'


def stats(values: Iterable[tuple[str, str, str]]) -> str:
    """Large numbers: label, value and a note on the source."""
    cells = "".join(
        f'<div class="stat"><dt>{escape(label)}</dt><dd>{escape(value)}'
        + (f'<span class="note">{escape(note)}</span>' if note else "")
        + "</dd></div>"
        for label, value, note in values
    )
    return f'<dl class="stats">{cells}</dl>'


def title_of(markup: str) -> str:
    """The text of the first heading in ``markup``; empty without one."""
    found = re.search(r"<h[23]>(.*?)</h[23]>", markup, re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", found[1])) if found else ""


def plain(text: str) -> str:
    """One escaped line."""
    return escape(" ".join(text.split()))


def status(said: str) -> str:
    """A line that screen readers announce when it changes; nothing for an empty text. Escaped here."""
    return f'<p class="small" role="status">{escape(said)}</p>' if said else ""
