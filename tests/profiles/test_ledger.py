"""A step's ledger adds up, and each moment of it belongs to one part."""

import dataclasses

import pytest
from tilescope.hardware.ceilings import PRODUCTS
from tilescope.models import ledger, next_steps, step_tables, step_text
from tilescope.table.run import Device
from tilescope.table.step import COLLECTIVE, COPY, Operator, Step, StepLaunch, Stop

H200 = next(one for one in PRODUCTS if one.name == "NVIDIA H200")
DEVICE = Device(H200.name, H200.target, 132, H200.l2_bytes, H200.memory_bytes, True, H200.ceilings)
US = 1e-6
#: 48 MB take 10 µs at the datasheet's bandwidth.
ADD = Operator(
    "aten::add", "aten::add", ((4_000_000,),) * 2, ("float",) * 2, "Net.layers.0", "net.py:4", "forward", 48e6, None
)


def launch(start, duration, **more):
    """A launch of ``ADD`` that the CPU called 2 µs before its start."""
    return StepLaunch(
        **{"name": "add", "kind": "kernel", "start": start * US, "duration": duration * US, "stream": "7",
           "call": (start - 2) * US, "operator": 0} | more
    )  # fmt: skip


def step(*launches, window, **more):
    return Step(tuple(launches), (ADD,), window * US, **more)


def parts(of):
    """The parts in microseconds that are not 0."""
    found = ledger.of(of, DEVICE)
    assert found.total == pytest.approx(found.step)
    return {name: round(seconds / US, 6) for name, seconds in found.parts.items() if seconds > 1e-12}


def test_ledger_two_streams_overlap_time_counts_once():
    beside = step(launch(0, 20), launch(10, 20, stream="8"), window=30)
    assert parts(beside) == {"floor": 20, "above": 10}
    shares = [round(entry.share / US, 6) for entry in ledger.of(beside, DEVICE).entries]
    assert shares == [15, 15]


def test_ledger_copy_and_collective_have_what_kernels_leave():
    of = step(
        launch(0, 20),
        launch(10, 20, kind=COLLECTIVE, name="ncclDevKernel_AllReduce", operator=None),
        launch(15, 10, kind=COPY, name="Memcpy HtoD", moved=100.0, operator=None),
        window=30,
    )
    assert parts(of) == {"floor": 10, "above": 10, "copies": 5, "communication": 5}


def test_ledger_gap_is_divided_at_the_cpus_call():
    of = step(launch(0, 10), launch(30, 10, call=25 * US), window=50, next_call=48 * US, away=((12 * US, 20 * US),))
    assert parts(of) == {"floor": 20, "gaps": 5 + 2, "cpu": 15 - 8 + 8, "idle": 8}


def test_ledger_profiler_slows_the_cpu_alone():
    slow = step(launch(0, 10), launch(30, 10, call=29 * US), window=40, plain=25 * US)
    assert parts(slow) == {"floor": 20, "gaps": 0.25, "cpu": 4.75}
    busy = ledger.of(dataclasses.replace(slow, plain=15 * US), DEVICE)
    assert busy.error == pytest.approx(1 / 3)
    assert "33% more than the step" in step_text.sentence(busy)


def test_floor_counted_bytes_come_before_modelled_ones():
    counted = {"dram_bytes_read": 24e6, "dram_bytes_written": 0.0, "tensor_ops_bf16": 98.94e6}
    of = step(launch(0, 20, counted=counted), launch(20, 20, operator=None), window=40)
    found = ledger.of(of, DEVICE).entries
    assert found[0].floor == ledger.Floor(pytest.approx(5e-6), "HBM", True)
    assert found[1].floor is None
    assert parts(of) == {"floor": 5, "above": 15, "unknown": 20}


def test_tables_layers_are_one_place_and_sorted_by_distance():
    other = dataclasses.replace(ADD, module="Net.layers.1")
    of = Step((launch(0, 20), launch(20, 20, operator=1), launch(40, 11, name="other")), (ADD, other), 51 * US)
    found = ledger.of(of, DEVICE)
    kernels = step_tables.kernels(of, found)
    assert kernels[["function", "module", "launches"]].to_numpy().tolist() == [
        ["add", "Net.layers.*", 2],
        ["other", "Net.layers.*", 1],
    ]
    tree = step_tables.tree(of, found)
    assert list(zip(tree["depth"], tree["module"], tree["launches"], strict=True)) == [
        (0, "Net", 3), (1, "layers", 3), (2, "0", 2), (2, "1", 1)
    ]  # fmt: skip


