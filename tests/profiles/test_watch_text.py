"""A watch as text: each value once, as it comes, and nothing about a launch that is wrong."""

import asyncio
import dataclasses
import os

import pytest
from tilescope.models import versions
from tilescope.models.advice import Finding
from tilescope.notebook import cell_magic, watch_text
from tilescope.notebook.watching import Version, Watch


def case(kernel, **values):
    return versions.Case({"kernel": kernel, "impl": "triton", "pass": "forward", "workload": "8-fp32"}, values, ())


@pytest.fixture
def watch(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("x = 1\n")
    made = Watch(script)
    made.versions.append(Version(1, state="ready", cases=[case("a", registers=32.0)], texts={script: "x = 1\n"}))
    return made


def test_values_are_told_once_as_they_come(watch):
    telling, second = watch_text.Telling(watch), Version(2, cases=())
    watch.versions.append(second)
    assert list(telling.lines(second)) == []
    second.cases = [case("a", registers=40.0)]
    told = list(telling.lines(second))
    assert told[2] == "a 8-fp32" and told[3].split() == ["version", "1", "version", "2", "change"]
    assert told[4].split() == ["registers", "32", "40", "+25.0", "%"] and len(told) == 5
    second.cases = [case("a", registers=40.0, spill_bytes=8.0)]
    second.state, second.seconds = "ready", 1.5
    second.texts = {watch.script: "x = 2\n"}
    told = list(telling.lines(second))
    assert told[0].split() == ["spilled", "bytes", "–", "8", "B"]
    assert told[-3:] == ["-x = 1", "+x = 2", "version 2 took 1.5 s"]
    assert list(telling.lines(second)) == []


def test_saved_over_version_is_told_and_output_is_cut(watch):
    telling, second, third = watch_text.Telling(watch), Version(2, cases=[case("a", registers=40.0)]), Version(3)
    watch.versions.append(second)
    assert "version 2: " in "\n".join(telling.lines(second))
    watch.versions[-1] = third
    third.state, third.error, third.output = "failed", "no", "".join(f"{n}\n" for n in range(20))
    told = list(telling.lines(third))
    assert told[0] == "version 2 was not finished: a file was saved"
    assert told[-10] == "printed, the last 8 of 20 lines:" and told[-9:-1] == [f"  {n}" for n in range(12, 20)]


def test_failed_version_tells_why_and_what_stays(watch):
    third = Version(2, state="failed", error="own.py cannot be run: invalid syntax")
    watch.versions.append(third)
    told = list(watch_text.Telling(watch).lines(third))
    assert told[2:4] == ["wrong: own.py cannot be run: invalid syntax", "version 1 stays the last good one"]
    assert watch_text.mime(watch, third)["text/html"].startswith("<pre>version 2")


def test_versions_are_named_pinned_paired_and_deleted(watch):
    first, second = watch.versions[0], Version(2, state="ready", cases=[case("b", registers=8.0)])
    third = Version(3, state="ready", cases=[case("b", registers=9.0)])
    watch.versions += [second, third]
    watch.name(first, " before ")
    watch.pin(first)
    compared = watch.compared(third)
    assert compared.baseline.title == "before" and compared.pairs[0].how == "place"
    assert watch.compared(third, second).pairs[0].how == "name"
    watch.pair(third, third.cases[0], first, None)
    assert [pair.baseline and pair.baseline.kernel for pair in watch.compared(third).pairs] == [None, "a"]
    watch.delete(first)
    assert watch.pinned is None and watch.compared(third).baseline is second
    watch.versions.append(Version(4))
    with pytest.raises(ValueError, match="version 4 is being made"):
        watch.delete(watch.versions[-1])


def test_finding_with_another_value_is_told(watch):
    def found(rule, title):
        return Finding(rule, title, "", "a", "forward", "8-fp32", "triton", "", ())

    first, second = watch.versions[0], Version(2, state="ready")
    first.cases = [dataclasses.replace(case("a"), findings=(found("loads", "12.5 % used"), found("idle", "idle")))]
    second.cases = [dataclasses.replace(case("a"), findings=(found("loads", "6.25 % used"), found("idle", "idle")))]
    watch.versions.append(second)
    assert [line for line in watch_text.Telling(watch).lines(second) if "used" in line or "idle" in line] == [
        "still: 6.25 % used"
    ]


def test_typed_pairing_is_told_anew(watch):
    telling, second = watch_text.Telling(watch), Version(2, cases=[case("b", registers=8.0), case("c", registers=9.0)])
    second.state, second.output = "ready", ""
    watch.versions.append(second)
    assert "b 8-fp32, paired with a 8-fp32 by its place" in [*telling.lines(second)]
    assert [*watch_text._pairing(watch, second)][:2] == [
        "launches of version 2: 1 b 8-fp32, 2 c 8-fp32", "launches of version 1: 1 a 8-fp32"
    ]  # fmt: skip
    watch_text.obey(watch, "pair 1 none\n")
    watch_text.obey(watch, "pair 2 1\n")
    told = [*telling.lines(second)]
    assert "version 2: " in told[1] and {"b 8-fp32", "c 8-fp32, paired with a 8-fp32 by hand"} <= {*told}
    assert not [*telling.lines(second)]
    watch_text.obey(watch, "pin 1")
    assert watch.pinned is watch.versions[0]
    for line in ("pair 3 1", "pair 1 2", "pair x none", "pin 9", "what"):
        with pytest.raises(ValueError, match="not understood"):
            watch_text.obey(watch, line)


def test_watch_obeys_what_is_typed(watch, monkeypatch, capsys):
    read, write = os.pipe()

    async def typed():
        with watch_text._listening(watch):
            os.write(write, b"what\npin 1\n")
            while not watch.pinned:
                await asyncio.sleep(0.01)

    with os.fdopen(read) as lines:
        monkeypatch.setattr("sys.stdin", lines)
        asyncio.run(asyncio.wait_for(typed(), 10))
    os.close(write)
    assert "not understood: what" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["", "watch", "stop now", "profile x.py"])
def test_line_magic_refuses_other_words(line):
    with pytest.raises(ValueError, match="takes 'watch SCRIPT"):
        cell_magic.run_line(line)
