"""Runs checks of kernels in a process of their own, because Triton's interpreter patches ``triton.language`` there.

A module of tests names its scripts: ``SCRIPTS = ["batch_softmax.py"]``. Each ``check_...`` function of a script is a test.
"""

import os
import re
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.forking import Host

HERE = Path(__file__).parent
pytest.register_assert_rewrite("tests.kernels.adapted")


def pytest_generate_tests(metafunc):
    if "wrong" not in metafunc.fixturenames:
        return
    cases = []
    for script in metafunc.module.SCRIPTS:
        checks = re.findall(r"^def (check_\w+)", (HERE / script).read_text(encoding="utf-8"), re.M)
        cases += [pytest.param((script, name), id=f"{script[6:-3]}-{name[6:]}") for name in checks]
    metafunc.parametrize("wrong", cases, indirect=True)


@pytest.fixture(scope="session")
def batch():
    """``batch(script, *names)`` is what ``script`` prints of those names, as JSON. It runs once a session.

    Scripts are forked from a process that has imported what all of them do, those that are interpreted from another.
    """
    hosts: dict[bool, Host] = {}

    @cache
    def told(script, *names):
        """What it printed last, and how it ended if it did not end well: not run again for each of its checks."""
        interpreted = "from interpreted import" in (HERE / script).read_text(encoding="utf-8")
        if (
            interpreted
            and version("triton").startswith("3.6.")
            and tuple(map(int, version("numpy").split(".")[:2])) >= (2, 4)
        ):
            pytest.skip("the interpreter of Triton 3.6 needs numpy < 2.4")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment |= {"TRITON_INTERPRET": "1"} if interpreted else {}
        environment.pop("TILESCOPE_USE_TRITON", None)
        # NumPy warns of the NaN and infinity that these kernels are meant to produce, and of how triton 3.6 uses it. PyTorch 2.15 warns
        # in its check of operators.
        ignored = (
            "ignore::RuntimeWarning", "ignore:Conversion of an array:DeprecationWarning",
            "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
        )  # fmt: skip
        warnings = [part for rule in ("error", *ignored) for part in ("-W", rule)]
        if interpreted not in hosts:
            hosts[interpreted] = Host([sys.executable, *warnings, str(HERE / "run_forked.py")], environment)
        try:
            return hosts[interpreted].ask([script, *names], environment)[-1], ""
        except AssertionError as error:
            return None, str(error)

    def run(script, *names):
        printed, wrong = told(script, *names)
        assert not wrong, wrong
        return printed

    return run


@pytest.fixture
def wrong(batch, request):
    """What went wrong in a check, empty where nothing did. A script's checks of this run share one process."""
    script, check = request.param
    asked = [item.callspec.params.get("wrong") for item in request.session.items if hasattr(item, "callspec")]
    return batch(script, *(case[1] for case in asked if isinstance(case, tuple) and case[0] == script))[check]
