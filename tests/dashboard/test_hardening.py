"""What an address, a forged message or a run from elsewhere may not do: read other files, start work, become markup."""

import contextlib
import shutil
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import panel as pn
import pytest
from tilescope.runs import store
from tilescope_dashboard.serving.login import local
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.run import sides

from . import synthetic

RUN, OUTSIDE, LINKED, LEAKY = (
    "20260102-030405-aaaa", "20260102-030410-0aaa", "20260102-030411-0bbb", "20260102-030412-0ccc",
)  # fmt: skip
#: A kernel that only the run outside of the folder has.
PRIVATE = "outside_only"


@pytest.fixture(scope="module", autouse=True)
def _traps(runs: Path) -> Iterator[None]:
    """In the folder of runs: a link to a run outside of it, and a run with a link to a file outside of it."""
    outside = synthetic.write_run(runs.parent, OUTSIDE, kernels=(PRIVATE,), measured=False)
    (runs / LINKED).symlink_to(outside)
    leaky = synthetic.write_run(runs, LEAKY, kernels=("leaky",), measured=False)
    (runs.parent / "private.txt").write_text("private")
    traces = leaky / "artefacts" / "torch_profiler"
    traces.mkdir(parents=True)
    (traces / "some.trace.json.gz").symlink_to(runs.parent / "private.txt")
    yield
    (runs / LINKED).unlink()
    for made in (outside, leaky):
        shutil.rmtree(made)


