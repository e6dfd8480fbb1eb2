"""What a launch's lines say: which costs most, and how to read them."""

from __future__ import annotations

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.units import write

#: The view in a run without lines.
NOTHING = html_text.heading("Source", "This run knows nothing of single lines of this kernel.")
_READING = (
    "A bar is a line's share of the launch, solid where it was measured and hatched where it is predicted. {} "
    "Choose a line, here or there, to see what it became."
)
_CALLED = "What a line calls counts with it."
_APART = "What a line calls in other files is counted apart by ncu: it stands below the source."
_NO_TEXT = (
    "The source of {} was not kept with this run and is not here unchanged: its lines cannot be shown, only counted."
)


def headline(launch: str, hottest: tuple[int, float] | None, column: str, apart: bool) -> str:
    """The ``hottest`` line and its share of ``column``, else the ``launch``. ``apart``: some values are of other files."""
    title = f"Line {hottest[0]} has {write(hottest[1], 'ratio')} of {column}" if hottest else launch
    return html_text.heading(title, _READING.format(_APART if apart else _CALLED))


def no_text(file: str) -> str:
    """That the launch's own file is missing."""
    return html_text.notice("warning", "No source text:", _NO_TEXT.format(file))
