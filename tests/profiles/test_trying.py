"""Suggestions that are applied to a running program: what they change, that results are compared, and that all is undone."""

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch
from tilescope.captures import trying
from tilescope.captures.step_boundaries import Boundaries
from tilescope.models import step_text
from tilescope.table.step import KERNEL, Step, StepLaunch, Tried
from torch import nn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="modules of the CPU are tried where there is no GPU")


def quick():
    """Stands for the time of a step."""
    yield
    return 1.0


class Program:
    """A loop of training steps, in which a change is tried once its modules are known."""

    def __init__(self, dropout=0.0, net=None):
        torch.manual_seed(0)
        self.net = net or nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, 2))
        self.batches = [torch.full((3, 8), float(step)).cos() + torch.arange(8.0).sin() for step in (1, 2, 3)]
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.seen, self.trial, self.result = [], None, None
        self.boundaries = Boundaries(self.begin)

    def begin(self, found):
        if self.trial is not None and not self.trial.gi_running:
            try:
                next(self.trial)
            except StopIteration as ended:
                self.result, self.trial = ended.value, None

    def run(self, kind="", place="", steps=20, time=quick):
        with self.boundaries.watched():
            for step in range(steps):
                self.boundaries.annotating = step == 0
                if step == 1 and kind:
                    self.trial = trying.tried(kind, place, self.boundaries, time=time)
                loss = self.net(self.batches[step % 3]).square().sum()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.seen.append(loss.item())
        return self.result


@pytest.fixture(autouse=True)
def _without_cuda(cuda):
    cuda({"synchronize": lambda: None})


@pytest.mark.parametrize(("kind", "place"), [("optimizer", ""), ("dtype", ""), ("library", "layer_norm"), ("stop", "")])
def test_change_keeps_results_and_the_program(kind, place):
    plain, changed = Program(), Program()
    plain.run()
    found = changed.run(kind, place)
    assert (found.plain, found.changed, found.why) == (1.0, 1.0, "")
    assert found.difference <= found.limit
    # Calls for the comparison leave no trace in the training.
    assert changed.seen == pytest.approx(plain.seen, rel=1e-4)
    assert not changed.optimizer.param_groups[0]["fused"]


def test_compiled_module_is_found_by_place_and_undone():
    program, compilations = Program(), []
    program.run(steps=1)

    def backend(graph, inputs):
        compilations.append(graph)
        return graph

    own = torch.compile(program.net[3], backend=backend)
    own(torch.ones(1, 8))
    with trying.Undo() as undo:
        trying.compiled(program.boundaries, "Sequential.1", undo, backend="eager")
        assert ["forward" in vars(one) for one in (program.net, *program.net)] == [False, False, True, False, False]
    assert not any("forward" in vars(one) for one in program.net)
    # The program's own compiled code is kept.
    own(torch.ones(1, 8))
    assert len(compilations) == 1


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


def test_loop_that_ends_by_a_value_ends_without_stops():
    value, turns = torch.zeros(()).as_subclass(OnGpu), 0
    with trying.Undo() as undo:
        trying.without_stops(Program().boundaries, "", undo)
        while value.item() < 5 and turns < 500:
            value.add_(1)
            turns += 1
    assert 5 < turns < 500


class Stateful(nn.Module):
    """Counts its calls, replaces a buffer, changes its argument, and has a parameter that the loss does not need."""

    def __init__(self):
        super().__init__()
        self.net, self.unused, self.calls = nn.Linear(8, 2), nn.Linear(8, 1), 0
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.calls += 1
        self.mean = 0.9 * self.mean + x.mean(0)
        x.mul_(0.99)
        self.also = self.unused(x)
        return Both(self.net(x), self.also)


class Both(list):
    """Two results, of which the program needs the first."""

    def __init__(self, first, second):
        super().__init__([first, second])

    def square(self):
        return self[0].square()


def test_state_that_calls_replace_or_count_is_restored():
    plain, changed = Program(net=Stateful()), Program(net=Stateful())
    plain.run()
    assert changed.run("dtype").why == ""
    assert changed.net.calls == plain.net.calls == 20
    for mine, other in zip([changed.net.mean, *changed.batches], [plain.net.mean, *plain.batches], strict=True):
        assert torch.equal(mine, other)
    assert [id(one) for one in changed.optimizer.state] == [id(one) for one in changed.net.net.parameters()]


def test_time_that_passes_is_not_won(monkeypatch):
    monkeypatch.setitem(trying.CHANGES, "nothing", lambda program, place, undo: None)
    times = iter([2.0, 1.0, 1.0, 1.0])

    def faster():
        yield
        return next(times)

    assert "won nothing" in step_text.trial(Program().run("nothing", time=faster))


def test_graphs_that_pytorch_leaves_out_are_told(monkeypatch):
    def left_out(program, place, undo):
        trying.counters["inductor"]["cudagraph_skips"] += 2

    monkeypatch.setitem(trying.counters["inductor"], "cudagraph_skips", 1)
    monkeypatch.setitem(trying.CHANGES, "graph", left_out)
    assert "won nothing: 1.00 s to 1.00 s. PyTorch ran 2 compiled graphs outside of CUDA graphs." in step_text.trial(
        Program().run("graph")
    )


