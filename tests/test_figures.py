"""Figures, tables and parameters: what a reader, a screen reader and a spreadsheet get from them."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from urllib.parse import unquote
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from companion import book as figures
from companion.book import notebook, palette, stills, svg, theme
from companion.book.kernel import find_parameters, parameters_frame, read_parameters
from companion.book.tables import csv_link, table_html
from companion.errors import InputError

DATA = pd.DataFrame(
    {
        "arm": ["global_dense", "<script>alert(1)</script>"],
        "estimate": [0.5, np.nan],
        "low": [0.25, np.nan],
        "high": [0.75, np.nan],
        "known": pd.array([True, None], dtype="boolean"),
    }
)


def chart(**settings):
    return alt.Chart(DATA, **settings).mark_bar().encode(x="estimate:Q", y="arm:N")


def soup(bundle):
    return BeautifulSoup(bundle.data["text/html"], "html.parser")


def csv_of(page):
    return pd.read_csv(io.StringIO(unquote(page.select_one("a.companion-csv")["href"].split(",", 1)[1])))


def test_a_figure_carries_spec_still_caption_table_and_alt_text():
    page = soup(figures.figure(chart(), name="recall", caption="Recall, *by route*.", alt="Bars: one is longer."))
    assert page.figure["id"] == "fig-recall"
    assert page.figcaption.em.text == "by route"
    still = page.select_one(".companion-still")
    assert page.select_one(".companion-live")["aria-label"] == still["aria-label"] == "Bars: one is longer."
    spec = json.loads(page.select_one("script.companion-spec").string)
    assert spec["width"] == "container"
    assert spec["description"] == "Bars: one is longer."
    assert still.svg["aria-hidden"] == "true"
    assert "global_dense" in still.svg.text
    assert csv_of(page)["estimate"].tolist()[0] == 0.5


def test_text_in_the_data_cannot_run():
    made = figures.figure(chart(), name="x", caption="<script>bad()</script>", alt='"><script>bad()</script>')
    page = soup(made)
    scripts = page.find_all("script")
    assert [script["type"] for script in scripts] == ["application/json"]
    assert "<" not in scripts[0].string
    assert json.loads(scripts[0].string)  # still the same JSON
    assert "<script>" in page.select_one("figcaption").text  # shown, not run


def test_the_place_of_sliders_is_kept():
    level = alt.param(name="level", value=1, bind=alt.binding_range(min=0, max=2, step=1, name="Level "))
    made = figures.figure(chart().add_params(level), name="x", caption="c", alt="a")
    assert soup(made).select_one(".companion-controls")["style"] == "--companion-inputs:1"
    assert not soup(figures.figure(chart(), name="x", caption="c", alt="a")).select_one(".companion-controls[style]")


def test_data_travel_once_as_columns_and_rows():
    page = soup(figures.figure(chart(), name="x", caption="c", alt="a"))
    (data,) = json.loads(page.select_one("script.companion-spec").string)["datasets"].values()
    assert data["columns"] == list(DATA.columns)
    assert [row[0] for row in data["rows"]] == DATA["arm"].tolist()
    assert data["rows"][1][1] is None


def drawn(svg):
    """Return what an SVG draws: every mark with its place and paint, whoever among its ancestors states them."""
    marks = []

    def walk(element, given, place):
        own = {**given, **{key: value for key, value in element.attrib.items() if key in PAINT}}
        moves = element.get("transform", "")
        here = place + [[round(float(number), 1) for number in re.findall(r"-?[\d.]+", moves)]] * bool(moves)
        name = element.tag.rpartition("}")[2]
        if name in {"line", "path", "text"} and element.get("d", "M1") != "M0,0h0v0h0Z" and element.get("d") != "":
            inked = any(own.get(key, "none") != "none" for key in ("fill", "stroke"))
            if inked and element.get("display") != "none":
                solid = {key: own[key] for key in PAINT if key in own and (name == "text") >= key.startswith("font")}
                shift = [pair for pair in here if any(pair)]
                marks.append((name, "".join(element.itertext()), sorted(solid.items()), shift))
        for child in element:
            walk(child, own, here)

    walk(ElementTree.fromstring(svg), {}, [])
    return marks


PAINT = ("fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight")


def test_still_images_are_written_small_and_draw_the_same():
    import vl_convert

    data = pd.DataFrame({"x": [0.1, 1 / 3, 0.7], "y": ["one", "two <&\"' %23", "three"], "c": ["a", "b", "a"]})
    base = alt.Chart(data).encode(x="x:Q", y="y:N", color="c:N")
    pair = alt.layer(base.mark_bar(), base.mark_text(dx=4).encode(text="y:N")) | base.mark_point()
    spec = {**pair.to_dict(), "config": theme.vega_config()}
    made = vl_convert.vegalite_to_svg(json.dumps(spec), allowed_base_urls=[])
    small = svg.inline(made, "n")
    assert len(small) < 0.8 * len(made)
    assert len(drawn(made)) > 20
    assert drawn(small) == drawn(made)
    heads = [re.match(r"<svg[^>]*>", text)[0] for text in (made, small)]
    sides = [[re.search(rf'\b{key}="([^"]+)"', head)[1] for key in ("width", "height", "viewBox")] for head in heads]
    assert sides[0] == sides[1]


def test_drawings_of_one_page_share_no_id_and_rule_nothing_outside():
    source = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"><metadata/><defs><style>*{}'
        '</style></defs><defs><path id="a" d="M1 1L2 2"/></defs>'
        '<g id="unused"><use xlink:href="#a" fill="url(#b)"/></g></svg>'
    )
    page = BeautifulSoup(svg.inline(source, "one") + svg.inline(source, "two"), "html.parser")
    assert [part["id"] for part in page.select("[id]")] == ["one-a", "two-a"]
    assert [part["href"] for part in page.select("use")] == ["#one-a", "#two-a"]
    assert "url(#one-b)" in str(page.svg)
    assert not page.select("style, metadata")


def test_the_same_figure_gives_the_same_bytes_in_another_process():
    code = (
        "import altair as alt, pandas as pd; from companion import book as figures;"
        "d = pd.DataFrame({'a': ['x', 'y'], 'b': [1.0, 2.0]});"
        "print(figures.figure(alt.Chart(d).mark_bar().encode(x='b:Q', y='a:N'), name='n', caption='c', alt='a').data)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in "12"]
    assert runs[0].stdout == runs[1].stdout


def test_composed_charts_keep_their_widths_and_lab_gets_literal_colours():
    made = figures.figure(chart(width=200) | chart(width=200), name="pair", caption="c", alt="a")
    spec = json.loads(soup(made).select_one("script.companion-spec").string)
    assert "width" not in spec
    lab = json.dumps(made.data["application/vnd.vegalite.v6+json"])
    assert "var(" not in lab
    assert "url(" not in lab


def test_unresolved_is_hatched_in_the_book_and_flat_grey_in_lab():
    data = pd.DataFrame({"state": ["admissible", "inadmissible", "unresolved"], "n": [1, 2, 3]})
    bars = (
        alt.Chart(data)
        .mark_bar()
        .encode(
            x="n:Q",
            color=alt.Color(
                "state:N", scale=alt.Scale(domain=list(palette.STATUS), range=list(palette.STATUS.values()))
            ),
        )
    )
    made = figures.figure(bars, name="states", caption="c", alt="a")
    still = soup(made).select_one(".companion-still")
    assert still.select_one("pattern")["id"] == "states-companion-hatch"
    assert "url(#states-companion-hatch)" in str(still)
    assert palette.HATCH not in json.dumps(made.data["application/vnd.vegalite.v6+json"])


@pytest.mark.parametrize("name", ["Recall", "a b", "", "1a", "a_b", 'a"b'])
def test_names_that_cannot_be_ids_are_refused(name):
    with pytest.raises(InputError, match="lower-case"):
        figures.figure(chart(), name=name, caption="c", alt="a")


def test_a_figure_needs_words():
    with pytest.raises(InputError, match="alt text is empty"):
        figures.figure(chart(), name="n", caption="c", alt=" ")
    with pytest.raises(InputError, match="caption is empty"):
        figures.table(DATA, name="n", caption="")


def test_a_seaborn_figure_follows_the_page_and_is_deterministic():
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    def draw():
        with stills.canvas("Title", x="x") as axes:
            axes.plot([0, 1], [0, 1])
        return figures.figure(axes, name="line", caption="c", alt="A line.")

    first, second = draw(), draw()
    assert first.data == second.data
    still = soup(first).select_one(".companion-still")
    assert (still["role"], still["aria-label"]) == ("img", "A line.")
    for name in ("ink", "muted", "grid"):
        colour = theme.INK["light"][f"--companion-{name}"]
        assert f"var(--companion-{name},{colour})" in str(still)
        assert str(still).count(colour) == str(still).count(f",{colour})")
    assert "CompanionSans" in str(still)  # drawn as outlines of the book's own letters
    assert first.data["image/png"].startswith("iVBOR")
    assert not plt.get_fignums()


def test_tables_have_headers_with_scope_and_show_what_is_missing():
    page = BeautifulSoup(
        table_html(DATA, name="t", caption="A table", intervals={"estimate": ("low", "high")}), "html.parser"
    )
    assert page.caption.text == "A table"
    assert [th.text for th in page.select('thead th[scope="col"]')] == ["arm", "estimate", "known"]
    assert [th.text for th in page.select('tbody th[scope="row"]')] == DATA["arm"].tolist()
    cells = [td.text for td in page.select("td")]
    assert cells == ["0.500 [0.250, 0.750]", "yes", "–", "?"]
    assert [abbr["title"] for abbr in page.select("td abbr")] == ["undefined", "unresolved"]
    assert page.select_one(".companion-scroll")["tabindex"] == "0"


WIDE = pd.DataFrame(
    {
        "route": ["global_dense"],
        "it's a \\ name": ["words and more words"],
        "recall": [0.5],
        "low": [0.25],
        "high": [0.75],
        "a long heading": [0.125],
    }
)


def test_a_table_too_wide_for_a_phone_carries_the_names_of_its_columns():
    page = BeautifulSoup(table_html(WIDE, name="t", intervals={"recall": ("low", "high")}), "html.parser")
    assert "companion-stack" in page.table["class"]
    said = dict(part.split(":", 1) for part in page.table["style"].strip(";").split(";"))
    assert list(said.values()) == [r"'it\'s a \\ name'", "'recall'", "'a long heading'"]
    headings = [th.text for th in page.select("thead th")][1:]
    assert [value[1:-1].replace("\\'", "'").replace("\\\\", "\\") for value in said.values()] == headings
    assert page.select_one("td > span").text == "[0.250, 0.750]"
    narrow = BeautifulSoup(table_html(WIDE[["route", "low"]], name="t"), "html.parser")
    assert narrow.table["class"] == ["companion-table"]
    assert not narrow.table.has_attr("style")


def test_a_table_refuses_columns_that_do_not_exist():
    with pytest.raises(InputError, match="no column 'nope'"):
        table_html(DATA, name="t", formats={"nope": ".2f"})
    with pytest.raises(InputError, match="no column 'hi'"):
        table_html(DATA, name="t", intervals={"estimate": ("low", "hi")})


def test_long_tables_are_cut_and_say_so():
    long = pd.DataFrame({"n": range(100)})
    made = figures.table(long, name="long", caption="c", max_rows=10)
    page = soup(made)
    assert len(page.select("tbody tr")) == 10
    assert "90 more rows" in page.text
    assert len(csv_of(page)) == 100


def test_csv_keeps_numbers_and_disarms_formulas():
    table = pd.DataFrame({"id": ["=1+1", "-x", "plain"], "v": [-0.123456789012, 2.0, np.nan]})
    page = BeautifulSoup(csv_link(table, "t"), "html.parser")
    back = csv_of(page)
    assert back["id"].tolist() == ["'=1+1", "'-x", "plain"]
    assert back["v"].tolist()[:2] == [-0.123456789012, 2.0]
    assert np.isnan(back["v"][2])


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6), st.integers(0, 4))
def test_numbers_read_back_to_what_was_rounded(value, digits):
    text = figures.number(value, f".{digits}f")
    assert float(text.replace("−", "-")) == pytest.approx(value, abs=0.5000001 * 10**-digits)
    assert not re.fullmatch(r"−0(\.0*)?", text)


@pytest.mark.parametrize(
    ("value", "fmt", "text"),
    [
        (-0.0001, "+.3f", "+0.000"),
        (None, ".3f", "–"),
        (pd.NA, ".3f", "–"),
        (float("inf"), ".3f", "–"),
        (1234567, ",d", "1,234,567"),
        (0.5, ".1%", "50.0%"),
        (np.int64(3), ",d", "3"),
        (-2, "d", "−2"),
    ],
)
def test_numbers_as_readers_see_them(value, fmt, text):
    assert figures.number(value, fmt) == text


def test_parameters_are_read_with_their_comments_and_compared_by_type():
    cell = '# which route\narm = "a"\ntop_k = 20  # kept\nx: float = 1.0\nnames = [\n    "a",  # first\n    "b",\n]\n'
    found = read_parameters(cell)
    assert [(item.name, item.default, item.help) for item in found] == [
        ("arm", "a", "which route"),
        ("top_k", 20, "kept"),
        ("x", 1.0, ""),
        ("names", ["a", "b"], ""),
    ]
    frame = parameters_frame(found, {"arm": "a", "top_k": 20, "x": 1, "names": ["a", "b"]})
    assert frame["changed"].tolist() == [False, False, True, False]


@pytest.mark.parametrize("cell", ["import os", "x = f()", "x, y = 1, 2", "x =", "print(1)"])
def test_a_parameters_cell_that_computes_is_refused(cell):
    with pytest.raises(InputError, match="line 1"):
        read_parameters(cell)


def test_the_parameters_cell_is_the_first_that_only_assigns_literals():
    cells = ["", "import os\nx = 1", "# Settings\ntop_k = 20", "# Parameters\ntop_k = 5"]
    assert [item.default for item in find_parameters(cells)] == [20]


@pytest.fixture
def displayed(monkeypatch):
    made = []
    monkeypatch.setattr(notebook, "display_bundle", made.append)
    return made


def glued(displayed):
    # Quoted, because the glue role reads plain text as a Python literal.
    texts = [ast.literal_eval(made.data["application/papermill.record/text/plain"]) for made in displayed]
    return dict(zip([made.metadata["scrapbook"]["name"] for made in displayed], texts, strict=True))


def test_glue_takes_numbers_texts_and_estimates_several_at_once(displayed):
    row = pd.DataFrame([{"estimate": np.float64(0.1013), "low": 0.0822, "high": 0.12, "metric": "recall"}])
    notebook.glue(one=row, two=row.iloc[0], three=dict(row.iloc[0]), four=next(row.itertuples()), fmt="+.3f")
    notebook.glue(n=np.int64(3767), x=0.5, corpus="rhelm", none={"estimate": 0.5, "low": 0.25, "high": np.nan})
    found = glued(displayed)
    assert {found.pop(name) for name in ("one", "two", "three", "four")} == {"+0.101 [+0.082, +0.120]"}
    assert found == {"n": "3,767", "x": "0.500", "corpus": "rhelm", "none": "0.500"}
    assert not [key for made in displayed for key in made.data if "headline" in key]


@pytest.mark.parametrize(
    ("fmt", "text"),
    [("pp", "−8.5 points [−10.7, −6.4]"), ("pp0", "−9 points [−11, −6]"), ("%", "−8.5% [−10.7, −6.4]")],
)
def test_glue_writes_points_and_per_cent(displayed, fmt, text):
    notebook.glue(loss={"estimate": -0.0854, "low": -0.107, "high": -0.064}, fmt=fmt)
    assert glued(displayed) == {"loss": text}


def test_a_headline_travels_with_its_number_and_its_text(displayed):
    notebook.glue(gap={"estimate": np.float64(0.5), "low": 0.25, "high": np.nan}, headline=True, fmt="%0")
    record = displayed[0].data["application/papermill.record/" + figures.render.HEADLINE_MIME]
    assert record == {"name": "gap", "estimate": 0.5, "low": 0.25, "high": None, "text": "50%"}
    assert json.dumps(record)


def test_glue_refuses_what_is_no_estimate():
    with pytest.raises(InputError, match="a table of 2 rows"):
        notebook.glue(x=pd.DataFrame({"estimate": [1, 2]}))
    with pytest.raises(InputError, match="lower-case"):
        notebook.glue(Recall=1)


PARAMETERS = "# Depth.\ntop_k = 20\n# Seed.\nseed = 0\n"


def test_a_page_at_its_defaults_shows_no_banner_and_may_assert_its_text(displayed):
    page = notebook.chapter("x", {"In": ["", PARAMETERS], "top_k": 20, "seed": 0})
    assert page.defaults
    assert displayed == []


def test_a_page_with_other_parameters_says_so_at_its_top(displayed):
    page = notebook.chapter("x", {"In": ["", PARAMETERS, "# Parameters\ntop_k = 5\n"], "top_k": 5, "seed": 0})
    assert not page.defaults
    assert page.changed == ("top_k",)
    told = soup(displayed[0]).select_one(".companion-banner")
    assert "The text of this page describes the defaults" in told.text
    assert "top_k = 5 (default 20)" in told.text
    assert notebook.HEADLINES_MARK in displayed[0].data["text/html"]


def test_a_misspelt_parameter_and_one_out_of_range_are_refused():
    with pytest.raises(InputError, match="x has no parameter 'topk': expected one of top_k, seed"):
        notebook.chapter("x", {"In": [PARAMETERS, "# Parameters\ntopk = 5\n"], "top_k": 20, "seed": 0})
    with pytest.raises(InputError, match="replicates"):
        notebook.chapter("00-front", {"In": ["replicates = 100"], "replicates": -1})


def test_headlines_stand_beside_those_of_the_defaults():
    yours = [{"name": "recall_gain", "estimate": 0.5, "low": 0.25, "high": 0.75, "text": "50%"}]
    before = [{"name": "recall_gain", "estimate": 0.4, "low": 0.3, "high": 0.5}]
    page = BeautifulSoup(notebook.headlines_html(yours, before), "html.parser")
    assert [cell.text for cell in page.select("tbody th, tbody td")] == ["recall gain", "0.400 [0.300, 0.500]", "50%"]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_stand_out_on_both_pages(mode):
    ink = theme.INK[mode]
    for colour in {*palette.CATEGORICAL, *palette.ARM.values()}:
        assert contrast(colour, ink["--companion-paper"]) >= 3, colour  # WCAG 2.2, 1.4.11
    for name in ("--companion-ink", "--companion-muted"):
        assert contrast(ink[name], ink["--companion-paper"]) >= 4.5


def test_no_route_wears_the_colour_of_a_status():
    status = {palette.ADMISSIBLE, palette.INADMISSIBLE}
    assert not status & set(palette.ARM.values())
    assert not status & {figures.arm_colour(f"arm {number}") for number in range(200)}
    assert palette.ARM["global_dense"] != palette.ARM["namespace_dense"] != palette.ARM["global_bm25"]


def test_arms_have_stable_colours():
    assert figures.arm_colour("somebody_elses_arm") == figures.arm_colour("somebody_elses_arm")
    scale = figures.arm_scale(["namespace_dense", "global_dense", "namespace_dense"]).to_dict()
    assert scale == {"domain": ["namespace_dense", "global_dense"], "range": [palette.GREEN, palette.AMBER]}


def test_the_style_sheet_and_script_are_complete():
    css, script = figures.style_sheet(), figures.bundle()
    assert "/*INK" not in css
    assert "/*CONFIG*/" not in script
    for name, colour in theme.INK["dark"].items():
        assert f"{name}:{colour}" in css
    used = set(re.findall(r"var\((--companion-[a-z]+)", css + json.dumps(theme.vega_config())))
    assert used <= {
        *theme.INK["light"],
        "--companion-soft",
        "--companion-link",
        "--companion-height",
        "--companion-inputs",
    }


def test_the_parameters_are_folded_until_one_is_changed():
    def page(top_k):
        made = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(notebook, "display_bundle", made.append)
            figures.parameters_table({"top_k": top_k}, source="# Depth.\ntop_k = 20\n")
        return made[0].data["text/html"]

    assert "<details><summary>Parameters of this page: all at their defaults</summary>" in page(20)
    changed = page(5)
    assert "<details open><summary>Parameters of this page: 1 changed from the default</summary>" in changed
    assert "5 (changed)" in changed
