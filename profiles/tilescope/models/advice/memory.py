"""Rules on memory: unnecessary traffic, and accesses that move more bytes than they use. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tilescope.hardware import roofs
from tilescope.models import bound, roofline, traffic
from tilescope.models.advice import waits
from tilescope.models.advice.finding import WORTH, Evidence, Finding
from tilescope.models.advice.subject import LaunchValues, Subject
from tilescope.table import units
from tilescope.table.sources import COUNTERS

#: The least ratio of traffic to the ideal that makes a finding: below it are rounding, tails and metadata.
_EXCESS = 1.1
#: Bytes of a sector.
_SECTOR = 32
#: The widest access of a thread, in bytes; a warp's request of it spans 16 sectors of 32 bytes.
_WIDEST = 16
#: The share of a memory roof from which a launch's whole time is proportional to its bytes.
_BUSY = 0.6
#: The bytes' share of the time from which several launches are a chain that mostly moves bytes.
_MOSTLY = 0.5
#: Accesses, and the word for them in names of metrics.
_WAYS = {"load": "read", "store": "written"}


def extra_bytes(subject: Subject) -> Iterator[Finding]:
    """More HBM bytes than necessary. Bound: bytes moved / bytes needed, over the bytes' share of the time.

    Several launches that mostly move bytes can be fused, which wins more than the bytes: the bound is that of the fused launch.
    ncu empties the caches before each launch, so data that a launch leaves in L2 for the next counts as HBM traffic. A chain of
    launches that fit in L2 therefore yields nothing.
    """
    ratio, source = subject.excess, subject.row["bytes_source"]
    if not ratio > _EXCESS or subject.row["bound"] == "compute" or subject.row["bytes_cold"]:
        return
    launches = subject.row["launches"] or 1
    moved = traffic.by_launch(subject.case, source)
    stem = "dram_bytes" if source in COUNTERS else "unique_bytes"
    values = [subject.total(f"{stem}_{way}", source) for way in ("read", "written")]
    values += [subject.total(f"algorithm_bytes_{way}", "model") for way in ("read", "written")]
    title = f"{launches} launches move" if launches > 1 else "Moves"
    needed = "that two passes over the input need" if subject.two_passes else "the algorithm needs"
    title += f" {units.times(ratio)} the bytes {needed}"
    if subject.two_passes:
        remedy = (
            "A value of all the input is needed before any of it can be used: make it in one launch, and do all that "
            "follows in a second one that loads the input once and stores only the result."
        )
    elif launches > 1:
        remedy = (
            "Results of one launch go through HBM to the next: compute them in one @triton.jit kernel that loads each "
            "input once, keeps what lies between in registers and stores only the result."
        )
    else:
        remedy = (
            "Data is loaded again after L2 has dropped it: keep the row in registers (one BLOCK for the row), or walk "
            "it in chunks small enough that the second pass still hits L2; for tiles, order the programs in groups "
            "(a GROUP_M swizzle of tl.program_id) so that neighbours share theirs."
        )
    share, formula = _concerned(subject, moved, source), "bytes moved / bytes needed"
    if share < 1:
        ratio = 1 / (1 - share + share / ratio)
        formula += f", over the {share * 100:.0f} % of the time they take"
    alone = subject.bound(ratio, formula)
    fused = subject.fused() if launches > 1 and share >= _MOSTLY and alone.ratio >= WORTH else None
    yield subject.finding("extra-bytes", title, remedy, values, fused or alone)


def _concerned(subject: Subject, moved: Mapping[int | None, float], source: str) -> float:
    """The share of GPU time that is proportional to bytes.

    It counts the whole of a launch that keeps HBM busy, and of others the time of their bytes at the roof. It is 1 where nothing
    was timed.
    """
    roof, time = subject.roof(subject.row["memory_roof"]), subject.row["gpu_time"]
    if not (subject.measured and roof and time > 0):
        return 1.0
    times = {
        launch: known.value
        for launch in moved
        if launch is not None and (known := subject.case.launch_time(launch, source))
    }
    if not times or len(times) < len(moved) or not sum(times.values()) > 0:
        times, moved = {0: time}, {0: sum(moved.values())}
    taken = {launch: moved[launch] / roof.value for launch in times}
    concerned = sum(times[launch] if taken[launch] >= _BUSY * times[launch] else taken[launch] for launch in times)
    return concerned / sum(times.values())


def repeated_requests(subject: Subject) -> Iterator[Finding]:
    """Repeated requests of the same bytes from a busy L2. Bound: bytes requested / distinct bytes.

    A case at a roof has nothing to gain and yields nothing.
    """
    if subject.saturation >= bound.AT_ROOF:
        return
    for launch in subject.launches:
        requested, unique = (launch.get(f"{name}_bytes_read", "interpreter") for name in ("requested", "unique"))
        at, time = launch.places.get(subject.case.counted_by), launch.get("gpu_time", "torch_profiler", *COUNTERS)
        moved = roofline.moved_bytes(subject.case, "l2", at) if at is not None else None
        roof = subject.roof("l2")
        if not (requested and unique and unique.value and moved and time and time.value and roof):
            continue
        ratio, busy = requested.value / unique.value, moved.value / time.value / roof.value
        if ratio < _EXCESS or busy < _BUSY:
            continue
        yield subject.finding(
            "repeated-requests",
            f"Asks L2 for each byte {ratio:.1f} times, and L2 is {busy * 100:.0f} % busy",
            "Load once and keep it: hold the row in registers between the passes over it, or take larger tiles so that "
            "each loaded element is used more often.",
            [launch.get("l2_to_l1_bytes", *COUNTERS), requested, unique, roof, time],
            subject.bound(ratio, "bytes requested / distinct bytes", launch),
            launch=launch,
        )


def uncoalesced(subject: Subject) -> Iterator[Finding]:
    """Requests that touch more 32-byte sectors than their bytes fill. Bound: sectors touched / sectors if all were filled.

    A warp's request of ``w`` bytes a thread fills ``w`` sectors (32 threads, 32 bytes each); ncu counts the touched ones. Without
    counters the interpreter's share of used sectors gives the same ratio. Loads and stores are weighed by their requested bytes,
    because one change of the order may fix both. A case at the HBM roof has nothing to gain and yields nothing, and neither has a
    launch whose programs each waste one sector at most, as for a scalar.
    """
    if subject.saturation >= bound.AT_ROOF and not subject.excess > _EXCESS:
        return
    for launch in subject.launches:
        touched = {way: _sectors(launch, way) for way in _WAYS}
        for way, (ratio, values) in touched.items():
            asked = {other: _asked(subject, launch, other) for other in _WAYS}
            blocks, bytes_asked = launch.get("grid_blocks"), asked[way]
            few = blocks and bytes_asked and bytes_asked.value * (ratio - 1) <= _SECTOR * blocks.value
            if ratio < _EXCESS or few:
                continue
            fewer, formula = ratio, "sectors touched / sectors filled"
            moved = {other: known.value * touched[other][0] for other, known in asked.items() if known}
            if len(moved) == len(_WAYS) and any(moved.values()):
                fewer = sum(moved.values()) / sum(moved[other] / touched[other][0] for other in moved)
                formula = "sectors of loads and stores / the same, all full"
            line, used = (
                launch.get(f"{name}_{_WAYS[way]}", "interpreter") for name in ("wasteful_line", "sector_efficiency")
            )
            worst = f", worst at line {line.value:.0f}" if line and used and used.value * _EXCESS < 1 else ""
            yield subject.finding(
                f"uncoalesced-{way}s",
                f"Uncoalesced {way}s{worst}: {units.text(1 / ratio, 'ratio')} of each 32-byte sector is used, {units.times(ratio)} the traffic",
                "Neighbouring threads should take neighbouring addresses: let tl.arange run along the dimension of "
                "stride 1 (mind the order of a 2-D block's offsets), and pad rows to a stride that is a multiple of "
                "32 bytes, or of 16 at the least: without it a thread's neighbouring elements are loaded one by one, "
                "a stride apart.",
                [*values, *asked.values()],
                subject.bound(fewer, formula, launch),
                launch=launch,
            )


def _sectors(launch: LaunchValues, way: str) -> tuple[float, list[Evidence | None]]:
    """The ratio of touched to filled sectors of loads or stores, 1 where it is not known, and its evidence."""
    sectors, width = launch.get(f"sectors_per_{way}", *COUNTERS), launch.get(f"widest_{way}", "compiler")
    share = launch.get(f"sector_efficiency_{_WAYS[way]}", "interpreter")
    if sectors and width and width.value:
        # A thread that takes neighbouring elements one by one touches its sectors again, mostly in L1.
        if share and share.value * _EXCESS > 1 and sectors.value <= _WIDEST and width.value < _WIDEST:
            return 1.0, []
        return sectors.value / width.value, [sectors, width, share]
    if share and share.value:
        return 1 / share.value, [share, width]
    return 1.0, []


def _asked(subject: Subject, launch: LaunchValues, way: str) -> Evidence | None:
    """The bytes that the launch loads or stores; a single launch's are taken as the algorithm's where they are not known."""
    requested = launch.get(f"requested_bytes_{_WAYS[way]}", "interpreter")
    alone = requested is None and subject.row["launches"] == 1
    return subject.total(f"algorithm_bytes_{_WAYS[way]}", "model") if alone else requested


def narrow_loads(subject: Subject) -> Iterator[Finding]:
    """Loads below 16 bytes a thread that fill the queue of loads and stores. Bound: 1 / (1 - the loads' part of that stall).

    Narrow loads that are coalesced cost instructions, and no bytes; without counters of stalls that cost is unknown. Uncoalesced
    accesses and spills fill the queue too, and have rules of their own.
    """
    if subject.saturation >= bound.AT_ROOF or subject.row["bound"] == "compute":
        return
    for launch in subject.launches:
        width, spilled = launch.get("widest_load", "compiler"), launch.get("spill_bytes_stored", "compiler")
        if width is None or not 0 < width.value < _WIDEST or (spilled and spilled.value):
            continue
        loads, stores = (_requests(subject, launch, way) for way in _WAYS)
        if not loads or any(_sectors(launch, way)[0] >= _EXCESS for way in _WAYS):
            continue
        stalled = waits.shares(launch).get("lg_throttle", 0.0) * loads / (loads + stores)
        left = max(1 - stalled, width.value / _WIDEST)
        yield subject.finding(
            "narrow-loads",
            f"Loads of {width.value:.0f} of {_WIDEST} bytes a thread fill the queue of global loads and stores",
            "Triton widens a load when it can prove 16-byte alignment and contiguity: pad the row's stride to a "
            "multiple of 16 bytes, pass it as an argument divisible by 16 (or say so with tl.multiple_of and "
            "tl.max_contiguous), and give each thread at least 16 bytes of the BLOCK (fewer num_warps, or a larger "
            "BLOCK).",
            [width, launch.get("stall_lg_throttle", *COUNTERS), launch.get("sectors_per_load", *COUNTERS)],
            subject.bound(1 / left, "1 / (1 - the loads' part of the stall)", launch, hides=True),
            launch=launch,
        )


def _requests(subject: Subject, launch: LaunchValues, way: str) -> float:
    """The threads' loads or stores (with atomics, a byte each); NaN where their bytes are unknown."""
    asked, width = _asked(subject, launch, way), launch.get(f"widest_{way}", "compiler")
    return asked.value / ((width and width.value) or 1) if asked else math.nan


def at_the_roof(subject: Subject) -> Iterator[Finding]:
    """HBM saturated by necessary bytes. It has no bound, because the gain of fusing depends on the neighbour."""
    use, ratio = bound.memory_use(subject.row), subject.row["bytes_ratio"]
    roof = subject.roof(subject.row["memory_roof"])
    if not (subject.measured and roof and subject.row["bound"] == "memory" and use >= bound.AT_ROOF) or ratio > _EXCESS:
        return
    yield subject.finding(
        "at-the-roof",
        f"At the HBM roof: {units.text(use, 'ratio')} of the {roofs.of_roof(subject.row, subject.device).name}"
        f"{bound.above_roof(use, subject.row, subject.case)}",
        "Only moving fewer bytes helps: fuse with the operation before or after (its result then never leaves the "
        "registers), or store a narrower dtype. 'tilescope fuse' says what a chain would win.",
        [
            subject.of_row("gpu_time", subject.row["time_source"]),
            subject.total("algorithm_bytes_read", "model"),
            subject.total("algorithm_bytes_written", "model"),
            roof,
        ],
    )


def spills(subject: Subject) -> Iterator[Finding]:
    """Register spills. Bound: bytes through L1 / requested, or (requested + spilled) / requested.

    Predicted spill bytes are counted in the code, once a thread; a loop repeats them.
    """
    for launch in subject.launches:
        executed = [launch.get(f"spill_{what}", *COUNTERS) for what in ("loads", "stores")]
        code = [launch.get(f"spill_bytes_{what}", "compiler") for what in ("loaded", "stored")]
        known = [value for value in (*executed, *code) if value and value.value > 0]
        if not known:
            continue
        ratio, formula = _spill_ratio(launch, code)
        spilled = sum(value.value for value in code if value)
        amount = f" {units.text(spilled, 'byte')} a thread" if spilled else ""
        yield subject.finding(
            "spills",
            f"Registers spill{amount} to local memory",
            "Keep less alive in a thread: walk the row in chunks of a smaller BLOCK instead of holding all of it, "
            "spread it over more num_warps while the block's registers allow, take a smaller tile, or fewer "
            "num_stages. A block of 32 warps leaves 64 registers a thread.",
            [*known, launch.get("registers"), launch.get("block_threads"), launch.get("l1_bytes", *COUNTERS)],
            subject.bound(ratio, formula, launch) if ratio else None,
            launch=launch,
        )


def _spill_ratio(launch: LaunchValues, code: list[Evidence | None]) -> tuple[float | None, str]:
    requested = _added([launch.get(f"requested_bytes_{way}", "interpreter") for way in ("read", "written")])
    through = launch.get("l1_bytes", *COUNTERS)
    if not requested:
        return None, ""
    if through and through.value > requested:
        return through.value / requested, "bytes through L1 / bytes requested"
    spilled, threads, blocks = _added(code), launch.get("block_threads"), launch.get("grid_blocks")
    if not (spilled and threads and blocks):
        return None, ""
    return 1 + spilled * threads.value * blocks.value / requested, "(bytes requested + spilled) / bytes requested"


def _added(values: list[Evidence | None]) -> float | None:
    known = [value.value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
