"""Contrast as WCAG 2.2 defines it (success criteria 1.4.3 and 1.4.11): of texts on the page, and of what figures draw."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from bokeh.colors import RGB
from bokeh.models import Axis, ColorBar, GlyphRenderer, Label, Legend, Model, Text, Title
from bokeh.palettes import Cividis256
from bokeh.plotting import figure
from tilescope_dashboard.components.charts import Chart
from tilescope_dashboard.figures.autotune import ink
from tilescope_dashboard.figures.style import DARK, LIGHT, Theme
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.compare import Compare
from tilescope_dashboard.views.history import History
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.sizes import Sizes
from tilescope_dashboard.views.summary import Summary
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

from .conftest import PREDICTED, RUN, looked_at

#: Of a text to its ground; of a large text, of a mark and of what is needed to make out a control.
TEXT, LARGE = 4.5, 3.0


def rgb(text: str) -> tuple[float, float, float]:
    """A colour's channels, 0 to 1."""
    found = RGB.from_hex_string(text) if text.startswith("#") else None
    assert found is not None, text
    return found.r / 255, found.g / 255, found.b / 255


def over(above: str, alpha: float, below: str) -> tuple[float, float, float]:
    """What is seen of a colour with that opacity."""
    pairs = zip(rgb(above), rgb(below), strict=True)
    red, green, blue = (alpha * a + (1 - alpha) * b for a, b in pairs)
    return red, green, blue


def luminance(colour: tuple[float, float, float]) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """From 1, no difference, to 21, black on white."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_wcag() -> None:
    assert contrast(rgb("#000000"), rgb("#ffffff")) == pytest.approx(21)
    assert contrast(rgb("#777777"), rgb("#ffffff")) == pytest.approx(4.48, abs=0.01)  # known to miss 4.5 by a hair
    assert over("#000000", 0.5, "#ffffff") == pytest.approx((0.5, 0.5, 0.5))
    for shade in Cividis256:
        assert contrast(rgb(ink(shade)), rgb(shade)) >= TEXT, shade


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_palette_contrast(look: Theme) -> None:
    ground = rgb(look.ground)
    for text in (look.ink, look.muted, look.accent, look.warning):
        assert contrast(rgb(text), ground) >= TEXT, text
    for mark in look.series:
        assert contrast(rgb(mark), ground) >= LARGE, mark


def texts(plot: figure) -> Iterator[tuple[str, str]]:
    """What a figure writes on its ground, and in which colour."""
    for model in plot.references():
        if isinstance(model, Label | Title) and model.text:
            yield str(model.text), model.text_color
        elif isinstance(model, Legend):
            yield "legend", model.label_text_color
        elif isinstance(model, ColorBar):
            yield "colour bar", model.major_label_text_color
        elif isinstance(model, Axis) and model.visible:
            yield "ticks", model.major_label_text_color
            yield "axis", model.axis_label_text_color
        elif isinstance(model, Text) and isinstance(model.text_color, str):
            yield "numbers", model.text_color


def marks(plot: figure) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Every mark's name, and the colours with opacities of which one has to be told from the ground: its fill or its edge."""
    for drawn in plot.renderers:
        if isinstance(drawn, GlyphRenderer) and drawn.visible and not isinstance(drawn.glyph, Text):
            rows = pd.DataFrame({k: list(v) for k, v in drawn.data_source.data.items() if len(v)})
            # A line's points are a list.
            few = pd.DataFrame({c: rows[c].map(str) for c in rows if rows[c].map(str).nunique() < 50}, index=rows.index)
            for _, row in (rows[~few.duplicated()] if len(few.columns) else rows).iterrows():
                seen = [
                    (of(drawn.glyph, f"{part}_color", row), of(drawn.glyph, f"{part}_alpha", row))
                    for part in ("fill", "line")
                ]
                yield drawn.name or type(drawn.glyph).__name__, [(c, a) for c, a in seen if isinstance(c, str)]


def of(glyph: Model, name: str, row: pd.Series) -> Any:
    """A property's value at that row; None for one the glyph has not, or that a mapper makes."""
    found = getattr(glyph, name, None)
    return row[found] if isinstance(found, str) and found in row.index else found


VIEWS: tuple[type[View], ...] = (Overview, Roofline, Traffic, Timeline, Occupancy, Compare, Summary, Sizes, History)


@pytest.mark.parametrize(("run", "theme"), [(RUN, "dark"), (PREDICTED, "light")])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name_in_address)
def test_figure_marks_contrast(view: type[View], theme: str, run: str, in_runs: None) -> None:
    state = State(run=run, kernel="softmax", view=view.name_in_address, theme=theme)
    state.compared = [f"{run}:eager"]
    look = DARK if theme == "dark" else LIGHT
    shown = view(state)
    shown.refresh()
    plots = [place.object for place in shown.__panel__().select(Chart) if place.object is not None]
    assert plots or (view is Timeline and run == PREDICTED)
    for plot in plots:
        assert plot.background_fill_color == look.ground
        for what, colour in texts(plot):
            assert contrast(rgb(colour), rgb(look.ground)) >= TEXT, (what, colour)
        for name, parts in marks(plot):
            told = [contrast(over(colour, alpha, look.ground), rgb(look.ground)) for colour, alpha in parts if alpha]
            # One that is drawn on hover only has no colour until then.
            assert not told or max(told) >= LARGE, (name, parts)


