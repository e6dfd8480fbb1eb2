"""The files around the code: workflows, issue forms, the release, containers."""

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tilescope import cli

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCE = PYPROJECT["project"]["urls"]["Source"]


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "release.py"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_runs_what_is_there(file: Path) -> None:
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for words in (command.split() for command in commands):
        assert words[0] != "make" or words[1] in targets, words
        named = [word for word in words if word.startswith(("tests/", ".ci/"))]
        assert all((ROOT / name).exists() for name in named), words
    assert all("timeout-minutes" in job or "needs" in job for job in jobs.values())


def test_matrix_begins_at_the_least_versions_and_tests_each_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["versions"]["strategy"]["matrix"]["include"]
    project = PYPROJECT["project"]
    assert project["requires-python"] == f">={matrix[0]['python']}"
    for name in ("torch", "triton"):
        (least,) = (text for text in project["dependencies"] if text.startswith(f"{name}>="))
        assert f"{matrix[0][name]};".startswith(least.removeprefix(f"{name}>=").partition(";")[0])
    assert [one["python"] for one in matrix] == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_issue_form_asks_for_the_machine_and_the_run(file: Path) -> None:
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    fields = {field["id"]: field["attributes"] for field in form["body"]}
    assert "tilescope doctor --json" in fields["doctor"]["label"]
    assert "tilescope recordings publish" in fields["run"]["description"]
    assert cli.parser("recordings").parse_args(["recordings", "publish", "latest"]).command == "recordings"


def test_container_files_start_what_is_there() -> None:
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    words = json.loads(re.findall(r"^CMD (.+)$", docker, re.MULTILINE)[0])
    assert cli.parser("").parse_args(words[1:]).command == "serve"
    assert "make setup" in json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["postCreateCommand"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == cli.VERSION and cited["license"] == "Apache-2.0"


def test_release_refuses_older_and_malformed_versions(release: dict[str, Any]) -> None:
    assert release["known_version"]() == cli.VERSION
    release["check_version"]("0.1.0", "0.1.0")
    release["check_version"]("0.10.0", "0.9.1")
    with pytest.raises(ValueError, match=r"0\.1\.9 is older than 0\.2\.0"):
        release["check_version"]("0.1.9", "0.2.0")
    with pytest.raises(ValueError, match="is no version: give three numbers"):
        release["check_version"]("v0.2", "0.1.0")


def test_release_writes_the_address_of_the_project(release: dict[str, Any]) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace(SOURCE, "https://github.invalid/a/b")
    with pytest.raises(ValueError, match="give the project's address once"):
        release["addressed"](text, "")
    found = release["addressed"](text, "https://forge.example/one/two/")
    assert "github.invalid" not in found and found.count("https://forge.example/one/two/") > 3
    assert release["addressed"](found, "") == found


def test_release_names_the_commits_of_recordings(release: dict[str, Any]) -> None:
    made_at = release["commits"](ROOT / "profiles" / "recorded")
    assert made_at and all(re.fullmatch(r"[0-9a-f]{12}|unknown", one) for one in made_at)


def test_setup_gives_uv_the_settings_of_pip() -> None:
    options = runpy.run_path(str(ROOT / ".ci" / "install.py"))["options"]
    listed = [
        ":env:.find-links='/wheels'", "global.extra-index-url='\\nfile:///one\\nhttps://two.example/simple'",
        "global.constraint='/etc/limits.txt'", "global.timeout='60'", "install.no-compile='true'",
    ]  # fmt: skip
    assert list(options(listed)) == [
        "--find-links=/wheels", "--extra-index-url=file:///one", "--extra-index-url=https://two.example/simple", "--constraint=/etc/limits.txt",
    ]  # fmt: skip
