"""Figures and tables of the book: one look, one meaning per colour, no request to any other host.

``chapter`` checks a page's parameters, ``glue`` makes numbers available to its prose, ``show`` displays an Altair
chart or a seaborn figure, ``show_table`` a table, and ``parameters_table`` lists the page's parameters.
:mod:`companion.book.charts` has the charts that chapters share.
"""

from companion.book.notebook import Chapter, chapter, glue, parameters_table
from companion.book.palette import (
    ADMISSIBLE,
    ARM,
    ARM_NAMES,
    CATEGORICAL,
    HATCH,
    INADMISSIBLE,
    OURS,
    PUBLISHED,
    STATUS,
    UNRESOLVED,
    arm_colour,
    arm_name,
    arm_scale,
)
from companion.book.render import Bundle, bundle, figure, show, show_table, style_sheet, table
from companion.book.text import interval, number
from companion.book.theme import still_style

__all__ = [
    "ADMISSIBLE",
    "ARM",
    "ARM_NAMES",
    "CATEGORICAL",
    "HATCH",
    "INADMISSIBLE",
    "OURS",
    "PUBLISHED",
    "STATUS",
    "UNRESOLVED",
    "Bundle",
    "Chapter",
    "arm_colour",
    "arm_name",
    "arm_scale",
    "bundle",
    "chapter",
    "figure",
    "glue",
    "interval",
    "number",
    "parameters_table",
    "show",
    "show_table",
    "still_style",
    "style_sheet",
    "table",
]
