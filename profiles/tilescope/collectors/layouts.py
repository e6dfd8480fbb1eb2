"""Finds a kernel's transfers between registers and shared memory in its TTGIR, by Triton's own bindings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilescope.collectors import compiled_text, shared_layouts
from tilescope.runs.listings import Shared, Transfer

#: Operations with the places of the tensor and the buffer among operands and results; None: the compiler lays out the memory.
_OPERATIONS: dict[str, tuple[int, int | None]] = {
    "ttg.local_load": (1, 0), "ttg.local_store": (0, 1), "ttg.local_alloc": (0, 1),
    "ttg.async_copy_global_to_local": (0, 1), "ttg.convert_layout": (0, None),
}  # fmt: skip
#: Metrics of a layout of shared memory with fewer conflicts.
CURE = ("conflicts_left", "cure_vec", "cure_per_phase", "cure_max_phase", "cure_padding", "cure_order")
_TILE = re.compile(r"<((?:\d+x)+)(?:!tt\.ptr<)?[a-z]+(\d+)")
_MATRIX = re.compile(r"\s*(ld|st)matrix")
_NAME = re.compile(r'(?:^|= )"?(ttg\.\w+)')


def transfers(ttgir: str, ptx: str, file: str) -> list[Transfer]:
    """The transfers of a compiled kernel, in the order of its TTGIR. Tiles with layouts that this module does not know are left out.

    ``ptx`` says which lines move matrices.
    """
    from triton._C.libtriton import gluon_ir  # noqa: PLC0415 - the binding has no other name

    from tilescope.execution import offline  # noqa: PLC0415 (it imports torch and triton)

    module = offline.parsed(ttgir)
    operations = list[Any]()
    module.walk(lambda one: operations.append(one) if one.get_name() in _OPERATIONS else None)
    named = ((_NAME.search(text.text.strip()), text.line) for text in compiled_text.read("ttgir", ttgir, file))
    lines = [line or 0 for found, line in named if found and found[1] in _OPERATIONS]
    code = ((_MATRIX.match(text.text), text.line) for text in compiled_text.read("ptx", ptx, file))
    matrices = {(of[1], line) for of, line in code if of}
    builder, found, buffers = gluon_ir.GluonOpBuilder(module.context), list[Transfer](), dict[Any, int]()
    for one, line in zip(operations, lines, strict=True):
        tile, buffer = _OPERATIONS[one.get_name()]
        values = [one.get_operand(n) for n in range(one.get_num_operands())]
        values += [one.get_result(n) for n in range(one.get_num_results())]
        of = _TILE.search(str(values[tile].get_type())) if len(values) > 1 else None
        if of is None or "tensor<" not in str(values[tile].get_type()):  # an empty buffer
            continue
        shape = tuple(int(extent) for extent in of[1].split("x")[:-1])
        shared = None if buffer is None else _shared(builder.get_gluon_layout_from_memdesc(values[buffer]))
        if buffer is not None and shared is None:
            continue
        registers = _registers(builder, values[tile], shape)
        # A conversion that stays within its warps needs no shared memory.
        if buffer is None and _registers(builder, values[1], shape).warp_bases == registers.warp_bases:
            continue
        way = {"ttg.local_load": "ld", "ttg.local_store": "st", "ttg.local_alloc": "st"}.get(one.get_name())
        # Registers with the same element are moved once.
        distinct = [basis for basis in registers.reg_bases if any(basis)]
        held, lanes, warps = (
            tuple(map(tuple, bases)) for bases in (distinct, registers.lane_bases, registers.warp_bases)
        )
        bits = max(8, int(of[2]))
        number = buffers.setdefault((shared, shape, bits) if shared else line, len(buffers))
        found.append(
            Transfer(one.get_name()[4:], line, shape, bits, held, lanes, warps, shared, number, (way, line) in matrices)
        )
    return found


def cured(moved: Sequence[Transfer], line: int, conflicts: float, by_line: Mapping[int, float]) -> dict[str, float]:
    """Metrics of ``CURE``: the layout with the fewest conflicts for the buffer that conflicts at ``line``; empty without a better one.

    ``conflicts`` are the launch's, ``by_line`` those of its lines.
    """
    apart = [one for one in moved if one.line == line and one.shared and one.shared.kind != "tiles"]
    taken = {one: shared_layouts.wavefronts(one) for one in apart}
    worst = max(taken, key=lambda one: taken[one][0] - taken[one][1], default=None)
    if worst is None or taken[worst][0] == taken[worst][1]:
        return {}
    own = [one for one in moved if one.buffer == worst.buffer]
    found = shared_layouts.cure(own)
    if found is None:
        return {}
    layout, then = found
    now, least = (sum(shared_layouts.wavefronts(one)[n] for one in own) for n in (0, 1))
    gone = sum(by_line.get(one, 0.0) for one in {one.line for one in own}) * (now - then) / (now - least)
    padding = layout.paddings[0][1] if layout.paddings else 0
    order = int("".join(str(dimension + 1) for dimension in layout.order))
    values = (conflicts - gone, layout.vec, layout.per_phase, layout.max_phase, padding, order)
    return dict(zip(CURE, values, strict=True))


def _registers(builder: Any, value: Any, shape: tuple[int, ...]) -> Any:
    """The layout of a tensor as Gluon's ``DistributedLinearLayout``."""
    layout = builder.get_gluon_layout_from_tensor(value)
    if hasattr(layout, "reg_bases"):
        return layout
    return builder.to_linear_layout(layout._to_ir(builder), list(shape))


def _shared(layout: Any) -> Shared | None:
    """A layout of Gluon's as data; None for another kind."""
    kind = type(layout).__name__
    if kind == "SwizzledSharedLayout":
        return Shared("swizzled", tuple(layout.order), layout.vec, layout.per_phase, layout.max_phase)
    if kind == "NVMMASharedLayout":
        order = (0, 1) if layout.transposed else ()
        return Shared("tiles", order, swizzle=layout.swizzle_byte_width)
    if kind in ("SharedLinearLayout", "PaddedSharedLayout"):
        paddings = getattr(layout, "interval_padding_pairs", ())
        return Shared("linear", bases=tuple(map(tuple, layout.offset_bases)), paddings=tuple(map(tuple, paddings)))
    return None
