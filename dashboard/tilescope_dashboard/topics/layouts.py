"""Layouts: the lane, the register and the bank of each element of a tile that moves between registers and shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from tilescope.collectors import shared_layouts
from tilescope.runs.listings import Transfer
from tilescope.table import units

from tilescope_dashboard.topics.sentence import Sentence

#: Columns of a tile with one dimension, and the most rows and columns that are drawn.
_WRAP, _MOST = 32, 64


def options(transfers: Sequence[Transfer]) -> dict[str, Transfer]:
    """The distinct transfers by their labels, those with the most conflicts first."""
    apart = list(dict.fromkeys(transfers))
    beyond = {one: -_beyond(one) for one in apart}
    apart.sort(key=lambda one: beyond[one])
    return {f"{n + 1}. line {one.line}: {one.operation} {_tile(one)}": one for n, one in enumerate(apart)}


def _tile(transfer: Transfer) -> str:
    return f"{'×'.join(map(str, transfer.shape))}, {transfer.bits} bits"


def _beyond(transfer: Transfer) -> int:
    taken, least = shared_layouts.wavefronts(transfer) if transfer.shared else (0, 0)
    return taken - least


def elements(transfer: Transfer) -> pd.DataFrame:
    """A row for each element of the tile's first rows and columns: where it is, and the words that its phase asks of its bank.

    More than one word in a bank is a conflict. ``bank`` and ``words`` are absent where the compiler lays out the memory.
    """
    places = shared_layouts.elements(transfer)
    shape = transfer.shape if len(transfer.shape) > 1 else (max(1, transfer.shape[0] // _WRAP), _WRAP)
    flat = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), transfer.shape)
    warp, lane, register = np.indices(flat.shape)
    found = pd.DataFrame(
        {
            "row": (flat // shape[-1]).ravel(), "column": (flat % shape[-1]).ravel(), "warp": warp.ravel(), "lane": lane.ravel(),
            "register": register.ravel(),
        }
    )  # fmt: skip
    if transfer.shared:
        address, phase, words = shared_layouts.requests(transfer)
        bank = address // shared_layouts.WORD % shared_layouts.BANKS
        found = found.assign(bank=bank.ravel(), words=words[phase, bank].ravel())
    shown = found[(found["row"] < _MOST) & (found["column"] < _MOST)]
    return shown.drop_duplicates(["row", "column"]).sort_values(["row", "column"], ignore_index=True)


def sentence(transfer: Transfer) -> Sentence:
    """What the transfer takes, and the layout that would take less."""
    title = f"Line {transfer.line}: {transfer.operation} of {_tile(transfer)}"
    if transfer.shared is None:
        return Sentence(
            f"{title}: the compiler lays out the memory between", "A cell is an element in the colour of its lane."
        )
    taken, least = shared_layouts.wavefronts(transfer)
    now = f"The layout is {transfer.shared.text}"
    if taken == least:
        said = f"{title}: no bank conflicts, {units.several(taken, 'wavefront')} a warp"
        return Sentence(said, f"{now}. A cell is an element in the colour of its lane.")
    found = shared_layouts.cure([transfer])
    cure = f", and {found[0].text} takes {found[1]}" if found and transfer.shared.kind != "tiles" else ""
    return Sentence(
        f"{title}: {taken} wavefronts a warp, {least} without bank conflicts",
        f"{now}{cure}. A cell is an element in the colour of its bank, strong where its request asks the bank for other words too.",
    )
