"""Changes of code that make a recorded kernel stale, and changes that do not."""

import gzip
import json
from hashlib import sha256

import pytest
from tilescope.hardware.device import Device
from tilescope.runs import staleness, store
from tilescope.table.run import Run
from tilescope.table.schema import frame

KERNEL = '''"""A file."""
import helper


def kernel(x):
    """What it does."""
    return helper.twice(x)  # why
'''
HELPER = "def twice(x):\n    return 2 * x\n"


def digest(text):
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def here(tmp_path):
    """A folder with the files of a kernel."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "own.py").write_text(KERNEL)
    (folder / "helper.py").write_text(HELPER)
    return folder


@pytest.fixture
def is_stale(here, tmp_path):
    def is_stale(kept=None, file=here / "own.py", text=None):
        """Whether the kernel in ``file`` is stale in a run that measured ``text`` and kept these texts by file name."""
        text = (kept or {}).get("own.py", KERNEL) if text is None else text
        facts = {"own": {"file": str(file), "sha256": digest(text)}}
        run = Run("r", "2026-11-20T22:15:30+00:00", Device("H", "sm_90", 132, 1, 1, False), facts, {}, {})
        if kept is not None:
            texts = {digest(text): text for text in kept.values()}
            named = {"own": {name: digest(text) for name, text in kept.items()}}
            data = json.dumps({"kernels": named, "texts": texts}).encode()
            (tmp_path / "sources.json.gz").write_bytes(gzip.compress(data))
        found = staleness.stale_kernels(store.LoadedRun(run, frame([]), tmp_path))
        assert found in ([], ["own"])
        return bool(found)

    return is_stale


BOTH = {"own.py": KERNEL, "helper.py": HELPER}


def test_code_that_is_the_same_is_not_stale(is_stale):
    assert not is_stale()
    assert not is_stale(BOTH)


def test_without_texts_any_byte_counts(here, is_stale):
    (here / "own.py").write_text(KERNEL + "# more\n")
    assert is_stale()


def test_comments_docstrings_and_line_breaks_are_no_code(here, is_stale):
    (here / "own.py").write_text(
        KERNEL.replace("What it does", "Doubles").replace("# why", "# for").replace("A file", "B")
    )
    (here / "helper.py").write_text("# new\ndef twice(x):\n    return (\n        2 * x\n    )\n")
    assert not is_stale(BOTH)


@pytest.mark.parametrize("file", ["own.py", "helper.py"])
def test_code_that_differs_is_stale_in_the_declaring_file_and_in_helpers(here, is_stale, file):
    (here / file).write_text((here / file).read_text().replace("(x)", "(x, y=1)", 1))
    assert is_stale(BOTH)


def test_modules_beside_a_script_are_looked_for_where_it_found_them(here, is_stale, tmp_path):
    (here / "rows").mkdir()
    (here / "rows" / "__init__.py").touch()
    (here / "rows" / "sums.py").write_text("from . import one\n\n\ndef thrice(x):\n    return 3 * one.same(x)\n")
    (here / "rows" / "one.py").write_text("def same(x):\n    return x\n")
    written = tmp_path / "written.py"
    written.write_text(
        f"import sys\nsys.path.append({str(here)!r})\nfrom helper import twice\nfrom rows.sums import thrice\n\n"
        "kernel = [twice, thrice]\n"
    )
    kept = {"written.py": written.read_text(), "helper.py": HELPER, "sums.py": (here / "rows" / "sums.py").read_text()}
    assert not is_stale(kept, written, kept["written.py"])
    (here / "helper.py").write_text(f"# new\n{HELPER}")
    assert not is_stale(kept, written, kept["written.py"])
    (here / "helper.py").write_text(HELPER.replace("2 * x", "x + x"))
    assert is_stale(kept, written, kept["written.py"])


def test_a_string_that_is_no_docstring_is_code(here, is_stale):
    helper = 'PTX = "one"\n' + HELPER.replace("2 * x", "2 * x, PTX")
    (here / "helper.py").write_text(helper.replace("one", "two"))
    assert is_stale({**BOTH, "helper.py": helper})


SPEC = (
    KERNEL
    + """

