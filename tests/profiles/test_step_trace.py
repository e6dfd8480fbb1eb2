"""Steps in traces of torch.profiler: launches with their operator, module and line, and the passes over a running program."""

import dataclasses
import itertools
import json
import os
from pathlib import Path

import pytest
import torch
from tilescope import cli
from tilescope.captures.step_boundaries import Boundaries
from tilescope.captures.step_passes import Measured, Passes
from tilescope.collectors.foreign_files import operator_costs, step_trace
from tilescope.commands import choices
from tilescope.files import bounded_reading, json_shape
from tilescope.models import ledger, next_steps, step_changes, step_problems
from tilescope.models.compare import Side
from tilescope.notebook import modelling, opened_run, opening, script_running
from tilescope.runs import steps, store
from tilescope.table.step import BACKWARD, FORWARD, OPTIMIZER, Operator, Step, StepLaunch

FIXTURES = Path(__file__).parent / "fixtures" / "steps"
MAIN, AUTOGRAD = 1, 2
ADD = {
    "Input Dims": [[64, 32], [64, 32], []],
    "Input type": ["float", "float", "Scalar"],
    "Concrete Inputs": ["", "", "1"],
}


class Trace:
    """A trace that is written event by event. Each launch starts 3 µs after its call and lasts 5 µs."""

    def __init__(self):
        self.events = []
        self.launches = 0

    def range(self, name, start, end, cat="cpu_op", thread=MAIN, *, pid=1, **args):
        at = {"pid": pid, "tid": thread, "ts": start, "dur": end - start}
        self.events.append({"ph": "X", "cat": cat, "name": name, "args": args, **at})

    def launch(self, name, call, thread=MAIN, **args):
        self.launches += 1
        self.range("cudaLaunchKernel", call, call + 1, "cuda_runtime", thread, correlation=self.launches)
        args |= {"correlation": self.launches, "stream": 7, "device": 0}
        self.range(name, call + 3, call + 8, "kernel", 7, pid=0, **args)

    def write(self, path):
        gpu = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
        path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [gpu], "traceEvents": self.events}))
        return path


def train(trace, start, mark="", optimizer="Optimizer.step#SGD.step"):
    """A step of 100 µs: a forward operator in a module, its backward one in another thread, and the optimizer's."""
    if mark:
        trace.range(mark, start, start + 100, "user_annotation")
    trace.range("tilescope.module#Net", start, start + 30, "user_annotation")
    trace.range("net.py(7): forward", start + 1, start + 29, "python_function")
    trace.range("tilescope.module#Net.layers.0", start + 2, start + 28, "user_annotation")
    forward = {"Sequence number": 40}
    trace.range("aten::add", start + 5, start + 15, **forward, **ADD)
    trace.launch("add_kernel", start + 6, grid=[2, 1, 1], block=[128, 1, 1])
    name = "autograd::engine::evaluate_function: AddBackward0"
    trace.range(name, start + 35, start + 55, thread=AUTOGRAD, **forward)
    trace.range("aten::mul", start + 40, start + 50, thread=AUTOGRAD, **ADD)
    trace.launch("mul_kernel", start + 41, thread=AUTOGRAD)
    trace.launch("mul_tail", start + 46, thread=AUTOGRAD)
    trace.range(optimizer, start + 60, start + 80, "user_annotation")
    trace.range("aten::add_", start + 61, start + 70, **ADD)
    trace.launch("add__kernel", start + 62)


def trained(mark):
    """A trace of three such steps."""
    trace = Trace()
    for number in range(3):
        train(trace, 1000 + 100 * number, f"{mark}#{number}")
    return trace


def whole(trace, tmp_path):
    return step_trace.read(trace.write(tmp_path / "trace.json"))