@pytest.mark.parametrize("busy", [False, True])
def test_changed_step_is_traced_unless_the_program_traces_itself(monkeypatch, busy):
    class Profile(contextlib.nullcontext):
        def __init__(self, activities):
            if busy:
                raise RuntimeError("Profiler is already enabled on this thread")
            super().__init__(self)

        def key_averages(self):
            times = {"add_kernel": 6e6, "cudaLaunchKernel": 0.0}
            return [SimpleNamespace(key=name, self_device_time_total=time) for name, time in times.items()]

    monkeypatch.setitem(trying.CHANGES, "nothing", lambda program, place, undo: None)
    monkeypatch.setattr(trying, "profile", Profile)
    found = Program().run("nothing")
    assert found.changed == 1.0 and found.kernels == ({} if busy else {"add_kernel": 2.0})


class Balanced(nn.Module):
    """Has a parameter whose gradient is nothing but rounding."""

    def __init__(self):
        super().__init__()
        self.net, self.balanced, self.sign = nn.Linear(8, 2), nn.Parameter(torch.ones(2)), 1e-9

    def forward(self, x):
        return self.net(x) + self.sign * self.balanced


def test_rounding_that_turns_an_update_is_no_fault_of_compiled_code(monkeypatch):
    def turned(program, place, undo):
        (module,) = program.modules.values()
        undo.callback(setattr, module, "sign", module.sign)
        module.sign = -module.sign

    monkeypatch.setitem(trying.CHANGES, "graph", turned)
    found = Program(net=Balanced()).run("graph")
    assert found.why == "" and found.difference <= found.limit


def halved(program, place, undo):
    """A change that is wrong."""
    (module,) = program.modules.values()
    hook = module.register_forward_hook(lambda module, args, result: 0.5 * result)
    undo.callback(hook.remove)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_wrong_change_is_told_before_what_it_won(dropout, monkeypatch):
    monkeypatch.setitem(trying.CHANGES, "wrong", halved)
    found = Program(dropout).run("wrong")
    assert found.difference > found.limit
    said = step_text.trial(found)
    assert "changes the results" in said and f"({found.where}), more than" in said
    assert found.where == "output 1"
    # Random numbers are not a difference.
    monkeypatch.setitem(trying.CHANGES, "nothing", lambda program, place, undo: None)
    found = Program(dropout).run("nothing")
    assert found.difference <= found.limit


def test_inference_is_compared_by_the_arguments_of_a_call(monkeypatch):
    monkeypatch.setitem(trying.CHANGES, "wrong", halved)
    program = Program()
    with torch.no_grad(), program.boundaries.watched():
        program.boundaries.annotating = True
        for step in range(24):
            if step == 4:
                program.boundaries.annotating = False
                program.trial = trying.tried("wrong", "", program.boundaries, time=quick)
            program.net(torch.ones(3, 8))
    assert program.result.difference == pytest.approx(0.5)


def test_change_that_fails_or_needs_an_edit_says_why(monkeypatch):
    def fails(program, place, undo):
        raise RuntimeError("first line\nsecond")

    monkeypatch.setitem(trying.CHANGES, "fails", fails)
    assert step_text.trial(Program().run("fails")) == "Suggestion 0 cannot be tried: first line."
    assert Program().run("copy").why == "it needs an edit of the code"


def test_trial_says_predicted_against_won():
    tried = Tried(5e-3, 4e-3, 1e-3, 1e-2, number=2, predicted=0.8e-3)
    said = step_text.trial(tried)
    assert said.startswith(
        "Suggestion 2 won 1.00 ms, 125 % of the predicted 800 µs: 5.00 ms to 4.00 ms. The results differ"
    )
    unsure = step_text.trial(Tried(5e-3, 4e-3, 1e-3, 1e-2, number=1))
    assert unsure.startswith("Suggestion 1 won 1.00 ms: 5.00 ms to 4.00 ms")


def test_trial_says_which_kernels_took_the_saving():
    launches = (StepLaunch("cudnn_sdpa", KERNEL, 0.0, 2e-3), StepLaunch("nvjet_tst", KERNEL, 2e-3, 6e-3))
    kernels = {"triton_per_softmax": 3e-3, "nvjet_tst": 6e-3, "sm80_xmma_gemm_f32": 1e-3}
    tried = Tried(9e-3, 12e-3, 1e-3, 1e-2, number=1, predicted=1e-3, kernels=kernels)
    step = Step(launches, (), 8e-3, tried=(tried,))
    assert step_text.moved(step, tried) == (
        "Its kernels take 10.0 ms (before 8.00 ms): Inductor 3.00 ms (before none), cuDNN none (before 2.00 ms), "
        "cuBLAS 7.00 ms (before 6.00 ms). The GPU waits for 2.00 ms. Attention is no longer one kernel. The most came with Inductor triton_per_softmax: 3.00 ms."
    )
    won = dataclasses.replace(tried, changed=8e-3, kernels={"nvjet_tst": 7.5e-3, "flash_fwd": 0.5e-3})
    assert step_text.moved(step, won) == (
        "Its kernels take 8.00 ms (before 8.00 ms): cuDNN none (before 2.00 ms), cuBLAS 7.50 ms (before 6.00 ms), FlashAttention 500 µs (before none)."
    )
    assert step_text.moved(step, dataclasses.replace(tried, kernels={})) == ""


def test_energy_says_what_it_is_counted_at():
    power = {"energy": 0.25, "power": 500.0, "sm_clock": 1.98e9, "power_limit": 700.0}
    assert step_text.energy(Step((), (), 1.0, power=power)) == "A step uses 250 mJ (500 W, 1.98 GHz, limit 700 W)."
