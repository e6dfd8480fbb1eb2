"""Instructions that run beside tensor-core products, from SASS."""

from pathlib import Path

import pytest
from tilescope.collectors import compiled_text, compiler
from tilescope.collectors.compiled_text import read
from tilescope.execution import execute
from tilescope.table.case import Case

from tests.recorded import AS_RECORDED

TEXTS = Path(__file__).parent / "fixtures" / "texts"
#: A loop of two products, with arithmetic of line 5 before the wait for the first, of line 6 before that for both, of 7 behind it.
LOOP = (TEXTS / "two_products.sass").read_text()


def counted(sass):
    found = compiled_text.products_in_flight(read("sass", sass, "a.py"))
    return None if found is None else dict(found)


def test_instruction_is_beside_products_until_the_wait():
    assert counted(LOOP) == {3: 1, 5: 1, 6: 1}
    # Moved behind the wait, the same arithmetic runs alone.
    wait, add = LOOP.splitlines()[9], LOOP.splitlines()[8]
    assert counted(LOOP.replace(f"{add}\n{wait}", f"{wait}\n{add}")) == {3: 1, 5: 1}
    assert counted("/*0000*/  FADD R1, R1, R2  // a.py:4\n") is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Not waited for, the products are under way when the loop comes round, but not before it.
        (lambda text: text.replace("gsb0, 0x0", "gsb0, 0x1"), {2: 1, 3: 1, 5: 1, 6: 1, 7: 1}),
        # Behind a jump comes only what a label leads to.
        (lambda text: text.replace("@P0 BRA", "BRA").replace("gsb0, 0x0", "gsb0, 0x1") + "/*00b0*/  FADD R1, R1, R2  // a.py:4\n",
         {2: 1, 3: 1, 5: 1, 6: 1, 7: 1}),
        # No wait at all: each time round adds a group, and the count ends.
        (lambda text: "\n".join(line for line in text.splitlines() if "DEPBAR" not in line), {2: 1, 3: 1, 5: 1, 6: 1, 7: 1}),
    ],
    ids=["loop", "jump", "no wait"],
)  # fmt: skip
def test_products_stay_under_way_over_branches(change, expected):
    assert counted(change(LOOP)) == expected


@AS_RECORDED
def test_instruction_after_the_wait_is_beside_none(tmp_path):
    spec = f"{Path(__file__).with_name('gluon_products.py')}:SPEC"
    case = Case(spec, "triton", "forward", "8-bf16", "")
    compiler.capture(case, execute.load_spec(spec), tmp_path / "case.json.gz", {"target": "sm_90"})
    lines, sources = compiler.parse_lines(tmp_path / "case.json.gz", case)
    halved = next(n for n, text in enumerate(sources["gluon_products.py"].splitlines(), 1) if "* 0.5" in text)
    of_line = lines[lines["line"] == halved].set_index("metric")["value"]
    assert of_line["sass_instructions"] >= 32
    assert of_line["sass_beside_wgmma"] == 0
