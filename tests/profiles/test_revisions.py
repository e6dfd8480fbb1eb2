"""Gates on git revisions: the revision's file is profiled, and the repository stays unchanged."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tilescope import cli

from .fake_jobs import KIT


def git(folder, *arguments):
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout


def commit(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a change")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """An empty repository, and the current folder in it. Runs go elsewhere."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TILESCOPE_RUNS", str(tmp_path / "runs"))
    return folder


def test_each_side_is_profiled_from_its_own_files(kit, repository, capfd):
    own = (KIT / "own.py").read_text()
    large, larger, largest = (own.replace('{"N": 64}', f'{{"N": {size}}}') for size in (64, 128, 256))
    commit(repository, {"own.py": large})
    commit(repository, {"own.py": larger})
    # What is not committed is in the working tree alone.
    (repository / "own.py").write_text(largest)
    options = ["--kernel", "own.py:SPEC", "--impl", "good", "--collect", "fakes.quick", "--json"]
    assert cli.main(["gate", "main~1", ".", *options]) == 1
    document = json.loads(capfd.readouterr().out)
    gone = [check for check in document["checks"] if check["what"] == "case"]
    assert [(check["workload"], check["said"]) for check in gone] == [("64-fp32", "absent in the candidate")]
    base, head = document["baseline"], document["candidate"]
    assert [base["title"], base["git_revision"]] == ["main~1", git(repository, "rev-parse", "main~1").strip()]
    assert [head["title"], head["git_revision"]] == [".", git(repository, "rev-parse", "main").strip() + "+"]
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert git(repository, "status", "--porcelain", "--untracked-files=no").split() == ["M", "own.py"]
    assert not list(repository.parent.glob("runs/*"))


@pytest.mark.parametrize(("arguments", "said"), [
    (["main", "main"], "name the kernels to profile at main: --kernel path/to/file.py:SPEC"),
    (["main", "nowhere"], "no run 'nowhere': 'tilescope show' lists the runs there are; nor is it a git revision here"),
    (["--", "main", "--upload-pack=x"], "nor is it a git revision here"),
    (["main", "main", "--kernel", "softmax"], "softmax is of the installed library, the same at every revision"),
    (["main", "main", "--kernel", "missing.py:SPEC"], "main could not be profiled: "),
])  # fmt: skip
def test_what_cannot_be_profiled_is_said_in_a_line(
    kit: None, repository: Path, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    commit(repository, {"readme": "a repository"})
    try:
        status = cli.main(["gate", *arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    lines = capfd.readouterr().err.splitlines()
    assert status == 2 and said in lines[-1]
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_out_of_a_repository_only_runs_are_compared(kit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert cli.main(["gate", "main", "main"]) == 2
    assert "nor is it a git revision here" in capsys.readouterr().err


def test_the_compiled_part_needs_no_gpu(repository, torch_and_catalog, capfd):
    own = (KIT / "tunable.py").read_text()
    commit(repository, {"own.py": own.replace('"BLOCK": 128', '"BLOCK": 1024')})
    commit(repository, {"own.py": own.replace('"BLOCK": 128', '"BLOCK": 16384')})
    assert cli.main(["gate", "main~1", "main", "--kernel", "own.py:SPEC", "--collect", "compiler", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    failed = {
        check["what"]: (check["baseline"], check["candidate"])
        for check in document["checks"]
        if check["verdict"] == "fail"
    }
    # 16,384 elements on 128 threads are 128 a thread where there were 8, all of them held in registers.
    assert failed.keys() == {"registers", "theoretical_occupancy"}
    assert failed["registers"][1] > 128 and failed["registers"][0] < 32