@pytest.fixture
def _here(in_runs: None, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder in the working directory must not be taken for a run either.
    monkeypatch.chdir(runs.parent)


def ways_out(runs: Path) -> list[str]:
    """What an address may try, each to reach the run outside or a file."""
    return [
        f"../{OUTSIDE}", f"{runs}/../{OUTSIDE}", str(runs.parent / OUTSIDE), OUTSIDE, LINKED, f"./{RUN}", str(runs / RUN), "..", ".",
        "/etc/passwd", f"%2e%2e/{OUTSIDE}", f"%2e%2e%2f{OUTSIDE}", f"..\\{OUTSIDE}", f"{RUN}\0", f"\0{OUTSIDE}",
        f"{RUN}\r\nSet-Cookie: a=b", "~", "file:///etc/passwd", "x" * 1_000_000, "../" * 300_000,
    ]  # fmt: skip


@pytest.mark.usefixtures("_here")
def test_an_address_opens_no_run_outside_of_the_folders(runs: Path) -> None:
    for text in ways_out(runs):
        state = State(run=text)
        assert state.loaded is None, text[:80]
        assert state.error and "\n" not in state.error and len(state.error) < 300, text[:80]
        assert PRIVATE not in [name for found in state.runs for name in found.kernels]
        other = State(run=RUN, compared=[text, f"{text}:triton"])
        assert other.loaded is not None
        assert [side.name for side in sides(other)] == [RUN], text[:80]
        # Chosen later, as a browser's message does.
        other.run = text
        assert other.loaded is None and other.error


@pytest.mark.usefixtures("_here")
def test_link_out_of_the_folder_is_listed_not_read(runs: Path) -> None:
    listed = {found.id: found for found in store.list_runs([runs])}
    assert "copy the run itself there" in listed[LINKED].error
    assert (listed[LINKED].kernels, listed[LINKED].title) == ((), "")
    leaky = State(run=LEAKY)
    assert leaky.loaded is None
    assert (
        leaky.error
        == "artefacts/torch_profiler/some.trace.json.gz in this run is a link out of it: put the file itself there"
    )


def test_a_link_within_the_folder_is_a_run(tmp_path: Path) -> None:
    made = synthetic.write_run(tmp_path, RUN)
    (tmp_path / "20260102-030499-aaaa").symlink_to(made)
    assert [found.error for found in store.list_runs([tmp_path])] == ["", ""]


@pytest.mark.parametrize("address", ["/\t/evil.example", "/\t\\evil.example", "/\r\\evil.example", "/\n\n/evil.example", "/\\/evil.example",
                                     "///evil.example", "/app\r\nSet-Cookie: a=b", "\t//evil.example",
                                     "", "//evil.example", "https://evil.example", "evil", "javascript:alert(1)"])  # fmt: skip
def test_login_leads_to_no_other_host(address: str) -> None:
    assert local(address, "/app") == "/app"
    assert local("/app?run=1&view=gpu", "/app") == "/app?run=1&view=gpu"


@pytest.mark.usefixtures("_here")
def test_senseless_address_parts_are_said_and_skipped() -> None:
    state = State(run=LEAKY, kernel="softmax")
    state.take(f"?run={RUN}&kernel=softmax&compared=%5B5%5D&nothing=5&find=1e5")
    assert (state.run, state.kernel, state.compared, state.find) == (RUN, "softmax", [], "1e5")
    assert state.ignored == "not understood: compared='[5]'"
    state.kernel = "layer_norm"
    assert state.ignored == ""
    state.take("?compared=../x")
    assert state.ignored.startswith("not compared: '../x' is not a run's id")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("asked", [RUN, f'["{RUN}"]'])
def test_one_run_to_compare_with_may_stand_alone_in_an_address(asked: str) -> None:
    state, location = (
        State(run=LEAKY, kernel="softmax"),
        pn.io.location.Location(search=f"?compared={quote(asked)}&find=8"),
    )
    location.sync(state, ["compared", "find"], on_error=lambda _: state.take(location.search))
    assert (state.compared, state.find, state.ignored) == ([RUN], "8", "")
    assert parse_qs(location.search[1:]) == {"compared": [f'["{RUN}"]'], "find": ["8"]}


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("kernel", ["a\0b", "a\r\nb", "k" * 1_000_000])
def test_what_is_no_kernels_name_is_not_written_over_the_page(kernel: str) -> None:
    state = State(run=RUN)
    state.kernel = kernel
    assert state.kernel == "softmax"
    assert state.ignored.startswith("not the name of a kernel: ") and len(state.ignored) < 120
    state.param.update(run=RUN, kernel=kernel)
    assert state.kernel == "softmax"


@pytest.mark.usefixtures("_here")
def test_refused_baseline_is_said_until_the_next_choice() -> None:
    state = State(run=RUN)
    state.compared = [f"../{OUTSIDE}", f"{RUN}:eager"]
    assert state.ignored == f"not compared: '../{OUTSIDE}' is not a run's id: choose one of the runs above"
    # As the Compare view does, which drops it.
    state.compared = [f"{RUN}:eager"]
    assert state.ignored
    state.kernel = "layer_norm"
    assert not state.ignored


def test_megabyte_address_is_refused(server: Any) -> None:
    # As a request it is no page at all: the server takes no such header, and goes on.
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    with contextlib.closing(connection), contextlib.suppress(OSError, HTTPException):
        connection.request("GET", "/app?run=" + "x" * 1_000_000)
        assert connection.getresponse().status >= 400
    assert server.answers()


#: A widget's model changed and an event sent as no page of ours would: what is disabled is not.
TOLD = """([label, value]) => {
  const models = Bokeh.documents.flatMap(document => [...document._all_models.values()])
  models.find(model => model.data?.attributes?.label?.startsWith(label)).data.setv({disabled: false, value, value_input: value})
}"""


@pytest.mark.browser
def test_forged_message_from_elsewhere_starts_nothing(chromium: Any, outside_server: Any, runs: Path) -> None:
    page = chromium.new_page()
    before = sorted(runs.iterdir())
    page.goto(f"{outside_server.url}?run={RUN}&kernel=softmax&panel=profile")
    page.get_by_text("Profiling can be started only from the machine").wait_for()
    start = page.get_by_role("button", name="Start profiling")
    start.wait_for()
    assert start.is_disabled()
    page.evaluate(TOLD, ["own kernel", "spy.py:SPEC"])
    page.evaluate(TOLD, ["another size", "16x16-fp32"])
    page.evaluate("""() => {
      const models = Bokeh.documents.flatMap(document => [...document._all_models.values()])
      models.find(model => model.data?.attributes?.label === "Start profiling").data.setv({disabled: false})
    }""")
    page.wait_for_timeout(500)
    start.click()
    page.wait_for_timeout(2000)
    assert page.get_by_text("is being profiled").count() == 0
    assert page.get_by_text("Reading", exact=True).count() == 0
    assert sorted(runs.iterdir()) == before
    page.close()