def test_step_backward_launch_has_its_forward_operators_module(tmp_path):
    step = whole(trained("tilescope.step"), tmp_path)
    assert step.window == pytest.approx(100e-6)
    assert [launch.name for launch in step.launches] == ["add_kernel", "mul_kernel", "mul_tail", "add__kernel"]
    places = [(one.name, one.module, one.site, one.direction) for one in map(step.operator, step.launches)]
    module = "Net.layers.0", "net.py:7"
    assert places == [
        ("aten::add", *module, FORWARD), ("aten::mul", *module, BACKWARD), ("aten::mul", *module, BACKWARD),
        ("aten::add_", "", "", OPTIMIZER),
    ]  # fmt: skip
    # Two launches of one call share what the operator needs.
    assert [launch.part for launch in step.launches] == [1, 0.5, 0.5, 1]
    assert step.launches[0].call == pytest.approx(-3e-6)
    assert step.next_call == pytest.approx(97e-6)


@pytest.mark.parametrize(
    ("mark", "optimizer", "found", "window"),
    [("ProfilerStep#{}", "x", "a step of torch.profiler", 100e-6), ("", "Optimizer.step#SGD.step", "from one step of SGD to the next", 100e-6),
     ("", "x", "the whole trace", 361e-6)],
)  # fmt: skip
def test_step_of_another_tools_trace_is_found(mark, optimizer, found, window, tmp_path):
    trace = Trace()
    for number in range(4):
        train(trace, 1000 + 100 * number, mark.format(number), optimizer)
    step = whole(trace, tmp_path)
    assert (step.found, step.window) == (found, pytest.approx(window))


def test_step_marks_without_launches_are_passed_over(tmp_path):
    trace = Trace()
    train(trace, 1000, "ignored")
    trace.range("ProfilerStep#7", 5000, 5100, "user_annotation")
    assert whole(trace, tmp_path).found == "the whole trace"


def test_step_stop_and_absence_of_the_cpu_are_noted(tmp_path):
    trace = Trace()
    train(trace, 1000, "tilescope.step#0")
    trace.range("aten::item", 1085, 1095)
    trace.range("cudaStreamSynchronize", 1088, 1093, "cuda_runtime")
    trace.range("cudaMemcpyAsync", 1086, 1087, "cuda_runtime")
    train(trace, 2000, "tilescope.step#1")
    step = whole(trace, tmp_path)
    assert [(stop.name, stop.operator) for stop in step.stops] == [("cudaStreamSynchronize", "aten::item")]
    assert step.away == ((pytest.approx(86e-6), pytest.approx(996e-6)),)


def test_loaded_step_is_no_table_of_cases(tmp_path):
    path = trained("ProfilerStep").write(tmp_path / "trace.json")
    found = opened_run.open_file(path, tmp_path / "runs")
    text, html = repr(found), found._repr_html_()
    assert text.count("saves about") == 1 and text.index("A step takes 100 µs") < text.index("saves about")
    assert html.startswith("<pre>") and "add_kernel" in html and "<table" not in html


