"""A case's names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilescope.table.case import Case, config_text, config_values, parse_config, readable
from tilescope.table.run import Failure

texts = st.text(min_size=1, max_size=60)


def test_ids_and_names():
    case = Case("softmax", "triton", "forward", "1823x781-fp32-s7", "BLOCK=64")
    assert case.id == "softmax/triton/forward/1823x781-fp32-s7/BLOCK=64"
    assert case.dtype == "fp32"
    assert case.name == "softmax"
    assert Case("a/b.py:MINE", "triton", "forward", "8-bf16").name == "MINE"
    # Of files with one kernel, each calls it SPEC: that would be one kernel on the screen.
    own = Case("a/b.py:SPEC", "triton", "forward", "8-bf16")
    assert own.name == "b.py"
    assert [readable(one.id) for one in (case, own)] == [case.id, "b.py/triton/forward/8-bf16"]
    failures = [Failure(kernel.id, "check", "no") for kernel in (case, own)]
    assert [[one.concerns(name) for name in ("softmax", "b.py", "SPEC", "py")] for one in failures] == [
        [True, False, False, False],
        [False, True, True, False],  # as a run of before calls it, too
    ]
    assert Case(**case.to_json()) == case


@given(texts, texts)
def test_a_slug_is_a_file_name_and_unique(one, other):
    first, second = (Case(kernel, "triton", "forward", "8-fp32").slug for kernel in (one, other))
    assert (first == second) == (one == other)
    assert "/" not in first
    assert not first.startswith(".")
    assert len(first) < 100


@given(st.dictionaries(st.from_regex(r"[A-Za-z_]+", fullmatch=True), st.integers(-999, 999), max_size=5))
def test_a_config_survives_its_text(config):
    assert parse_config(config_text(config)) == config


@pytest.mark.parametrize("text", ["BLOCK", "BLOCK=", "=3", "BLOCK=1.5", "BLOCK=1 NUM=2"])
def test_a_config_that_does_not_parse_names_the_part(text):
    with pytest.raises(ValueError, match="is not NAME=INTEGER"):
        parse_config(text)
    # Of another tool's config any value will do, but each has a name.
    assert config_values("A=1,B=x") == {"A": 1, "B": "x"} and config_values("<img src=x>,A=1") == {}