SPEC = Spec(name="own", implementations={"triton": Peer(kernel, "ours"), **others}, cost=min)
"""
)
PEER = "def liger(x):\n    return x\n\n\nSPEC"


@pytest.mark.parametrize(
    ("was", "now", "stale"),
    [
        (', **others}', ', **others, "liger": Peer(liger)}', False),
        ('SPEC', PEER, False),
        ('"ours")', '"ours", 2)', True),
        ('"triton": Peer(kernel, "ours"), ', '', True),
        ('**others', '**more', True),
        ('"own"', '"mine"', True),
        ('SPEC', 'def min(x): return x\n\n\nSPEC', True),
        ('SPEC', 'helper.more = 1\nSPEC', True),
    ],
)  # fmt: skip
def test_an_added_implementation_does_not_change_the_others(here, is_stale, was, now, stale):
    changed = SPEC.replace(was, now, 1)
    assert changed != SPEC
    (here / "own.py").write_text(changed)
    assert is_stale({**BOTH, "own.py": SPEC}) == stale


JUDGED = """

TOLERANCE = {"fp32": 1e-6}
SPEC = KernelSpec(name="own", tolerance=TOLERANCE, cost=min)
"""


@pytest.mark.parametrize(
    ("was", "now", "stale"),
    [
        ("1e-6", "2e-7", False),
        ("tolerance=TOLERANCE", 'tolerance={"fp32": 0.5}', False),
        ("SPEC", "twice(TOLERANCE)\nSPEC", True),
        ("cost=min", "cost=max", True),
        ("KernelSpec(", "Other(", True),
    ],
)
def test_a_tolerance_is_not_measured_code(here, is_stale, was, now, stale):
    text = KERNEL + JUDGED
    (here / "own.py").write_text(text.replace(was, now, 1))
    assert is_stale({**BOTH, "own.py": text}) == stale


def test_missing_files_do_not_make_a_kernel_stale(here, is_stale):
    assert not is_stale({"own.py": KERNEL, "liger.py": "anything"})
    assert not is_stale(file="/nowhere/gone.py")
    (here / "own.py").write_text("no python (")
    assert is_stale(BOTH)


def test_without_readable_texts_the_files_bytes_are_compared(here, is_stale, tmp_path):
    (tmp_path / "sources.json.gz").write_bytes(b"damaged")
    assert not is_stale()
    (here / "own.py").write_text(KERNEL + "\n")
    assert is_stale()


def test_helpers_of_the_library_lie_above_its_studies(is_stale):
    file = "tilescope_kernels/studies/compile_modes.py"
    study = store.source_file(file)
    assert study == store.source_file("studies/compile_modes.py")  # as the first recordings name it
    gated = (study.parent.parent / "elementwise" / "gated.py").read_text()
    assert not is_stale({"gated.py": gated}, file, study.read_text())
    other = gated.replace("def swiglu(", "def swiglu(_, ")
    assert other != gated
    assert is_stale({"gated.py": other}, file, study.read_text())


FAMILY = """from shared import first
import lazily as later
value = first(1)
"""
SHARED = """import deep
from deep import much as more, tool
first = lambda x: second(x)
def second(x): return more(x)
def third(x): return tool(x)
def _(x): return tool
"""
DEEP = """def much(x): return x
def tool(x): return x
def unused(x): return x
"""


@pytest.mark.parametrize(
    ("file", "was", "now", "stale"),
    [
        ("shared.py", "third(x): return", "third(x): return 1 +", False),
        ("shared.py", "second(x): return", "second(x): return 1 +", True),
        ("shared.py", "def third", "first.more = 1\ndef third", True),
        ("shared.py", "much as more", "tool as more", True),
        ("deep.py", "much(x): return", "much(x): return 1 +", True),
        ("deep.py", "tool(x): return", "tool(x): return 1 +", True),  # a nameless function's
        ("deep.py", "unused(x): return", "unused(x): return 1 +", False),
        ("deep.py", "def much(x): return x\n", "", True),
        ("deep.py", "def unused", "def unused(", True),  # no Python any more
    ],
)
def test_only_the_used_part_of_a_helper_counts(here, is_stale, file, was, now, stale):  # noqa: PLR0917
    kept = {"own.py": FAMILY, "shared.py": SHARED, "deep.py": DEEP}
    for name, text in kept.items():
        (here / name).write_text(text)
    assert not is_stale(kept)
    assert was in kept[file]
    (here / file).write_text(kept[file].replace(was, now))
    assert is_stale(kept) == stale


def test_a_helper_without_a_visible_import_counts_as_a_whole(here, is_stale):
    kept = {"own.py": "from package import thing\nthing()\n", "elsewhere.py": "a = 1\nb = 2\n", "thing.py": "c = 3\n"}
    for changed in ("elsewhere.py", "thing.py"):
        for name, text in kept.items():
            (here / name).write_text(text)
        assert not is_stale(kept)
        (here / changed).write_text(kept[changed].replace("= ", "= -"))
        assert is_stale(kept)


SOFT = """import triton.language as tl
import triton
from family import _launch, _pieces
from family._pieces import LOG
def _kernel(x): return LOG, _pieces.load(x, tl)
def softmax(x): return _kernel(x), _launch.size(x), _scale(x)
def _scale(pieces): return 2 * pieces
@softmax.register
def _(x): return x
"""
PIECES = """import triton.language as tl
LOG = 1.5
def load(x, tl): return tl.load(x, _masked(x))
def _masked(x): return tl.where(x)
def unused(x): return x
"""
LAUNCH = "def size(x): return x\n"
KEPT = {"softmax.py": SOFT, "_pieces.py": PIECES}
#: The same code in folders: a file moved, another renamed, definitions carried from one to another.
MOVED = {
    "__init__.py": "",
    "rows/__init__.py": "",
    "rows/softmax.py": SOFT.replace(
        "from family import _launch, _pieces", "from family._shared import launching, row_tiles"
    )
    .replace("from family._pieces import LOG", "from ._scales import LOG, _scale")
    .replace("_pieces.load", "row_tiles.load")
    .replace("_launch.size", "launching.size")
    .replace("def _scale(pieces): return 2 * pieces\n", ""),
    "rows/_scales.py": "LOG = 1.5\ndef _scale(pieces): return 2 * pieces\n",
    "_shared/__init__.py": "",
    "_shared/launching.py": LAUNCH,
    "_shared/row_tiles.py": "from family._shared.masks import _masked\ndef load(x, tl): return tl.load(x, _masked(x))\n",
    "_shared/masks.py": "import triton.language as tl\n# of a piece\ndef _masked(x): return tl.where(x)\n",
}


@pytest.mark.parametrize(
    ("file", "was", "now", "stale"),
    [
        ("rows/softmax.py", "", "", False),
        ("_shared/launching.py", "return x", "return 2 * x", False),  # not kept
        ("_shared/masks.py", "tl.where(x)", "tl.where(2 * x)", True),
        ("_shared/masks.py", "triton.language", "triton.experimental", True),
        ("_shared/masks.py", "import", "where = 1\nimport", False),
        ("_shared/masks.py", "import", "def load(): return 1\nimport", False),
        ("_shared/row_tiles.py", "_masked(x)", "masked(x)", True),
        ("_shared/row_tiles.py", "_masked\n", "unmasked as _masked\n", True),
        ("_shared/row_tiles.py", "def load", "def _load", True),
        ("rows/_scales.py", "2 *", "3 *", True),
        ("rows/_scales.py", "LOG = 1.5", "LOG = 1", True),
        ("rows/_scales.py", "def", "pieces = 1\ndef", False),  # a function's own variable
        ("rows/_scales.py", "def", "LOG.more = 1\ndef", True),
        ("rows/softmax.py", "row_tiles.load", "launching.load", True),
        ("rows/softmax.py", "launching.size", "launching.other", True),
        ("rows/softmax.py", "launching, row_tiles", "row_tiles\nimport launching", True),  # another library's
        ("rows/softmax.py", "def _(x): return x", "def _(x): return 2", True),
    ],
)  # fmt: skip
def test_code_may_move_within_its_package(is_stale, tmp_path, monkeypatch, file, was, now, stale):  # noqa: PLR0917
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in MOVED.items():
        path = tmp_path / "family" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert was in text or name != file
        path.write_text(text.replace(was, now, 1) if name == file else text)
    assert is_stale(KEPT, "family/softmax.py", SOFT) == stale


def test_a_file_that_moved_without_kept_texts_is_known_by_its_bytes(is_stale, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    moved = tmp_path / "family" / "rows" / "softmax.py"
    moved.parent.mkdir(parents=True)
    (tmp_path / "family" / "__init__.py").touch()
    moved.write_text(SOFT)
    assert store.source_file("family/softmax.py") == moved
    assert not is_stale(file="family/softmax.py", text=SOFT)
    moved.write_text(SOFT + "# more\n")
    assert is_stale(file="family/softmax.py", text=SOFT)
    (moved.parent.parent / "other").mkdir()
    (moved.parent.parent / "other" / "softmax.py").write_text(SOFT)
    assert store.source_file("family/softmax.py") is None  # which of the two cannot be known
    assert store.source_file("/elsewhere/softmax.py") is None