def suggested(of):
    return next_steps.suggestions(of, ledger.of(of, DEVICE), DEVICE)


def by_kind(of):
    return {one.kind: one for one in suggested(of)}


def kinds(of):
    return [one.kind for one in suggested(of)]


def like(of, name, **more):
    """An operator of another name."""
    return dataclasses.replace(of, name=name, outer=name, **more)


def test_suggestions_good_step_is_told_so():
    good = step(launch(0, 12), window=12)
    found = ledger.of(good, DEVICE)
    assert kinds(good) == []
    assert next_steps.already_good(found).startswith("This step is already good: 83 %")


def test_suggestions_no_floor_is_not_zero():
    unknown = ledger.of(step(launch(0, 12, operator=None), window=16), DEVICE)
    assert "the GPU is busy for 75 % of it. Most kernels have no known floor" in next_steps.already_good(unknown)


def test_suggestions_cpu_bound_step_wants_a_graph():
    late = [launch(40 * n, 11, call=(40 * n - 1) * US, operator=None) for n in range(50)]
    of = step(*late, window=2000, next_call=1999 * US)
    (found,) = suggested(of)
    assert found.kind == "graph"
    assert found.saving == pytest.approx(50 * 28 * US)


def test_suggestions_stop_names_the_line_and_silent_without_a_gap():
    stop = Stop("cudaStreamSynchronize", 12 * US, 31 * US, "aten::item", "", "train.py:9")
    launches = [launch(0, 30, operator=None), launch(60, 40, call=58 * US, operator=None)]
    of = step(*launches, window=100, stops=(stop,))
    assert "item at train.py:9" in by_kind(of)["stop"].text
    queued = step(launch(0, 60, operator=None), launch(60, 40, operator=None), window=100, stops=(stop,))
    assert kinds(queued) == []


LIBRARIES = ("aten::_addmm_activation", "aten::_cudnn_rnn", "aten::native_batch_norm", "NativeBatchNormBackward0")


@pytest.mark.parametrize(("name", "said"), [("aten::mul", ["fuse"]), *((name, []) for name in LIBRARIES)])
def test_library_kernels_are_no_part_of_a_chain(name, said):
    of = step(*(launch(40 * n, 40) for n in range(4)), window=160)
    assert kinds(dataclasses.replace(of, operators=(like(ADD, name),))) == said


def test_chain_on_other_sizes_passes_nothing_on():
    other = dataclasses.replace(ADD, shapes=((3_000_000,),) * 2, bytes_needed=36e6)
    of = Step((launch(0, 12), launch(12, 9, operator=1)), (ADD, other), 21 * US)
    # 84 MB stay 84 MB, so one kernel at 10/12 of the roof takes as long as two.
    assert kinds(of) == []


def test_launch_on_other_sizes_joins_no_chain_around_it():
    weight = dataclasses.replace(ADD, name="aten::copy_", shapes=((1000, 1000),) * 2, bytes_needed=6e6)
    of = Step((launch(0, 12), launch(12, 2, operator=1), launch(14, 12)), (ADD, weight), 26 * US)
    (found,) = suggested(of)
    # 2 × 48 MB less a link of 32 MB; the copy of the weight stays a launch.
    assert found.text.startswith("Fuse add into one kernel") and found.fewer == 1
    assert found.saving == pytest.approx(24 * US - 64e6 / 4.8e12 / 0.85)


@pytest.mark.parametrize(
    ("first", "second", "trains", "links"),
    [
        ("aten::add", "aten::mul", True, 2),
        ("aten::copy_", "aten::mul", True, 2),
        ("aten::add_", "aten::mul", True, 1),
        ("aten::add", "aten::native_layer_norm", True, 1),
        ("aten::add", "aten::native_layer_norm", False, 2),
    ],
)
def test_tensor_that_is_needed_again_is_written(first, second, trains, links):
    operators = [like(ADD, name) for name in (first, second)]
    later = dataclasses.replace(MM, direction="backward" if trains else "forward")
    launches = [launch(0, 20), launch(20, 20, operator=1), launch(40, 1, operator=2)]
    of = Step(tuple(launches), (*operators, later), 41 * US)
    found = by_kind(of)["fuse"]
    assert found.saving == pytest.approx(40 * US - (96e6 - links * 16e6) / 4.8e12 / 0.85)


