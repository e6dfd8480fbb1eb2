"""Runs under other packages: installs requirements into folders of the user's cache, and profiles with this Tilescope before them.

A process that finds such a folder first on its path imports the packages there in place of the installed ones.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from tilescope.files import bounded_reading, user_cache
from tilescope.hardware import device
from tilescope.jobs import revisions
from tilescope.runs import store

_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)")


class PackagesError(ValueError):
    """Packages that cannot be had, or do not profile. The message is one line."""


@dataclass(frozen=True)
class Packages:
    """What differs from this process: requirements (``triton==3.9``), folders of packages, and variables of the environment."""

    requirements: tuple[Requirement, ...] = ()
    folders: tuple[Path, ...] = ()
    variables: Mapping[str, str] | None = None
    #: As a user wrote them.
    name: str = ""

    def wrong(self, versions: Mapping[str, str]) -> str:
        """A line where a run with these ``versions`` did not use the requirements; else empty."""
        used = ((one, versions.get(one.name, "")) for one in self.requirements)
        found = ", ".join(f"{one.name} {version}" for one, version in used if version and not _meets(one, version))
        return f"the run for {self.name} used {found}: another one stands before it on the path" if found else ""


def read(words: Sequence[str]) -> Packages:
    """Packages from a user's words: requirements, folders and ``NAME=value``; without any, the packages of this process.

    Raises PackagesError for any other word.
    """
    requirements, folders, variables = [], [], {}
    for word in words:
        if named := _VARIABLE.fullmatch(word):
            variables[named[1]] = named[2]
        elif word and Path(word).is_dir():
            folders.append(_site(Path(word).absolute()))
        else:
            requirements.append(_requirement(word))
    return Packages(tuple(requirements), tuple(folders), variables, " ".join(words) or "the installed packages")


def _requirement(word: str) -> Requirement:
    try:
        found = Requirement(word)
    except InvalidRequirement:
        found = None
    if found is None or not (found.specifier or found.url):
        raise PackagesError(
            f"{word!r} names no release: give triton==3.9, a folder of packages, an environment's folder, or VARIABLE=value"
        )
    return found


def _site(folder: Path) -> Path:
    """The folder of packages in an environment's folder; any other folder itself."""
    if not (folder / "pyvenv.cfg").is_file():
        return folder
    found = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    if not found.is_dir():
        raise PackagesError(
            f"{folder} is an environment of another Python than {sys.version_info[0]}.{sys.version_info[1]}"
        )
    return found


def folder_of(packages: Packages) -> Path | None:
    """The folder with the requirements, which are installed unless an earlier call did; None where this process has them all.

    Raises PackagesError.
    """
    if all(_meets(one, _installed(one.name)) for one in packages.requirements):
        return None
    words = [_cpu_build(one) for one in packages.requirements]
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    target = user_cache.folder() / "packages" / re.sub(r"[^\w.+-]+", "-", "-".join([*sorted(words), python]))
    if not target.is_dir():
        print(f"installing {' '.join(words)} into {target}, once", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as made:
            _install(words, Path(made, "packages"))
            Path(made, "packages").rename(target)
    return target


def _install(words: Sequence[str], folder: Path) -> None:
    # torch comes with the libraries of its own CUDA. Other packages find what they need here.
    alone = [] if any(word.startswith("torch=") for word in words) else ["--no-deps"]
    if _installed("pip"):
        command = [sys.executable, "-m", "pip", "install", "--no-compile", "--disable-pip-version-check"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise PackagesError(f"{sys.executable} has no pip and there is no uv, so nothing can be installed")
    command += ["--quiet", *alone, "--target", str(folder)]
    # An index may lack PyTorch's builds without CUDA.
    for tried in dict.fromkeys((tuple(words), tuple(word.removesuffix("+cpu") for word in words))):
        done = subprocess.run([*command, *tried], stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0 and folder.is_dir():
            return
    said = [line for line in done.stderr.splitlines() if line.strip()] or ["the installer said nothing"]
    why = next((line for line in said if line.startswith("ERROR: No matching")), said[-1])
    raise PackagesError(f"{' '.join(tried)} cannot be installed: {bounded_reading.one_line(why)}")


def _cpu_build(one: Requirement) -> str:
    """The requirement; where there is no GPU, PyTorch's is for its build without CUDA, which is smaller by gigabytes."""
    exact = re.fullmatch(r"==[\w.]+", str(one.specifier))
    return f"{one}+cpu" if one.name == "torch" and exact and device.detect() is None else str(one)


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _meets(one: Requirement, version: str) -> bool:
    return bool(version) and not one.url and one.specifier.contains(version, prereleases=True)


def profile(packages: Packages, words: Sequence[str], runs: Path) -> store.LoadedRun:
    """Runs ``tilescope profile`` with these ``words`` under the packages; returns its run, below ``runs``.

    Its output goes to standard error. Raises PackagesError.
    """
    installed = folder_of(packages)
    folders = [*packages.folders, *([installed] if installed else [])]
    environment = {**revisions.environment(*folders), **(packages.variables or {})}
    options = ["--runs", str(runs), "--title", packages.name]
    try:
        loaded = revisions.recorded(["profile", *options, *words], Path.cwd(), environment, runs)
    except revisions.RevisionError as error:
        raise PackagesError(f"{packages.name}: {error}") from error
    if wrong := packages.wrong(loaded.run.versions):
        raise PackagesError(wrong)
    return loaded


def releases_between(before: Packages, after: Packages) -> list[str]:
    """The words for each release between the two, oldest first, from the package index; empty without any.

    A side without requirements has the installed release. Raises PackagesError unless both sides require one exact release of the same
    package.
    """
    asked = [side.requirements for side in (before, after)]
    here = [Requirement(f"{one.name}=={_installed(one.name)}") for one in asked[1] if _installed(one.name)]
    sides = [list(one) or here for one in asked]
    exact = [re.fullmatch(r"==([\d.]+)(?:\+\w+)?", str(one.specifier)) for side in sides for one in side]
    names = {one.name for side in sides for one in side}
    if len(exact) != 2 or len(names) != 1 or not all(exact):
        raise PackagesError("--bisect needs one exact release on each side: --from triton==3.6 --to triton==3.9")
    (name,) = names
    low, high = sorted(Version(one[1]) for one in exact if one)
    command = [sys.executable, "-m", "pip", "index", "versions", name, "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if not listed:
        raise PackagesError(f"the package index lists no releases of {name}: try them one by one with --to")
    known = sorted({Version(text) for text in listed[1].split(", ")})
    return [f"{name}=={one}" for one in known if low < one < high and not one.is_prerelease and not one.local]