#: Every text that is seen, with its contrast: the colours as the browser blends them, through shadow roots.
SEEN = """() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true})
    const parsed = new Map()
    const parse = text => {
        if (!parsed.has(text)) {
            canvas.clearRect(0, 0, 1, 1)
            canvas.fillStyle = "#000"
            canvas.fillStyle = text
            canvas.fillRect(0, 0, 1, 1)
            const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
            parsed.set(text, [r, g, b, a / 255])
        }
        return parsed.get(text)
    }
    const blend = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)]
    const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
    const above = e => e.assignedSlot ?? e.parentElement ?? e.getRootNode().host
    const judge = (element, colour, faded = 1) => {
        // Grounds from the text's own element outwards, up to one that nothing shines through; what fades the text on the way.
        const grounds = []
        let opacity = faded
        for (let e = element; e && grounds.at(-1)?.[3] !== 1; e = above(e)) {
            const style = getComputedStyle(e)
            opacity *= +style.opacity
            grounds.push(parse(style.backgroundColor))
        }
        const ground = grounds.reduceRight((below, one) => blend(one, below), [255, 255, 255])
        const [r, g, b, a] = parse(colour)
        const [darker, lighter] = [luminance(blend([r, g, b, a * opacity], ground)), luminance(ground)].sort((x, y) => x - y)
        return (lighter + 0.05) / (darker + 0.05)
    }
    const found = []
    const exempt = e => {
        for (; e; e = above(e))
            if (e.disabled || e.getAttribute("aria-disabled") === "true" || e.classList.contains("Mui-disabled")
                || e.getAttribute("aria-hidden") === "true") return true
        return false
    }
    const visit = root => {
        for (const element of root.querySelectorAll("*")) {
            if (element.shadowRoot) visit(element.shadowRoot)
            const texts = [...element.childNodes].filter(n => n.nodeType === 3 && n.data.trim())
            const field = element.matches("input[type=text], textarea") && (element.value || element.placeholder)
            if (!texts.length && !field) continue
            const box = element.getBoundingClientRect()
            if (box.width < 2 || box.height < 2 || !element.checkVisibility({visibilityProperty: true})) continue
            if (element.matches("style, script, title, option") || exempt(element)) continue
            const hint = field && !element.value
            const style = getComputedStyle(element, hint ? "::placeholder" : undefined)
            if (hint && +style.opacity === 0) continue  // until the field has the focus its label stands there
            const size = parseFloat(style.fontSize)
            const large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700)
            const text = (field || texts.map(n => n.data.trim()).join(" ")).slice(0, 60)
            const ratio = judge(element, style.color, hint ? +style.opacity : 1)
            found.push({text, ratio, large, at: `${element.tagName}.${element.className}`})
        }
    }
    visit(document)
    return found
}"""


def faint(page: Any) -> list[str]:
    """Texts that are hard to read."""
    return [
        f"{text['text']!r} ({text['at']}): {text['ratio']:.2f}"
        for text in page.evaluate(SEEN)
        if text["ratio"] < (LARGE if text["large"] else TEXT)
    ]


#: What each theme is looked at with: all kinds of widgets, tables and texts.
TABS = {"light": ("Summary", "Advice", "Source", "Kernels"), "dark": ("Summary", "Occupancy", "Source", "Claims")}


@pytest.mark.parametrize("theme", TABS)
def test_page_texts_contrast(visit: Any, theme: str) -> None:
    page = visit(f"run={RUN}&kernel=softmax&theme={theme}&compared=%5B%22{RUN}%3Aeager%22%5D&panel=profile")
    page.get_by_role("button", name="Start profiling").wait_for()
    for tab in TABS[theme]:
        looked_at(page, tab)
        # What has just been enabled is faint until its transition has ended.
        for _ in range(20):
            if not (found := faint(page)):
                break
            page.wait_for_timeout(500)
        seen = page.evaluate(SEEN)
        assert len(seen) > 40 and any(text["text"] == tab for text in seen)
        assert not found, "\n".join([tab, *found])
    page.evaluate("""() => {
        const host = document.body.appendChild(document.createElement("div"))
        host.style.cssText = "background: #fff; opacity: 1"
        host.attachShadow({mode: "open"}).innerHTML =
            '<p style="color: #000; opacity: .4">faded</p><p style="color: #767676">told</p>'
    }""")
    ratios = {text["text"]: text["ratio"] for text in page.evaluate(SEEN)}
    assert ratios["faded"] == pytest.approx(2.85, abs=0.05)
    assert ratios["told"] == pytest.approx(4.54, abs=0.02)