@pytest.mark.parametrize(("name", "fewer"), [("Memcpy DtoD (Device -> Device)", [1]), ("Memcpy HtoD", [])])
def test_copy_on_the_gpu_joins_a_chain(name, fewer):
    copy = like(ADD, "aten::copy_", bytes_needed=32e6)
    of = Step((launch(0, 20, kind=COPY, name=name, moved=16e6), launch(20, 20, operator=1)), (copy, ADD), 40 * US)
    assert [one.fewer for one in suggested(of)] == fewer


def test_joined_tensors_reach_half_of_the_roof():
    halves = like(ADD, "aten::cat", shapes=((2_000_000,),) * 2, bytes_needed=32e6)
    of = Step((launch(0, 20), launch(20, 20, operator=1)), (halves, ADD), 40 * US)
    (found,) = suggested(of)
    # 32 and 48 MB less the joined tensor's 16 MB, once written and once read.
    assert found.saving == pytest.approx(40 * US - 48e6 / 4.8e12 / 0.5)


@pytest.mark.parametrize(("kernel", "said"), [("sm80_xmma_fprop_f32f32", True), ("sm80_xmma_fprop_tf32f32", False)])
def test_call_that_multiplies_as_tf32_wants_none_for_its_transposes(kernel, said):
    convolution = dataclasses.replace(
        ADD, name="aten::cudnn_convolution", outer="aten::conv2d", dtypes=("float",) * 2, flops=2.0 * 4096**3
    )
    transposes, multiplies = launch(0, 2000, name="nchwToNhwcKernel"), launch(2000, 2000, name=kernel)
    of = Step((transposes, multiplies), (convolution,), 4000 * US)
    assert ("dtype" in kinds(of)) == said


@pytest.mark.parametrize(("columns", "pads"), [(4095, True), (4092, False)])
def test_compile_gains_by_padding_odd_sizes_alone(columns, pads):
    odd = dataclasses.replace(
        MM, shapes=((4096, columns), (columns, 4096)), dtypes=("c10::BFloat16",) * 2, flops=2.0 * 4096 * 4096 * columns
    )
    plain = compiled(0)
    launches = (*plain.launches, launch(65, 400, operator=2))
    of = dataclasses.replace(plain, launches=launches, operators=(ADD, MM, odd), window=465 * US)
    found = by_kind(of)
    assert ("pads products" in found["compile"].text) == pads
    # A caller who chooses the sizes needs no copies, and saves no more than there is above the roof.
    assert 0 < found["padding"].saving <= found["padding"].most


@pytest.mark.parametrize(("takes", "reached"), [(15, 0.85), (30, 0.5)])
def test_compile_makes_a_slow_copy_quicker_and_no_reduction(takes, reached):
    plain, saving = compiled(0), {}
    for name in ("copy_", "sum"):
        other = dataclasses.replace(ADD, name=f"aten::{name}", shapes=((5_000_000,),) * 2)
        launches = (*plain.launches, launch(65, takes, operator=2))
        of = dataclasses.replace(plain, launches=launches, operators=(ADD, MM, other), window=95 * US)
        saving[name] = by_kind(of)["compile"].saving
    # One that takes more than twice its bytes' time reads in one order and writes in another.
    assert saving["copy_"] - saving["sum"] == pytest.approx(takes * US - 48e6 / 4.8e12 / reached)


@pytest.mark.parametrize(
    ("least", "saving", "most", "told"),
    [
        (9, 9.5, 9.4, "saves about 9.5 µs (9.5 % of the step)"),
        (6, 8, 9, "saves about 8.0 µs (8.0 % of the step), between 6.0 µs and 9.0 µs"),
        (1, 7, 12, "saves about 7.0 µs (7.0 % of the step), between nothing and 12 µs"),
    ],
)
def test_suggestion_tells_how_sure_it_is(least, saving, most, told):
    one = next_steps.Suggestion("fuse", "Fuse", least * US, saving * US, most * US)
    assert one.line(100 * US) == f"Fuse: {told}"


