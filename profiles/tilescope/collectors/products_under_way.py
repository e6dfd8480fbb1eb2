"""Counts the instructions that run while tensor-core products are in flight, from SASS. Pure text.

A product (wgmma) runs asynchronously until the program waits for its group. ptxas places that wait freely, even ahead of arithmetic
that precedes it in the source, which then does not overlap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tilescope.collectors.compiled_text import Text

_PRODUCT = re.compile(r"\b[A-Z]GMMA\.")
#: The mark of a product that ends a group, and the wait until at most so many groups are in flight.
_GROUP, _WAIT = re.compile(r"\bgsb0\b"), re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+|\d+)")
_LABEL, _BRANCH = re.compile(r"^(\.L\w+):"), re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
#: Instructions after which the next one is reached only by its label.
_END = re.compile(r"^(?:BRA|BRX|EXIT|RET)\b")

#: Most groups that are counted: a loop without a wait would add one in each pass.
_MOST = 8


def beside(code: Iterable[Text]) -> Counter[int] | None:
    """The instructions of each source line at which a product is in flight; None for code without products.

    Products themselves are not counted. At a label a product is in flight if it is on any path there.
    """
    lines = list(code)
    if not any(_PRODUCT.search(text.text) for text in lines):
        return None
    entered: dict[str, int] = {}
    while True:
        before = dict(entered)
        counted = _walk(lines, entered)
        if entered == before:
            return counted


def _walk(lines: list[Text], entered: dict[str, int]) -> Counter[int]:
    """Counts once from top to bottom. ``entered`` maps labels to groups in flight, and is updated by branches."""
    counted: Counter[int] = Counter()
    groups, open_group = 0, False
    for text in lines:
        if label := _LABEL.match(text.text):
            groups = entered[label[1]] = max(groups, entered.get(label[1], 0))
        elif _PRODUCT.search(text.text):
            open_group = not _GROUP.search(text.text)
            groups = min(groups + (not open_group), _MOST)
        elif wait := _WAIT.search(text.text):
            groups = min(groups, int(wait[1], 0))
        elif text.line and text.address is not None and (groups or open_group):
            counted[text.line] += 1
        if branch := _BRANCH.search(text.text):
            entered[branch[1]] = max(groups, entered.get(branch[1], 0))
        if _END.search(text.text):
            groups = 0
    return counted
