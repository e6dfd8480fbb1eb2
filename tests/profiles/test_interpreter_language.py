"""Constructs of Triton's language are interpreted correctly: values as PyTorch's, bytes and operations by hand."""

import functools
import importlib.metadata
from typing import Any

import pytest

from .interpreting import constructs, interpret

TRITON = tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])
#: Constructs as programs combine them, which are tried in every run, and each alone.
IDIOMS, MODULES = "idioms", ("constants", "reductions", "blocks", "memory")


@functools.cache
def found(*modules: str) -> dict[str, dict[str, Any]]:
    return interpret(*modules)


def test_a_name_is_of_one_construct() -> None:
    names = [name for module in (*MODULES, IDIOMS, "refused") for name in constructs(module)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", constructs(IDIOMS))
def test_idiom(name: str) -> None:
    answer = found(IDIOMS, "refused")[name]
    assert answer["error"] is None
    assert answer["problems"] == []


@pytest.mark.parametrize("name", [name for module in MODULES for name in constructs(module)])
def test_construct(name: str) -> None:
    answer = found(*MODULES)[name]
    if name == "block_pointers" and TRITON >= (3, 9):
        assert "Block pointers have been removed" in answer["error"]
        return
    assert answer["error"] is None
    assert answer["problems"] == []


REFUSED = {
    "an_unknown_method_of_the_builder": "novel of bf16 is not interpreted: convert to float32 first",
    "inline_assembly": "inline assembly (cvt.rna.tf32.f32) cannot be run off the GPU, and its result is needed here",
    "an_unknown_function_of_libdevice": "what __nv_tgammaf computes is not known off the GPU, and its result is needed",
    "the_number_of_warps": "Triton's interpreter has no num_warps",
    "several_elements_to_a_call": "map_elementwise is interpreted with one element to a call: leave pack out",
    **dict.fromkeys(
        ("meeting_by_loads", "meeting_by_exchange", "meeting_by_comparison"),
        "it waits for what another program is to write",
    ),
    "gluon_is_another_language": "gluon_kernel is written in Gluon, and what is interpreted is Triton's language",
}


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_what_is_not_served_is_said_in_one_line(name: str, said: str) -> None:
    error = found(IDIOMS, "refused")[name]["error"]
    assert error.startswith("NotServed: ")
    assert said in error
    assert "\n" not in error


def test_a_failing_assertion_of_the_kernel_is_its_own() -> None:
    error = found(IDIOMS, "refused")["a_failing_static_assertion"]["error"]
    assert error.startswith("InterpretationFailed: static_kernel, program (0, 0, 0), line ")
    assert error.endswith("AssertionError: N must be 3")


@pytest.mark.parametrize("name", ["inline_assembly", "an_unknown_function_of_libdevice"])
def test_bytes_are_counted_where_values_are_not_known(name: str) -> None:
    counted = found(IDIOMS, "refused")[name]["counted"]
    assert (counted["requested_read"], counted["requested_written"]) == (128, 128)