def test_change_saves_no_more_than_the_cpu_allows():
    of = step(launch(0, 40), launch(40, 40), window=80, cpu=76 * US)
    (found,) = suggested(of)
    # One launch of two is left, for which the CPU needs 38 µs.
    assert found.kind == "fuse" and found.least <= found.saving == pytest.approx(42 * US)
    # A stop costs a step no more than the CPU waits in it, where that is late in all else.
    stop = Stop("cudaStreamSynchronize", 39 * US, 41 * US, "aten::item", "", "net.py:9")
    late = step(launch(0, 10), launch(70, 10, call=69 * US), window=80, cpu=70 * US, next_call=79 * US, stops=(stop,))
    assert by_kind(late)["stop"].saving == pytest.approx(2 * US)


@pytest.mark.parametrize(("slow", "said"), [(17, True), (10.5, False)])
def test_beside_kernel_is_slower_only_where_it_is(slow, said):
    more = {"kind": COLLECTIVE, "name": "ncclDevKernel_AllReduce", "operator": None, "stream": "9", "grid": (24, 1, 1)}
    alone = [launch(30 * n, 10) for n in range(4)]
    late = [launch(200 + 30 * n, slow) for n in range(4)]
    of = step(*alone, *late, *(launch(start, 60, **more) for start in (199, 259)), window=320)
    told = "add is 1.70× slower beside ncclDevKernel_AllReduce, which occupies 24 of 132 multiprocessors: 17.0 µs (4 launches), alone 10.0 µs (4)."
    assert step_text.communication(of, ledger.of(of, DEVICE), DEVICE) == [told] * said
    # A kernel that always runs beside one has no time alone, and one on other sizes is another.
    changed = (dataclasses.replace(one, grid=(3, 1, 1)) if one in alone else one for one in of.launches)
    other = dataclasses.replace(of, launches=tuple(changed))
    assert step_text.communication(other, ledger.of(other, DEVICE), DEVICE) == []


MM = Operator("aten::mm", "aten::mm", ((8, 8), (8, 8)), ("float",) * 2, "Net.layers.0", "", "backward", 768.0, 1024.0)


def compiled(late):
    """Two chains of two additions around a product, each launch called ``late`` microseconds before the GPU is free."""
    launches = [launch(13 * n, 13 - late, operator=1 if n == 2 else 0, call=(13 * n - 1) * US) for n in range(5)]
    return Step(tuple(launches), (ADD, MM), 65 * US, next_call=64 * US, found="training step")


def test_suggestions_compile_saves_its_chains_and_waits():
    found = by_kind(compiled(0))
    # Two chains of 26 µs, each of 64 MB once fused.
    chains = 2 * (26 * US - 64e6 / 4.8e12 / 0.85)
    assert found["compile"].saving == pytest.approx(chains, rel=1e-3)
    assert "graph" not in found
    # The additions reach 10/13 of the roof, and their fused kernel no less.
    assert found["compile"].least == pytest.approx(2 * (26 * US - 64e6 / 4.8e12 / (10 / 13)), rel=1e-3)
    # The launches are 2 µs shorter, and wait 1 µs for the CPU and 1 µs for their start. Three of five are left, and of the waits.
    found = by_kind(compiled(2))
    assert found["compile"].saving == pytest.approx(chains - 8 * US + 0.4 * 10 * US, rel=1e-3)
    # A CPU that is late now needs as long for each launch that is left.
    late = dataclasses.replace(compiled(2), window=125 * US, next_call=124 * US, cpu=125 * US)
    found = by_kind(late)
    assert found["compile"].saving == pytest.approx((125 - 0.6 * 125) * US, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "kernel", "sure"),
    [
        ("aten::cudnn_convolution", "nchwToNhwcKernel", False),
        ("aten::cudnn_convolution", "sm90_xmma_fprop_nhwckrsc_nhwc", True),
        ("aten::mm", "nvjet", True),
    ],
)
def test_compile_is_unsure_where_it_may_turn_convolutions(name, kernel, sure):
    of = dataclasses.replace(compiled(0), operators=(ADD, dataclasses.replace(MM, name=name)))
    launches = tuple(dataclasses.replace(one, name=kernel) if one.operator else one for one in of.launches)
    of = dataclasses.replace(of, launches=launches)
    compile_ = by_kind(of)["compile"]
    assert (compile_.least > 0) == sure
    assert ("between nothing and" in compile_.line(of.window)) != sure


