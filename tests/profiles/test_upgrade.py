"""``tilescope upgrade``: packages are installed once, and a release that makes a launch worse is found and named with its line."""

import dataclasses
import json
import zipfile

import pytest
from tilescope import cli
from tilescope.jobs import packages
from tilescope.models import code_change, compare, upgrade
from tilescope.runs import store
from tilescope.runs.listings import Compiled
from tilescope.table.run import Failure

from tests.recorded import recorded

SCRIPT = """
import demo
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x, y, BLOCK: tl.constexpr, STRIDE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at * STRIDE)
    tl.store(y + at, value * 2)


x = torch.empty(65536, device="cuda")
scale_kernel[(16,)](x, torch.empty_like(x), BLOCK=1024, STRIDE=demo.STRIDE, num_warps=4)
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index of releases of ``demo`` on this disk. From 1.1 on, its kernel's loads are strided."""
    for name, release, stride in (("demo", "1.0", 1), ("demo", "1.1", 2), ("demo", "2.0", 2), ("torch", "0.1", 0)):
        with zipfile.ZipFile(tmp_path / f"{name}-{release}-py3-none-any.whl", "w") as wheel:
            info = f"{name}-{release}.dist-info"
            wheel.writestr(f"{name}.py", f"STRIDE = {stride}\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", tmp_path), ("TILESCOPE_CACHE", tmp_path / "cache")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    return tmp_path


@pytest.mark.parametrize("first", range(1, 8))
def test_bisect_finds_the_first_release_in_few_steps(first):
    releases = [f"demo=={n}" for n in range(1, 7)]
    *tried, last = upgrade.bisected("demo==0", "demo==7", releases, lambda one: "slow" if int(one[6:]) >= first else "")
    assert last == (f"demo=={first}", f"the first that is worse; demo=={first - 1} is not") and len(tried) <= 3
    assert {said for _, said in tried} <= {"worse: slow", "not worse"}


@pytest.mark.parametrize(("verdict", "worse"), [
    ("not timed", ["spill stores"]), ("slower", ["spill stores"]), ("alike", []), ("faster", []),
])  # fmt: skip
def test_times_decide_where_they_are_known(verdict, worse):
    case = {"kernel": "scale", "impl": "triton", "pass": "forward", "workload": "8-fp32", "config": ""}
    row = {**case, "verdict": verdict}
    code = Compiled("scale_kernel", {}, "a.py")
    spills = code_change.Moved("spill_bytes_stored", "spill stores", "byte", 0.0, 8.0, line=4, worse=True)
    launch = code_change.Launch({**row, "speedup_low": 0.8, "speedup_high": 0.9}, code, code, (spills,))
    assert [one.label for one in launch.worse] == worse
    time = "takes 11.1 to 25.0 % longer, " if verdict == "slower" else ""
    told = f"scale_kernel (scale triton forward 8-fp32) at a.py:4: {time}"
    assert upgrade.said(launch) == told + ("spill stores 0 B → 8 B" if worse else "")


def test_failures_of_one_side_come_first():
    loaded = store.open_run(store.find(recorded("softmax")))
    failed = (Failure("softmax/triton/forward/8x8-fp32", "compiler", "CompilationFailed: it does not compile"),)
    broken = dataclasses.replace(loaded, run=dataclasses.replace(loaded.run, failures=failed))
    found = upgrade.Upgrade(compare.Side(loaded), compare.Side(broken), ("old", "new"))
    assert found.verdict == "1 case failed under new and not under old; otherwise the compiled code is the same"
    assert upgrade.Upgrade(found.candidate, found.candidate, found.names).verdict == "the compiled code is the same"


def test_functions_of_one_side_alone_are_named():
    old = store.open_run(store.find(recorded("softmax")))
    function = old.table["function"].replace("softmax_rows_kernel", "row_kernel")
    new = dataclasses.replace(old, table=old.table.assign(function=function))
    found = upgrade.Upgrade(compare.Side(old), compare.Side(new), ("old", "new"))
    assert {(line.partition(": ")[0], line.rpartition("/")[2]) for line in found.alone} == {
        ("only under old", "softmax_rows_kernel"), ("only under new", "row_kernel"),
    }  # fmt: skip
    assert found.verdict.endswith(f"; {len(found.alone)} cases or functions are of one side alone")


def test_releases_between_come_from_the_index(index):
    sides = [packages.read([f"demo=={release}"]) for release in ("1.0", "2.0")]
    assert packages.releases_between(*sides) == ["demo==1.1"]


def test_worse_launch_is_named_with_line_and_release(index, torch_and_catalog, capfd):
    script = index / "script.py"
    script.write_text(SCRIPT)
    assert cli.main(["upgrade", str(script), "--from", "demo==1.0", "--to", "demo==1.1", "--bisect", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["verdict"] == "the launch got worse"
    (launch,) = document["launches"]
    (config,) = document["configs"]
    assert "STRIDE=2" in config and "STRIDE=1" in config.partition(", and ")[2] and document["alone"] == []
    worst, line = launch["moved"][0], SCRIPT.splitlines().index("    value = tl.load(x + at * STRIDE)") + 1
    assert (worst["label"], worst["baseline"], worst["candidate"], worst["line"]) == ("widest global load", 16, 4, line)
    assert document["bisected"] == [{"packages": "demo==1.1", "said": "the first that is worse; demo==1.0 is not"}]
    before, after = (
        compare.Side(store.open_run(index / "runs" / document[side]["id"])) for side in ("baseline", "candidate")
    )
    found = upgrade.Upgrade(before, after, ("demo==1.0", "demo==1.1"))
    assert found.again(found).startswith(
        f"scale_kernel (scale_kernel triton forward 65536-fp32) at script.py:{line}: widest"
    )
    assert found.again(upgrade.Upgrade(before, before, found.names)) == ""


def test_requirement_is_installed_once(index, capfd):
    chosen = packages.read(["demo==1.0"])
    folder = packages.folder_of(chosen)
    assert folder and (folder / "demo.py").read_text() == "STRIDE = 1\n"
    assert "installing demo==1.0" in capfd.readouterr().err
    for wheel in index.glob("*.whl"):
        wheel.unlink()
    assert packages.folder_of(packages.read(["demo==1.0"])) == folder
    assert packages.folder_of(packages.read(["pytest>=1", "NAME=value"])) is None


def test_pytorch_comes_with_cuda_where_the_index_has_no_other(index):
    folder = packages.folder_of(packages.read(["torch==0.1"]))
    assert folder and (folder / "torch.py").is_file()


@pytest.mark.parametrize(("arguments", "said"), [
    (["--to", "triton"], "'triton' names no release: give triton==3.9"),
    (["--to", "demo==7.0"], "demo==7.0 cannot be installed: ERROR: No matching distribution found for demo==7.0"),
    (["--to", "demo==2.0", "--bisect"], "--bisect needs one exact release on each side"),
    (["missing.py", "--to", "demo==7.0"], "missing.py cannot be run: no such file"),
    (["--to", ""], "'' names no release"),
    (["--from", "pytest>=1", "NAME=1", "--to", "NAME=1"], "both sides use the same packages: NAME=1"),
])  # fmt: skip
def test_bad_packages_are_refused_in_a_line(index, kit, arguments, said, capfd):
    assert cli.main(["upgrade", *arguments]) == 2
    assert said in capfd.readouterr().err.splitlines()[-1]
