"""Fields of the browser's own inputs: what a page says of them is checked, and an answer that is late takes nothing back."""

from typing import Any

import pytest
from tilescope_dashboard.components.native_button import NativeButton
from tilescope_dashboard.components.native_fields import Box, Boxes, Choice, Field, NativeFields, Note, Text

OPTIONS = {"Compiler": "compiler", "Events": "events", "Count": "ncu"}


@pytest.mark.parametrize(
    ("field", "said", "value"),
    [
        (Boxes(options=OPTIONS), ["ncu", "compiler"], ["compiler", "ncu"]), (Boxes(options=["triton"]), ["triton"], ["triton"]),
        (Boxes(options=OPTIONS, value=["ncu"]), ["rm"], ["ncu"]), (Boxes(options=OPTIONS, value=["ncu"]), "ncu", ["ncu"]),
        (Boxes(options=OPTIONS, value=["ncu"], disabled=True), [], ["ncu"]), (Boxes(options=OPTIONS), [["ncu"]], []),
        (Box(), True, True), (Box(), 1, False), (Box(), None, False),
        (Text(), {"text": "4x4-bf16", "done": True}, "4x4-bf16"), (Text(), {"text": "4x", "done": False}, ""),
        (Text(), {"text": "x" * 5000, "done": True}, ""), (Text(), "4x4", ""), (Text(), {"done": True}, ""),
        (Choice(options=OPTIONS, value="ncu"), "events", "events"), (Choice(options=OPTIONS, value="ncu"), "rm", "ncu"),
        (Choice(options=OPTIONS, value="ncu", disabled_options=["events"]), "events", "ncu"),
        (Choice(options=OPTIONS, value="ncu"), ["events"], "ncu"),
    ],
)  # fmt: skip
def test_a_page_can_only_say_what_it_was_offered(field: Field, said: Any, value: Any) -> None:
    shown = NativeFields([Note(object="<b>1</b>"), field])
    shown._handle_msg({"at": 1, "turn": 3, "value": said})
    assert field.value == value
    # In any case it hears what holds now.
    assert (shown.shown[1]["value"], shown.shown[1]["turn"], shown.shown[0]["turn"]) == (value, 3, 0)


@pytest.mark.parametrize(
    "said",
    [None, "x", {}, {"at": 7, "turn": 1}, {"at": -1, "turn": 1}, {"at": True, "turn": 1}, {"at": 0, "turn": "1"}],
)
def test_what_is_of_no_field_is_left_alone(said: Any) -> None:
    field = Text(value="kept")
    shown = NativeFields([field])
    shown._handle_msg(said)
    assert (field.value, shown.shown[0]["turn"]) == ("kept", 0)


def test_what_the_server_changes_is_described_anew() -> None:
    field = Boxes(label="pass", options=["forward"], value=["forward"])
    shown = NativeFields([field])
    field.param.update(options=["forward", "backward"], value=["backward"], visible=False)
    (told,) = shown.shown
    assert (told["options"], told["value"]) == ([("forward", "forward"), ("backward", "backward")], ["backward"])
    assert not told["visible"]


SHOWN = {"kind": "boxes", "label": "pass", "visible": True, "disabled": False, "options": [["a", "a"], ["b", "b"]]}


@pytest.mark.browser
def test_a_late_answer_takes_no_tick_back(chromium: Any) -> None:
    """Two ticks; the server answers the first one, then both, then changes them itself."""
    page = chromium.new_page()
    script = NativeFields._esm.read_text(encoding="utf-8")
    page.goto("about:blank")
    page.add_script_tag(
        content=script.replace("export function render", "window.render = function render"), type="module"
    )
    page.wait_for_function("() => window.render")
    found = page.evaluate(
        """shown => {
          const said = [], heard = []
          const model = {shown: [{...shown, value: [], turn: 0}], send_msg: one => said.push(one), on: (_, f) => heard.push(f)}
          document.body.append(render({model}))
          const boxes = [...document.querySelectorAll("input")]
          const answer = (value, turn) => {
            model.shown = [{...shown, value, turn}]
            heard.forEach(f => f())
            return boxes.map(box => box.checked)
          }
          boxes.forEach(box => box.click())
          return {said, states: [answer(["a"], 1), answer(["a", "b"], 2), answer(["b"], 2)]}
        }""",
        SHOWN,
    )
    assert [(one["at"], one["turn"], one["value"]) for one in found["said"]] == [(0, 1, ["a"]), (0, 2, ["a", "b"])]
    assert found["states"] == [[True, True], [True, True], [False, True]]


def test_a_button_that_cannot_be_pressed_is_not_heard() -> None:
    pressed: list[bool] = []
    button = NativeButton(lambda: pressed.append(True), label="Start", disabled=True)
    button._handle_msg("pressed")
    assert pressed == []
    button.disabled = False
    button._handle_msg("pressed")
    assert pressed == [True]
