"""Screens as SVG: what browsers make of the texts."""

import re
from xml.etree import ElementTree

from rich.segment import Segment
from textual.strip import Strip

from kvtop.screen_svg import COLUMN, draw_screen


def test_columns_of_figures_stay_apart_where_browsers_make_one_space_of_several():
    figures = "step" + " " * 8 + "72" + " " * 3 + "1,204"

    picture = ElementTree.fromstring(draw_screen([Strip([Segment(f"  {figures} ")])]))

    (text,) = picture.iter("{http://www.w3.org/2000/svg}text")
    assert text.text is not None
    assert len(re.sub(r"[ \t\n]+", " ", text.text).strip(" ")) * COLUMN == int(text.attrib["textLength"])
    assert text.text.replace("\N{NO-BREAK SPACE}", " ") == figures
