"""Which changes of code make a run one of other code."""

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
def measured(tmp_path):
    """A run's ``own`` kernel, its files beside each other, and what makes its LoadedRun anew."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "own.py").write_text(KERNEL)
    (here / "helper.py").write_text(HELPER)
    facts = {"own": {"file": str(here / "own.py"), "sha256": digest(KERNEL)}}

    def loaded(sources=None, kernels=facts):
        run = Run("r", "2026-11-20T22:15:30+00:00", Device("H", "sm_90", 132, 1, 1, False), kernels, {}, {})
        if sources is not None:
            texts = {digest(text): text for files in sources.values() for text in files.values()}
            named = {kernel: {file: digest(text) for file, text in files.items()} for kernel, files in sources.items()}
            data = json.dumps({"kernels": named, "texts": texts}).encode()
            (tmp_path / "sources.json.gz").write_bytes(gzip.compress(data))
        return store.LoadedRun(run, frame([]), tmp_path)

    return here, loaded


BOTH = {"own": {"own.py": KERNEL, "helper.py": HELPER}}


def test_code_that_is_the_same_is_not_stale(measured):
    _, loaded = measured
    assert staleness.stale_kernels(loaded()) == []
    assert staleness.stale_kernels(loaded(BOTH)) == []


def test_without_texts_any_byte_counts(measured):
    here, loaded = measured
    (here / "own.py").write_text(KERNEL + "# more\n")
    assert staleness.stale_kernels(loaded()) == ["own"]


def test_comments_docstrings_and_line_breaks_are_no_code(measured):
    here, loaded = measured
    (here / "own.py").write_text(
        KERNEL.replace("What it does", "Doubles").replace("# why", "# for").replace("A file", "B")
    )
    (here / "helper.py").write_text("# new\ndef twice(x):\n    return (\n        2 * x\n    )\n")
    assert staleness.stale_kernels(loaded(BOTH)) == []


@pytest.mark.parametrize("file", ["own.py", "helper.py"])
def test_code_that_differs_is_stale_in_the_declaring_file_and_in_helpers(measured, file):
    here, loaded = measured
    (here / file).write_text((here / file).read_text().replace("(x)", "(x, y=1)", 1))
    assert staleness.stale_kernels(loaded(BOTH)) == ["own"]


def test_a_string_that_is_no_docstring_is_code(measured):
    here, loaded = measured
    helper = 'PTX = "one"\n' + HELPER.replace("2 * x", "2 * x, PTX")
    (here / "helper.py").write_text(helper.replace("one", "two"))
    assert staleness.stale_kernels(loaded({"own": {**BOTH["own"], "helper.py": helper}})) == ["own"]


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
def test_an_implementation_more_changes_none_of_the_others(measured, was, now, stale):
    here, loaded = measured
    changed = SPEC.replace(was, now, 1)
    assert changed != SPEC
    (here / "own.py").write_text(changed)
    kernels = {"own": {"file": str(here / "own.py"), "sha256": digest(SPEC)}}
    found = staleness.stale_kernels(loaded({"own": {**BOTH["own"], "own.py": SPEC}}, kernels))
    assert found == (["own"] if stale else [])


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
def test_what_error_is_accepted_is_no_code_that_was_measured(measured, was, now, stale):
    here, loaded = measured
    text = KERNEL + JUDGED
    (here / "own.py").write_text(text.replace(was, now, 1))
    kernels = {"own": {"file": str(here / "own.py"), "sha256": digest(text)}}
    found = staleness.stale_kernels(loaded({"own": {**BOTH["own"], "own.py": text}}, kernels))
    assert found == (["own"] if stale else [])


def test_files_that_are_not_here_say_nothing(measured):
    here, loaded = measured
    elsewhere = {"own": {"own.py": KERNEL, "liger.py": "anything"}}
    assert staleness.stale_kernels(loaded(elsewhere)) == []
    gone = {"gone": {"file": "/nowhere/gone.py", "sha256": "0"}}
    assert staleness.stale_kernels(loaded(kernels=gone)) == []
    (here / "own.py").write_text("no python (")
    assert staleness.stale_kernels(loaded(BOTH)) == ["own"]


def test_damaged_texts_leave_the_bytes(measured, tmp_path):
    here, loaded = measured
    (tmp_path / "sources.json.gz").write_bytes(b"damaged")
    assert staleness.stale_kernels(loaded()) == []
    (here / "own.py").write_text(KERNEL + "\n")
    assert staleness.stale_kernels(loaded()) == ["own"]


def test_helpers_of_the_library_lie_above_its_studies(measured):
    _, loaded = measured
    study = store.source_file("tilescope_kernels/studies/compile_modes.py")
    assert study == store.source_file("studies/compile_modes.py")  # as the first recordings name it
    gated = (study.parent.parent / "elementwise" / "gated.py").read_text()
    kernels = {"modes": {"file": "tilescope_kernels/studies/compile_modes.py", "sha256": digest(study.read_text())}}
    assert staleness.stale_kernels(loaded({"modes": {"gated.py": gated}}, kernels)) == []
    other = gated.replace("def swiglu(", "def swiglu(_, ")
    assert other != gated
    assert staleness.stale_kernels(loaded({"modes": {"gated.py": other}}, kernels)) == ["modes"]


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
def test_of_a_helper_counts_what_the_kernel_comes_to(measured, file, was, now, stale):
    here, loaded = measured
    kept = {"own.py": FAMILY, "shared.py": SHARED, "deep.py": DEEP}
    kernels = {"own": {"file": str(here / "own.py"), "sha256": digest(FAMILY)}}
    for name, text in kept.items():
        (here / name).write_text(text)
    assert staleness.stale_kernels(loaded({"own": kept}, kernels)) == []
    assert was in kept[file]
    (here / file).write_text(kept[file].replace(was, now))
    assert staleness.stale_kernels(loaded({"own": kept}, kernels)) == (["own"] if stale else [])


def test_a_helper_that_nothing_is_seen_to_import_counts_whole(measured):
    here, loaded = measured
    kept = {"own.py": "from package import thing\nthing()\n", "elsewhere.py": "a = 1\nb = 2\n", "thing.py": "c = 3\n"}
    kernels = {"own": {"file": str(here / "own.py"), "sha256": digest(kept["own.py"])}}
    for changed in ("elsewhere.py", "thing.py"):
        for name, text in kept.items():
            (here / name).write_text(text)
        assert staleness.stale_kernels(loaded({"own": kept}, kernels)) == []
        (here / changed).write_text(kept[changed].replace("= ", "= -"))
        assert staleness.stale_kernels(loaded({"own": kept}, kernels)) == ["own"]


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
def test_code_may_move_within_its_package(measured, tmp_path, monkeypatch, file, was, now, stale):  # noqa: PLR0917
    _, loaded = measured
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in MOVED.items():
        path = tmp_path / "family" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert was in text or name != file
        path.write_text(text.replace(was, now, 1) if name == file else text)
    kernels = {"own": {"file": "family/softmax.py", "sha256": digest(SOFT)}}
    assert staleness.stale_kernels(loaded({"own": KEPT}, kernels)) == (["own"] if stale else [])


def test_a_file_that_moved_without_kept_texts_is_known_by_its_bytes(measured, tmp_path, monkeypatch):
    _, loaded = measured
    monkeypatch.syspath_prepend(tmp_path)
    moved = tmp_path / "family" / "rows" / "softmax.py"
    moved.parent.mkdir(parents=True)
    (tmp_path / "family" / "__init__.py").touch()
    moved.write_text(SOFT)
    kernels = {"own": {"file": "family/softmax.py", "sha256": digest(SOFT)}}
    assert store.source_file("family/softmax.py") == moved
    assert staleness.stale_kernels(loaded(kernels=kernels)) == []
    moved.write_text(SOFT + "# more\n")
    assert staleness.stale_kernels(loaded(kernels=kernels)) == ["own"]
    (moved.parent.parent / "other").mkdir()
    (moved.parent.parent / "other" / "softmax.py").write_text(SOFT)
    assert store.source_file("family/softmax.py") is None  # which of the two cannot be known
    assert store.source_file("/elsewhere/softmax.py") is None
