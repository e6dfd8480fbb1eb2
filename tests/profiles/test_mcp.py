"""The MCP server, called by the SDK's own client; and the error where the SDK is not installed."""

import asyncio
import importlib.util
import json
import os
import sys

import pytest
from tilescope import cli
from tilescope.commands import mcp as command
from tilescope.runs import store

from tests.recorded import recorded

from .fake_jobs import OWN
from .test_json_documents import check

needs_sdk = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the optional extra mcp is not installed"
)
#: A kernel by every collector.
NORMS = recorded("layer_norm")


def call(tool, **arguments):
    """Whether the tool refused, and its document, or the text of its refusal."""
    from mcp import Client

    async def asked():
        async with Client(command.server()) as client:
            return await client.call_tool(tool, arguments)

    answer = asyncio.run(asked())
    said = answer.content[0].text
    return answer.is_error, said if answer.is_error else answer.structured_content or json.loads(said)


def test_without_the_sdk_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert cli.main(["mcp"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "tilescope: the MCP server needs a package that is not installed: pip install 'tilescope[mcp]'"
    ]


@needs_sdk
def test_every_tool_says_what_it_takes():
    from mcp import Client

    async def listed():
        async with Client(command.server()) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(listed())}
    assert tools.keys() == {"list_runs", "profile", "advise", "compare"}
    assert all(len(tool.description) > 50 for tool in tools.values())
    assert tools["profile"].input_schema["required"] == ["kernels"]
    assert tools["advise"].input_schema["properties"].keys() == {"run", "kernel", "impl", "direction", "workload"}


@needs_sdk
def test_runs_are_listed_advised_on_and_compared():
    refused, runs = call("list_runs", limit=3)
    check(runs, "runs")
    assert not refused and len(runs["runs"]) == 3
    refused, advice = call("advise", run=NORMS, kernel="layer_norm", direction="backward")
    check(advice, "advice")
    assert not refused and {case["pass"] for case in advice["cases"]} == {"backward"} and advice["findings"]
    refused, compared = call("compare", baseline=f"{NORMS}:triton", candidate=f"{NORMS}:eager", kernel="layer_norm")
    check(compared, "comparison")
    assert not refused and compared["comparisons"][0]["cases"][0]["verdict"] == "slower"


@needs_sdk
@pytest.mark.parametrize(("tool", "arguments", "said"), [
    ("advise", {"run": "nowhere"}, "no run 'nowhere': 'tilescope show' lists the runs there are"),
    ("advise", {"run": NORMS, "kernel": "layernorm"}, "unknown kernel 'layernorm': did you mean 'layer_norm'?"),
    ("compare", {"baseline": f"{NORMS}:trton", "candidate": NORMS}, f"{NORMS} has no implementation 'trton': use one of"),
    ("profile", {"kernels": []}, "name a kernel"),
    ("profile", {"kernels": [OWN], "collectors": ["nope"]}, "unknown collector 'nope'"),
    ("profile", {"kernels": [OWN], "target": "sm_1"}, "unknown target 'sm_1'"),
    ("list_runs", {"limit": 0}, "limit must be at least 1"),
])  # fmt: skip
def test_what_cannot_be_served_is_refused_in_a_line(kit, tool, arguments, said):
    refused, answer = call(tool, **arguments)
    assert refused and said in answer and len(answer.splitlines()) == 1


@needs_sdk
def test_a_kernel_is_profiled_into_a_run(kit):
    refused, document = call("profile", kernels=[OWN], implementations=["good"], collectors=["fakes.quick"])
    check(document, "advice")
    assert not refused and document["cases"]
    assert [run.id for run in store.list_runs([store.runs_dir()])] == [document["run"]["id"]]
    refused, answer = call("profile", kernels=[OWN], implementations=["raises"], collectors=["fakes.quick"])
    assert refused and "nothing could be profiled: fakes.quick" in answer


@needs_sdk
def test_it_is_served_over_standard_input_and_output(tmp_path):
    from mcp import Client, StdioServerParameters, stdio_client

    served = StdioServerParameters(command=sys.executable, args=["-m", "tilescope", "mcp"], env=dict(os.environ))

    async def asked():
        async with Client(stdio_client(served)) as client:
            return await client.call_tool("advise", {"run": NORMS, "kernel": "layer_norm"})

    answer = asyncio.run(asyncio.wait_for(asked(), 60))
    assert not answer.is_error and json.loads(answer.content[0].text)["schema"] == "advice"