def test_opened_trace_has_a_ledger_with_modelled_bytes(tmp_path, capsys):
    path = trained("ProfilerStep").write(tmp_path / "trace.json")
    assert cli.main(["open", str(path), "--runs", str(tmp_path / "runs")]) == 0
    assert "= 100 µs\n" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert cli.main(["model", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "modelled" in said
    assert "counted" not in said
    opened = modelling.open_model(str(folder))
    (folder / steps.STEP).write_bytes(b"{")
    assert len(opened.problems) == 3 and "modelled" in repr(opened)
    with pytest.raises(store.StoreError, match="cannot be read"):
        steps.read(folder)


def large_adds(trace, start, mark):
    """A step of two additions of 16 MiB inputs, which wait for the GPU and not for the CPU."""
    shapes = ADD | {"Input Dims": [[2048, 2048], [2048, 2048], []]}
    trace.range(mark, start, start + 100, "user_annotation")
    for call in (10, 20):
        trace.range("aten::add", start + call, start + call + 5, **shapes)
        trace.launch("add_kernel", start + call + 1, grid=[2, 1, 1], block=[128, 1, 1])
        trace.events[-1] |= {"ts": start + 30 * (call // 10), "dur": 20}


def test_step_is_predicted_for_another_gpu_and_never_as_measured(tmp_path, capsys):
    trace = Trace()
    for number in range(3):
        large_adds(trace, 1000 + 100 * number, f"ProfilerStep#{number}")
    path, runs = trace.write(tmp_path / "trace.json"), str(tmp_path / "runs")
    assert cli.main(["open", str(path), "--device", "h100", "--runs", runs]) == 0
    said = capsys.readouterr().out
    assert "A step on NVIDIA H100 80GB HBM3 is predicted to take" in said
    assert "each kernel keeps its distance from its roof" in said
    assert "above roof" in said and "no case gave a result" not in said and "nothing was measured" not in said
    (folder,) = (tmp_path / "runs").iterdir()
    found = modelling.open_model(str(folder))
    ratio = 4.8 / 3.35
    assert [launch.duration for launch in found.step.launches] == pytest.approx([20e-6 * ratio] * 2)
    assert abs(ledger.of(found.step, found.run.device).error) < ledger.TOLERANCE
    assert not found.run.device.measured
    assert cli.main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "at the roofs" in shown and "above roof" in shown and "no problem found" not in shown
    assert "gpu_time" not in set(found.table["metric"])
    assert cli.main(["open", str(path), "--device", "gtx", "--runs", runs]) == 2
    assert "'gtx' is not one known GPU: name one of NVIDIA A100" in capsys.readouterr().err
    for event in trace.events:
        event["args"].pop("Input Dims", None)
    bare = str(trace.write(tmp_path / "bare.json"))
    assert cli.main(["open", bare, "--device", "h100", "--runs", runs]) == 2
    assert "record it with record_shapes=True" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "values", "cost"),
    [
        ("aten::mm", [[4, 8], [8, 16]], ["c10::BFloat16"] * 2, [], (2 * (32 + 128 + 64), 2 * 4 * 8 * 16)),
        ("aten::addmm", [[16], [4, 8], [8, 16]], ["float"] * 3, [], (4 * (16 + 32 + 128 + 64), 2 * 4 * 8 * 16)),
        ("aten::copy_", [[8], [8]], ["float", "c10::BFloat16"], [], (48, None)),
        ("aten::add_", [[8], [8], []], ["float", "float", "Scalar"], [], (96, None)),
        ("aten::embedding", [[1000, 8], [5]], ["float", "long int"], [], (40 + 2 * 5 * 32, None)),
        ("aten::cudnn_convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], ["float"] * 2, ["", "", "[1, 1]", "[2, 2]", "[1, 1]"],
         (4 * (192 + 108 + 64), 2 * 64 * 27)),
        ("aten::_scaled_dot_product_flash_attention", [[1, 2, 16, 8]] * 3, ["c10::Half"] * 3, ["", "", "", "0.", "True"], (4 * 2 * 256, 2 * 256 * 16)),
        ("aten::_flash_attention_forward", [[1, 16, 2, 8]] * 3, ["c10::Half"] * 3, ["0.", "False"], (4 * 2 * 256, 4 * 256 * 16)),
        ("aten::item", [[]], ["Scalar"], [], (None, None)),
    ],
)  # fmt: skip
def test_cost_of_operator_is_modelled_from_its_shapes(name, shapes, dtypes, values, cost):
    assert operator_costs.cost(name, shapes, dtypes, values) == cost


@pytest.mark.parametrize("name", ["llama_inference_h200", "transformer_block_h200"])
def test_ledger_of_recorded_step_adds_up(name):
    data = bounded_reading.data_of(FIXTURES / f"{name}.json.gz")
    step = json_shape.fit(data, Step, "")
    found = ledger.of(step, modelling.contents.device("NVIDIA H200", "sm_90"))
    assert abs(found.error) < ledger.TOLERANCE
    kernels = [launch for launch in step.launches if launch.kind == "kernel"]
    assert all(launch.counted for launch in kernels)
    products = [
        one
        for one in kernels
        if (step.operator(one).name, step.operator(one).dtypes[0]) == ("aten::mm", "c10::BFloat16")
    ]
    counted = sum(launch.counted.get("tensor_ops_bf16", 0.0) for launch in products)
    modelled = sum((step.operator(launch).flops or 0.0) * launch.part for launch in products)
    assert counted == pytest.approx(modelled, rel=0.01)


def test_boundaries_training_follows_the_first_optimizer(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch import nn\n"
        "nets = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))]\n"
        "optimizers = [torch.optim.SGD(net.parameters()) for net in nets]\n"
        "for _ in range(5):\n"
        "    for net, optimizer in zip(nets, optimizers):\n"
        "        net(torch.ones(2, 4)).sum().backward()\n"
        "        optimizer.step()\n"
    )
    seen = []
    assert script_running.run_script(str(script), [], Boundaries(seen.append).watched()) == ""
    assert seen == ["training step, from one step of SGD to the next"] * 5


def test_boundaries_inference_follows_the_outermost_module():
    net, seen = torch.nn.Sequential(torch.nn.Linear(4, 4)), []
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with Boundaries(seen.append).watched(), torch.no_grad():
        for _ in range(6):
            net(torch.ones(2, 4))
            compiled(torch.ones(2, 4))
    assert seen == ["calls of Sequential"] * 4


def test_sites_of_a_slower_trace_are_found_by_order_and_name(tmp_path):
    plain, slow = Trace(), Trace()
    train(plain, 1000, "tilescope.step#0")
    slow.launch("other_kernel", 990)
    train(slow, 1000, "tilescope.step#0")
    for trace in plain, slow:
        trace.range("aten::item", 1085, 1095)
        trace.range("cudaStreamSynchronize", 1088, 1093, "cuda_runtime")
    slow.range("train.py(3): <module>", 1084, 1099, "python_function")
    plain.events = [event for event in plain.events if event["cat"] != "python_function"]
    step, stacks = whole(plain, tmp_path), whole(slow, tmp_path)
    assert {one.site for one in step.operators} == {""}
    found = modelling.with_sites(step, stacks)
    assert [found.operator(launch).site for launch in found.launches] == ["net.py:7", "net.py:7", "net.py:7", ""]
    assert [stop.site for stop in found.stops] == ["train.py:3"]


def test_trace_of_too_many_launches_says_what_it_leaves_out(tmp_path, monkeypatch):
    trace = trained("tilescope.step").write(tmp_path / "trace.json")
    told = "what launched each kernel is not shown above 3 launches a step: trace fewer calls"
    assert told not in opening.open_file(trace, tmp_path / "runs").run.notes
    monkeypatch.setattr(step_trace, "MOST", 3)
    loaded = opening.open_file(trace, tmp_path / "runs")
    assert told in loaded.run.notes and not loaded.of_step


def test_measured_step_is_a_run_with_counted_bytes(tmp_path):
    trace = trained("tilescope.step")
    counters = {"dram__bytes_read.sum": 8192.0, "dram__bytes_write.sum": 4096.0}
    measured = Measured(
        "training step", 90e-6, ["add_kernel", "mul_kernel", "another", "add__kernel"], [counters] * 4, "9.0",
        trace.write(tmp_path / "trace.json").read_bytes(), seconds={"counting": 1.0}, notes=["a note"],
    )  # fmt: skip
    made = modelling.kept(measured, "train.py", tmp_path / "runs")
    assert [launch.counted.get("dram_bytes_read") for launch in made.step.launches] == [8192, 8192, None, 8192]
    assert made.run.notes[:2] == (
        "a note",
        "1 of 4 launches were not found among the counted ones, so their bytes are modelled",
    )
    assert set(made.table["source"]) == {"torch_profiler", "cupti"}
    assert made.step.plain == pytest.approx(90e-6)
    faster = modelling.kept(dataclasses.replace(measured, plain=45e-6), "train.py", tmp_path / "runs")
    found = step_changes.of(Side(made), Side(faster))
    assert found and found.sentence.startswith("the step is 2× faster: 90.0 µs → 45.0 µs")
    text = repr(modelling.open_model(str(made.folder)))
    assert "= 90.0 µs\n" in text and "12.3 kB counted" in text
    assert "12.3 kB counted" in made._repr_html_()
    made.write_problems(tmp_path / "problems.json")
    assert [one["operator"] for one in json.loads((tmp_path / "problems.json").read_text())][:1] == ["aten::mul"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU's own events are used there")
@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_passes_time_and_trace_the_steps_of_a_program(monkeypatch, cuda):
    moments = itertools.count()

    class Event:
        def __init__(self, **options):
            self.at = 0

        def record(self):
            self.at = next(moments)

        def elapsed_time(self, later):
            return 7.0 * (later.at - self.at)

    cuda({"Event": Event, "synchronize": lambda: None})
    monkeypatch.setenv("TEARDOWN_CUPTI", "")
    monkeypatch.delenv("TEARDOWN_CUPTI")
    asked, told, net = [], [], torch.nn.Linear(4, 4)
    passes = Passes(asked.append, count=False, tell=told.append)
    while not passes.done:
        passes.begin("calls of Linear")
        net(torch.ones(2, 4))
    measured = passes.measured
    assert (measured.plain, asked, passes.missing) == (pytest.approx(7e-3), [True, False], "")
    assert told == ["timing the step", "tracing the step"]
    assert measured.trace.count(b'"tilescope.step#') == 5
    assert b"test_step_trace.py" in measured.stacks
    assert os.environ["TEARDOWN_CUPTI"] == "1"  # else each later launch is slower


def test_problems_file_gives_tune_the_workloads_of_a_step(tmp_path):
    data = bounded_reading.data_of(FIXTURES / "llama_inference_h200.json.gz")
    step = json_shape.fit(data, Step, "")
    problems = step_problems.of(step, ledger.of(step, modelling.contents.device("NVIDIA H200", "sm_90")))
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([dataclasses.asdict(one) for one in problems]))
    parser = cli.parser("tune")
    given = parser.parse_args(["tune", "matmul", "--problems", str(path)])
    assert choices.chosen(given)["workloads"][:2] == ["4096x14336x4096-bf16", "4096x4096x14336-bf16"]
    given = parser.parse_args(["tune", "causal_attention", "--problems", str(path)])
    assert choices.chosen(given)["workloads"] == ["1x8x4x4096x4096x128-bf16"]
    with pytest.raises(ValueError, match="has no problem of softmax: it has causal_attention, matmul"):
        choices.chosen(parser.parse_args(["tune", "softmax", "--problems", str(path)]))
    path.write_text("[1]")
    with pytest.raises(ValueError, match="is no file of problems"):
        step_problems.read(path, "matmul")
    with pytest.raises(ValueError, match=r"no file missing\.json: make it with 'tilescope model --problems"):
        step_problems.read(Path("missing.json"), "matmul")


def test_library_is_suggested_with_a_recording_where_it_is_faster():
    shapes, dtypes = (
        ((4096, 1024), (), (1024,), (1024,)),
        ("c10::BFloat16", "ScalarList", "c10::BFloat16", "c10::BFloat16"),
    )
    operator = Operator("aten::native_layer_norm", "aten::layer_norm", shapes, dtypes, "Net.norm", "", FORWARD, 16.8e6)
    gpu = modelling.contents.device("NVIDIA H200", "sm_90")

    def kinds(seconds):
        step = Step((StepLaunch("norm", "kernel", 0.0, seconds, operator=0),), (operator,), seconds)
        return [(one.kind, one.text) for one in next_steps.suggestions(step, ledger.of(step, gpu), gpu)]

    ((kind, text),) = kinds(40e-6)
    assert kind == "library"
    assert "layer_norm, recorded at 4096x1024-bf16" in text
    assert kinds(5e-6) == []


def test_passes_too_few_steps_say_how_many_are_needed():
    passes = Passes()
    for _ in range(3):
        passes.begin("calls of Net")
    passes.close()
    assert "it made 3 steps, and about 30 are needed" in passes.missing
    assert passes.done


def test_model_without_a_gpu_says_what_to_do(tmp_path, capsys):
    script = tmp_path / "none.py"
    script.write_text("")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["model", "--runs", str(tmp_path), str(script)]) == 2
    assert "tilescope open" in capsys.readouterr().err
