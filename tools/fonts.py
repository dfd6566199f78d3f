"""Make the book's fonts, once: ``python tools/fonts.py SANS_FOLDER CODE_FOLDER`` (needs fonttools and brotli).

The folders are the unpacked npm packages ``source-sans`` 3.52.0 and ``source-code-pro`` 2.42.0 (SIL Open Font License
1.1). A subset is a modified version, and the licence reserves the name "Source" for the originals: so the families are
called Companion Sans and Companion Code. Pages load the woff2 files; drawings are made with the ttf files, because
neither matplotlib nor Vega's converter reads woff2 or the axis of a variable font.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from fontTools.varLib import instancer

OUT = Path(__file__).resolve().parents[1] / "src" / "companion" / "book" / "assets" / "fonts"
_EXTRA = "ΑΒΓΔΘΛΣΩαβγδεθκλμνπρστφχψω–—‘’‚“”„•…‹›€™−∕∙√∞∂∆∏∑∫≈≠≤≥←↑→↓◊▲►▼◀●■★✓ﬁﬂ⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉"
CHARACTERS = [*range(0x20, 0x7F), *range(0xA0, 0x180), *map(ord, _EXTRA)]
FEATURES = ["kern", "liga", "tnum", "lnum", "ccmp", "locl", "mark", "mkmk", "sups"]


def make(source: Path, family: str, weights: tuple[int, int] | int, target: Path, style: str) -> None:
    """Write one subset: a variable woff2 for a range of weights, a static ttf for one."""
    font = TTFont(source)
    options = subset.Options(layout_features=FEATURES, name_IDs=[0, 1, 2, 3, 4, 5, 6, 13, 14], hinting=False)
    chosen = subset.Subsetter(options)
    chosen.populate(unicodes=CHARACTERS)
    chosen.subset(font)
    instancer.instantiateVariableFont(font, {"wght": weights}, inplace=True)
    plain = family.replace(" ", "")
    for record in list(font["name"].names):
        if record.nameID in {16, 17, 21, 22, 25}:
            font["name"].removeNames(nameID=record.nameID)
    for name, text in {
        1: family,
        2: style,
        3: f"{plain}-{style}",
        4: f"{family} {style}",
        6: f"{plain}-{style}",
    }.items():
        font["name"].setName(text, name, 3, 1, 0x409)
        font["name"].removeNames(nameID=name, platformID=1)
    font["OS/2"].usWeightClass = weights if isinstance(weights, int) else 400
    font.flavor = "woff2" if target.suffix == ".woff2" else None
    target.parent.mkdir(parents=True, exist_ok=True)
    font.save(target)
    print(f"{target.name}: {target.stat().st_size:,} bytes")


def main() -> None:
    """Write all of them, with the licence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sans", type=Path)
    parser.add_argument("code", type=Path)
    args = parser.parse_args()
    upright, italic = (args.sans / "VF" / f"SourceSans3VF-{style}.ttf" for style in ("Upright", "Italic"))
    code = args.code / "VF" / "SourceCodeVF-Upright.ttf"
    make(upright, "Companion Sans", (400, 700), OUT / "sans.woff2", "Regular")
    make(italic, "Companion Sans", (400, 700), OUT / "sans-italic.woff2", "Italic")
    make(code, "Companion Code", (400, 700), OUT / "code.woff2", "Regular")
    make(upright, "Companion Sans", 400, OUT / "sans-regular.ttf", "Regular")
    make(upright, "Companion Sans", 600, OUT / "sans-bold.ttf", "Bold")
    (OUT / "LICENSE.txt").write_text((args.sans / "LICENSE.md").read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
