"""Figures and tables of the book: one look, one meaning per colour, no request to any other host.

``show`` displays an Altair chart, ``show_still`` a seaborn figure, ``show_table`` a table, ``say`` makes a number
available to the prose, and ``parameters_table`` lists the page's parameters.
"""

from companion.book.palette import (
    ADMISSIBLE,
    ARM,
    CATEGORICAL,
    HATCH,
    INADMISSIBLE,
    OURS,
    PUBLISHED,
    STATUS,
    UNRESOLVED,
    arm_colour,
    arm_scale,
    status_scale,
)
from companion.book.render import (
    Bundle,
    bundle,
    figure,
    parameters_table,
    say,
    show,
    show_still,
    show_table,
    still,
    style_sheet,
    table,
)
from companion.book.text import interval, number
from companion.book.theme import still_style

__all__ = [
    "ADMISSIBLE",
    "ARM",
    "CATEGORICAL",
    "HATCH",
    "INADMISSIBLE",
    "OURS",
    "PUBLISHED",
    "STATUS",
    "UNRESOLVED",
    "Bundle",
    "arm_colour",
    "arm_scale",
    "bundle",
    "figure",
    "interval",
    "number",
    "parameters_table",
    "say",
    "show",
    "show_still",
    "show_table",
    "status_scale",
    "still",
    "still_style",
    "style_sheet",
    "table",
]
