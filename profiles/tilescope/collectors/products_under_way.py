"""Which instructions run while products of the tensor cores are under way, told from SASS. Pure text.

A product (wgmma) runs beside the instructions that follow it until its group is waited for. ptxas puts that wait where it
likes, even ahead of arithmetic that was written before it, which then runs alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from tilescope.collectors.compiled_text import Text

_PRODUCT = re.compile(r"\b[A-Z]GMMA\.")
#: A product that ends a group, and the wait until so many groups are left.
_GROUP, _WAIT = re.compile(r"\bgsb0\b"), re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+|\d+)")
_LABEL, _BRANCH = re.compile(r"^(\.L\w+):"), re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
#: What no instruction follows but by a label.
_END = re.compile(r"^(?:BRA|BRX|EXIT|RET)\b")

#: Groups that are told apart: a way on which none is waited for adds one each time round.
_MOST = 8


def beside(code: Iterable[Text]) -> Counter[int] | None:
    """Instructions of each source line before which a product began that no wait has ended; None without products.

    Products themselves are not counted. Where ways meet, a product is under way if it is on one of them.
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
    """Count once from top to bottom. ``entered`` has the groups under way at each label, and takes what branches bring there."""
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
