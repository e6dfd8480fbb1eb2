"""Reads a run's folder: its description, table, lines and source texts.

Folders are not trusted: every file is read within limits (``bounded_reading``) and its content is validated. Imports neither
torch nor triton.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tilescope.files import bounded_reading, installed, json_shape
from tilescope.runs import parquet
from tilescope.runs.places import StoreError
from tilescope.table import absent, launch_configs, line_values, schema
from tilescope.table.run import Run, SchemaError

LINES, CONFIGS, STEP = "lines.parquet", "configs.parquet", "step.json.gz"
#: The file beside recordings with the texts that they share.
POOL = "texts.json.xz"
#: Most bytes of a run's description, and of a source file.
DESCRIPTION, SOURCE = 32 * bounded_reading.MIB, 16 * bounded_reading.MIB
#: Most folders of a package that are searched for a moved file.
PACKAGES = 1000


@dataclass(frozen=True)
class Sources:
    """Texts of source files by digest, and each kernel's digests by file name."""

    texts: Mapping[str, str]
    kernels: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """An opened run: its description, its table and its folder."""

    run: Run
    table: pd.DataFrame
    folder: Path

    @property
    def of_step(self) -> bool:
        """Whether the run is of a model's step (``steps.read``). The step's launches are rows of the table, and not cases of kernels."""
        return is_step(self.folder)

    @functools.cached_property
    def lines(self) -> pd.DataFrame:
        """Values of source lines (``tilescope.table.line_values``), read on first use; empty where the run has none.

        Raises StoreError for a damaged file.
        """
        try:
            return read_frame(self.folder / LINES, line_values.validate, line_values.COLUMNS, self.folder)
        except FileNotFoundError:
            return line_values.frame([])

    @property
    def configs(self) -> pd.DataFrame:
        """The config of each Triton launch (``tilescope.table.launch_configs``); empty where the run has none."""
        return self._configs[0]

    @property
    def damage(self) -> str:
        """A line about damage beside the table; empty where there is none."""
        return self._configs[1]

    @functools.cached_property
    def _configs(self) -> tuple[pd.DataFrame, str]:
        try:
            return read_frame(self.folder / CONFIGS, launch_configs.validate, launch_configs.COLUMNS, self.folder), ""
        except FileNotFoundError:
            return launch_configs.frame([]), ""
        except StoreError as error:
            return launch_configs.frame([]), f"with which config each launch was made is lost: {error}"

    @functools.cached_property
    def sources(self) -> Mapping[str, Mapping[str, str]]:
        """Texts of each kernel's source files by name, as of the time of the run; empty where none were kept.

        Raises StoreError for a damaged file.
        """
        path = self.folder / "sources.json.gz"
        try:
            kept = json_shape.fit(bounded_reading.data_of(path, self.folder), Sources, "")
            texts = kept.texts or pool(self.folder.parent)
            # A recording that was copied elsewhere has no pool, and so no texts.
            return {
                kernel: {name: texts[digest] for name, digest in files.items() if kept.texts or digest in texts}
                for kernel, files in kept.kernels.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError) as error:
            raise damaged(path, error) from error

    def source_text(self, kernel: str, file: str) -> str | None:
        """The text of the source file of that name at the time of the run.

        It is the kept text, or the present file's if its digest is unchanged; otherwise None.
        """
        kept = self.sources.get(kernel, {}).get(file)
        facts = self.run.kernels.get(kernel, {})
        path = source_file(str(facts.get("file", "")))
        if kept is not None or path is None or path.name != file:
            return kept
        return text_of(path, str(facts.get("sha256", "")))


def pool(folder: Path) -> dict[str, str]:
    """Texts of source files by digest that the recordings in a folder share; empty where there are none. Raises ValueError."""
    path = folder / POOL
    return _pool(path, path.stat().st_mtime_ns) if path.is_file() else {}


@functools.lru_cache(maxsize=2)
def _pool(path: Path, changed: int) -> dict[str, str]:
    return json_shape.fit(bounded_reading.data_of(path, path.parent), dict[str, str], "")


def is_step(folder: Path) -> bool:
    """Whether the folder's run is of a model's step."""
    return (folder / STEP).is_file()


def read_run(folder: Path) -> Run:
    """The description of a run, whole or half-written. A model's step has no kernel. Raises StoreError as ``open_run`` does."""
    path = folder / "run.json"
    try:
        data = bounded_reading.data_of(path, folder, DESCRIPTION)
        if not isinstance(data, dict):
            raise SchemaError("run.json holds no object")
        run = Run.from_json(data)
        # Runs of before 2026-12 declare the functions that a step launched.
        return dataclasses.replace(run, kernels={}) if is_step(folder) else run
    except FileNotFoundError as error:
        raise StoreError(f"{folder} is not a whole run: run.json is missing; record it again") from error
    except SchemaError as error:
        raise StoreError(f"{folder}: {error}") from error
    except ValueError as error:
        raise damaged(path, error) from error


def read_table(path: Path, folder: Path) -> pd.DataFrame:
    """Reads a table of the schema in the run at ``folder``. Raises StoreError."""
    try:
        return absent.without(read_frame(path, schema.validate, schema.COLUMNS, folder))
    except FileNotFoundError as error:
        raise StoreError(f"{folder} is not a whole run: {path.name} is missing; record it again") from error


def read_frame(
    path: Path, validate: Callable[[pd.DataFrame], pd.DataFrame], columns: Mapping[str, str], folder: Path
) -> pd.DataFrame:
    """Reads a frame in the run at ``folder``. Raises FileNotFoundError where there is none, otherwise StoreError."""
    try:
        return parquet.read(path, validate, columns, folder)
    except SchemaError as error:
        raise StoreError(f"{path}: {error}; record it again") from error
    except bounded_reading.Unreadable as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> StoreError:
    why = bounded_reading.one_line(error) or type(error).__name__
    return StoreError(f"{path} cannot be read ({why}): the run is damaged, record it again")


def text_of(path: Path, sha256: str) -> str | None:
    """The file's text; None where its digest is not ``sha256`` or it is not UTF-8. Raises OSError as ``source_bytes``."""
    content = source_bytes(path)
    if hashlib.sha256(content).hexdigest() != sha256:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def source_bytes(path: Path) -> bytes:
    """The bytes of a source file in any folder. Raises OSError where it cannot be read or is not an ordinary file."""
    try:
        return bounded_reading.content(path, Path(path.absolute().anchor), SOURCE)
    except bounded_reading.Unreadable as error:
        raise OSError(str(error)) from error


def source_file(file: str) -> Path | None:
    """The present path of a kernel's recorded ``file``, or None.

    It is the file below the installed package or at the recorded path, or else the only file of that base name in the package.
    """
    if not file.endswith(".py"):
        return None
    package, _, rest = file.partition("/")
    roots = installed.folders_of(package) if rest and not rest.startswith("/") else []
    places = [*((root / rest, root) for root in roots), (Path(file), Path(Path(file).absolute().anchor))]
    found = next((path for path, root in places if bounded_reading.is_inside(path, root)), None)
    moved = (file_below(root, rest.rpartition("/")[2]) for root in roots)
    return found or next(filter(None, moved), None)


def file_below(folder: Path, name: str) -> Path | None:
    """The only file of that base name in a folder and its subfolders; None where there is none, or several."""
    folders = itertools.islice(os.walk(folder), PACKAGES)
    found = [
        path for at, _, files in folders if name in files and bounded_reading.is_inside(path := Path(at, name), folder)
    ]
    return found[0] if len(found) == 1 else None