@pytest.mark.parametrize(("operator", "sure"), [("aten::item", False), ("aten::nonzero", True)])
def test_module_that_reads_a_value_has_only_a_bound(operator, sure):
    stop = Stop("cudaStreamSynchronize", 10 * US, 11 * US, operator, "Net.layers.0", "net.py:9")
    of = dataclasses.replace(compiled(0), stops=(stop,))
    found = by_kind(of)
    # Trying it needs an edit.
    compile_ = found["compile" if sure else "edit"]
    assert (compile_.least > 0) == sure
    assert compile_.text.endswith(", once item is gone at net.py:9") != sure


@pytest.mark.parametrize(
    ("modules", "said"),
    [(("Net.encoder", "Net.encoder"), "Net.encoder"), (("Net.layers.0", "Net.layers.1"), "the model"), (("Net", "Net"), "the model")],
)  # fmt: skip
def test_compile_names_the_one_module_of_all_chains(modules, said):
    adds = [dataclasses.replace(ADD, module=module) for module in modules]
    of = dataclasses.replace(compiled(0), operators=(adds[0], MM, adds[1]))
    second = [one for one in of.launches if one.operator == 0 and one.start > 30 * US]
    later = (dataclasses.replace(one, operator=2) if one in second else one for one in of.launches)
    texts = [one.text for one in suggested(dataclasses.replace(of, launches=tuple(later)))]
    assert any(text.startswith(f"Compile {said} (torch.compile), which fuses 2 chains") for text in texts)


def test_suggestions_loop_whose_cpu_stays_late_wants_graphs():
    small = dataclasses.replace(ADD, shapes=((1000,),) * 2, bytes_needed=12e3)
    launches = [launch(20 * n, 6, operator=1 if n == 2 else 0, call=(20 * n - 1) * US) for n in range(5)]
    of = Step(tuple(launches), (small, MM), 100 * US, next_call=99 * US, found="training step", cpu=100 * US)
    found = by_kind(of)
    assert "reduce-overhead" in found["graph"].text
    # The chains save 20 µs. The CPU needs 60 µs for three launches of five; the waits of 70 µs end with a graph.
    assert found["compile"].saving == pytest.approx(40 * US)
    assert found["graph"].saving == pytest.approx((20 + 70 - 3) * US)
    assert found["graph"].least == pytest.approx((20 + 70 - 6) * US)
    # Graphs would end at each value that a module reads.
    stop = Stop("cudaStreamSynchronize", 0.0, 1 * US, "aten::item", "Net", "net.py:9")
    reads = dataclasses.replace(of, stops=(stop,))
    assert "edit" in kinds(reads) and "graph" not in kinds(reads)
    optimizer = dataclasses.replace(small, direction="optimizer")
    last = launch(100, 6, operator=2, call=99 * US)
    ends = {"window": 120 * US, "next_call": 119 * US, "cpu": 120 * US}
    longer = dataclasses.replace(of, launches=(*launches, last), operators=(small, MM, optimizer), **ends)
    found = by_kind(longer)
    # The graphs end before the optimizer, whose wait of 14 µs stays. They have two thirds of five launches.
    assert found["graph"].saving == pytest.approx((20 + 84 - 14 - 5 * 2 / 3) * US)
    calls = dataclasses.replace(of, found="calls of step")
    texts = [one.text for one in suggested(calls) if one.kind == "graph"]
    assert len(texts) == 1 and texts[0].startswith("Capture the step")


def test_suggestions_fused_optimizer_by_the_parameters_size():
    roots = Operator("aten::_foreach_sqrt", "aten::_foreach_sqrt", (), (), "", "", "optimizer")
    last = dataclasses.replace(roots, name="aten::_foreach_addcdiv_", outer="aten::_foreach_addcdiv_")
    moved = {"dram_bytes_read": 96e6, "dram_bytes_written": 96e6}
    of = Step((launch(0, 60, counted=moved), launch(60, 340, operator=1)), (roots, last), 400 * US)
    (found,) = suggested(of)
    assert found.kind == "optimizer"
    assert found.saving == pytest.approx(400 * US - 7 * 96e6 / 4.8e12 / 0.85)
