"""Walks the steps of a release: address, version, changelog, recordings, wheel, site. 'make release VERSION=0.2.0' runs it.

It changes the version, the changelog and, with URL=https://…, the project's address, and builds into dist. It commits, tags and uploads nothing: the last lines say how.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tilescope.runs import store

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = ROOT / "profiles" / "tilescope" / "version.py"
#: The most bytes of a wheel.
LARGEST = 10_000_000


def numbers(version: str) -> tuple[int, ...]:
    """``0.2.0`` as numbers. Raises ValueError for another form."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"{version!r} is no version: give three numbers, as in VERSION=0.2.0")
    return tuple(map(int, version.split(".")))


def check_version(version: str, known: str) -> None:
    """Raises ValueError unless the version is the code's, which was not released, or a later one."""
    if numbers(version) < numbers(known):
        raise ValueError(f"{version} is older than {known}, the version of the code")


def addressed(project: str, url: str) -> str:
    """The text of pyproject.toml with the project's address. Raises ValueError where neither it nor ``url`` has one."""
    known = tomllib.loads(project)["project"]["urls"]["Source"]
    if not url.startswith("https://") and (url or ".invalid/" in known):
        raise ValueError(
            "links in the wheel lead nowhere: give the project's address once, as in URL=https://github.com/you/tilescope"
        )
    return project.replace(known, url.rstrip("/") or known)


def known_version() -> str:
    """The version that the code names."""
    return re.findall(r'^VERSION = "(.+)"$', VERSION_FILE.read_text(encoding="utf-8"), re.MULTILINE)[0]


def commits(folder: Path) -> list[str]:
    """The commits that the recordings were made at."""
    runs = [run for run in store.list_runs([folder]) if not run.error]
    return sorted({store.read_run(run.path).git_revision[:12] or "unknown" for run in runs})


def wheel(folder: Path) -> Path:
    """Builds the wheel into ``folder``, and uses it outside of the checkout. Raises ValueError for one that is too large."""
    for old in folder.glob("tilescope-*.whl"):
        old.unlink()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (made,) = folder.glob("tilescope-*.whl")
    size = made.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{made.name} has {size / 1e6:.1f} MB, at most {LARGEST / 1e6:.0f}: publish fewer recordings")
    with tempfile.TemporaryDirectory() as place:
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{place}/installed", str(made))
        outside = {**os.environ, "PYTHONPATH": f"{place}/installed"}
        command = [sys.executable, "-m", "tilescope"]
        run(*command, "--version", cwd=Path(place), env=outside)
        run(*command, "site", "pages", "--kernel", "vector_add", cwd=Path(place), env=outside)
        if not (Path(place) / "pages" / "vector_add.html").is_file():
            raise ValueError("the installed wheel made no page")
    return made


def run(*command: str, **settings: object) -> None:
    subprocess.run(command, check=True, **{"cwd": ROOT, **settings})  # type: ignore[call-overload]


def replace(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def steps(version: str, url: str, dist: Path) -> Iterator[str]:
    """Each step of the release, and what it found."""
    known = known_version()
    check_version(version, known)
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        raise ValueError("files have changes that are not committed: commit or stash them")
    yield "clean checkout"
    project = ROOT / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    project.write_text(addressed(text, url), encoding="utf-8")
    yield "the project's address, for links in the wheel"
    made_at = commits(store.recorded_dir())
    yield f"recordings of {len(made_at)} commits" + (": 'make record' makes them anew" if len(made_at) > 1 else "")
    replace(VERSION_FILE, f'"{known}"', f'"{version}"')
    run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", version)
    replace(ROOT / "CITATION.cff", f"version: {known}", f"version: {version}")
    yield f"version {version}, and CHANGELOG.md from the fragments"
    dist.mkdir(exist_ok=True)
    made = wheel(dist)
    yield f"{made.name}, {made.stat().st_size / 1e6:.1f} MB, works outside of the checkout"
    run("make", "docs")
    yield "docs/_build, without a warning"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "version", nargs="?", default="", help="the version to release; without one, only the wheel is made"
    )
    parser.add_argument("url", nargs="?", default="", help="where the project is (kept from one release to the next)")
    chosen = parser.parse_args()
    dist = ROOT / "dist"
    try:
        if not chosen.version:
            dist.mkdir(exist_ok=True)
            print(wheel(dist))
            return 0
        for done in steps(chosen.version, chosen.url, dist):
            print(f"ok  {done}", flush=True)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"--  {error}", file=sys.stderr)
        return 1
    print(
        f"\nNow look at the diff and run 'make test'. Then:\n"
        f"  git commit -am 'release: {chosen.version}' && git tag v{chosen.version}\n"
        f"  twine check dist/*.whl && twine upload --repository testpypi dist/*.whl   # then without --repository\n"
        f"  git push --follow-tags                          # publishes docs/_build"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
