"""What the parameters of the chapters may be, in one table by name.

`companion.book.chapters` asks before a kernel starts, and every chapter asks again behind its parameters, so that plain
papermill gives the same answer. The functions a chapter calls check their own arguments too; this table is about what
a *chapter* can use: the depth to which its rankings are frozen, the arms that its text needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from companion.errors import InputError

Values = Mapping[str, Any]
Check = Callable[[Any, Values], str | None]
"""Takes a value and all values of the chapter; returns what was expected, or None where the value will do."""

PATHS = frozenset({"evidence", "outcomes", "records", "verifier"})
"""Parameters that may name a file or a folder."""

_DEEPEST = 10_000  # of routes that are searched while a chapter runs
_OWN, _GLOBAL = "namespace_dense", "global_dense"


# --- kinds of checks -----------------------------------------------------------------------------------------------


def whole(least: int, most: int) -> Check:
    """Expect a whole number within two ends, both allowed."""

    def check(value: Any, values: Values) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if good else f"a whole number from {least} to {most:,}"

    return check


def number(least: float, most: float = math.inf, *, above: bool = False, below: bool = False) -> Check:
    """Expect a finite number within two ends; ``above`` and ``below`` exclude the lower and the upper one."""

    def check(value: Any, values: Values) -> str | None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        good = good and least <= value <= most and not (above and value == least) and not (below and value == most)
        ends = f"{'above' if above else 'of at least'} {least:g}"
        if most < math.inf:
            ends += f" and {'below' if below else 'at most'} {most:g}"
        return None if good else f"a number {ends}"

    return check


def several(each: Check, least: int = 1) -> Check:
    """Expect a list of different items, each of which passes a check."""

    def check(value: Any, values: Values) -> str | None:
        if not isinstance(value, list | tuple) or len(value) < least:
            return f"a list of at least {least}"
        for item in value:
            expected = each(item, values)
            if expected is not None:
                return f"every item to be {expected}, which {item!r} is not"
        return None if len({*map(repr, value)}) == len(value) else "every item once"

    return check


def one_of(choices: Callable[[Values], Iterable[str]]) -> Check:
    """Expect one of some words."""

    def check(value: Any, values: Values) -> str | None:
        known = list(choices(values))
        good = isinstance(value, str) and value in known
        return None if good else f"one of {', '.join(known) or 'none: there is nothing to choose from'}"

    return check


def every(*checks: Check) -> Check:
    """Expect what all checks expect; the first that is not met speaks."""

    def check(value: Any, values: Values) -> str | None:
        return next((said for said in (one(value, values) for one in checks) if said is not None), None)

    return check


def _among(*values: float) -> Check:
    """Expect one of the numbers that a study was made for."""
    return lambda value, _: None if value in values else f"one of {', '.join(f'{v:g}' for v in values)}"


def _holding(*needed: str) -> Check:
    """Expect a list that holds some arms which the text of the chapter is about."""

    def check(value: Any, values: Values) -> str | None:
        absent = [arm for arm in needed if arm not in value]
        return f"{absent[0]} among them, because the chapter is about it" if absent else None

    return check


# --- what is known -------------------------------------------------------------------------------------------------


def _frozen(values: Values) -> Iterable[str]:
    from companion.corpora.frozen import frozen

    return frozen()


def _studied(values: Values) -> Iterable[str]:
    from companion.paths import data_dir

    return sorted(path.parent.name for path in (data_dir() / "corruption").glob("*/meta.json"))


def _live_corpus(value: Any, values: Values) -> str | None:
    """Expect a corpus whose texts are here."""
    from companion import corpora

    known = corpora.known()
    if not isinstance(value, str) or value not in known:
        return f"one of {', '.join(known)}"
    return None if known[value].is_present() else f"a corpus that is here (companion fetch {value} brings this one)"


def _live_arms(values: Values) -> Iterable[str]:
    from companion.retrieval.registry import known_arms

    return [name for name, spec in known_arms().items() if not spec.seeds]


def _frozen_arms(names: Sequence[str]) -> list[str]:
    """List the arms without chance that all of some frozen runs hold."""
    from companion.corpora.frozen import frozen_meta

    held = [[arm for arm, spec in frozen_meta(name)["arms"].items() if not spec["seeds"]] for name in names]
    return [arm for arm in held[0] if all(arm in other for other in held[1:])] if held else []


def _baselines(values: Values) -> Iterable[str]:
    """List the chapter's arms that search everything and that all of its frozen runs hold."""
    from companion.retrieval.registry import get_arm

    held = _frozen_arms([values["frozen"], *values["others"]])
    return [arm for arm in values["arms"] if arm in held and get_arm(arm).role == "baseline"]


def _deepest(names: Sequence[str], arms: Sequence[str]) -> int:
    """Return the depth to which all of some frozen runs can be scored on all of some arms."""
    from companion.corpora.frozen import frozen_meta

    deepest = []
    for name in names:
        meta = frozen_meta(name)
        # An arm that never returns more than this is whole at any depth.
        own = {arm: spec["params"].get("depth") for arm, spec in meta["arms"].items()}
        kept = [depth for arm, depth in meta["depths"].items() if arm in arms and depth != own[arm]]
        deepest.append(min(kept, default=meta["top_k"]))
    return min(deepest, default=_DEEPEST)


def _depth(names: Callable[[Values], Sequence[str]], arms: Callable[[Values], Sequence[str]]) -> Check:
    """Expect a depth that the frozen rankings reach: deeper, a route that was cut would seem to find little."""

    def check(value: Any, values: Values) -> str | None:
        expected = whole(1, _DEEPEST)(value, values)
        if expected is not None:
            return expected
        runs = list(names(values))
        most = _deepest(runs, arms(values))
        return None if value <= most else f"at most {most}, the depth to which these arms of {', '.join(runs)} are kept"

    return check


def _beside_gatemem(values: Values) -> list[str]:
    return list(dict.fromkeys([values["corpus"], *(name for name in _frozen({}) if name == "gatemem")]))


# --- files -----------------------------------------------------------------------------------------------------------


def _outcomes(value: Any, values: Values) -> str | None:
    from companion import tables

    if not isinstance(value, str):
        return "the name of a file, or nothing"
    # the messages name the file, and the row or the unit that is wrong or missing
    if value and tables.read_table(value, "outcomes").empty:
        raise InputError(f"{value}: no rows; expected one row for each reader and unit")
    return None


def _verifier(value: Any, values: Values) -> str | None:
    from companion.stages import verification

    if not isinstance(value, str):
        return f"one of {', '.join(verification.LOCAL)}, or a file of probabilities"
    verification.get(value)
    return None


def _evidence(value: Any, values: Values) -> str | None:
    from companion.corpora import evidence

    if not isinstance(value, str):
        return "the name of a folder, or nothing"
    if value and not (Path(value) / evidence.CASE_SCORES).is_file():
        return f"a folder that holds {evidence.CASE_SCORES} (companion fetch evidence brings one)"
    return None


def _query(value: Any, values: Values) -> str | None:
    """Expect a query of the corpus that has an anchor, or nothing."""
    from companion import corpora
    from companion.scoring import anchors_of

    if not isinstance(value, str):
        return "the id of a query, or nothing"
    if not value:
        return None
    corpus = corpora.load(values["corpus"]).restrict("evaluation")
    if value not in set(corpus.queries["query_id"]):
        return f"the query_id of an evaluation query of {values['corpus']}, or nothing"
    anchored = set(anchors_of(corpus.records().check())["query_id"])
    return None if value in anchored else "a query with an anchor (a known usable memory)"


def _folder(value: Any, values: Values) -> str | None:
    good = isinstance(value, str) and (not value or Path(value).is_dir())
    return None if good else "a folder of tables that exists, or empty for the example"


# --- the table -----------------------------------------------------------------------------------------------------

_FROZEN_RUN, _SHARE, _TARGET = one_of(_frozen), number(0, 1), number(0, 1, above=True)
_SEARCHED_DEPTH = whole(1, _DEEPEST)
_AUDIENCE = {"corpus": _FROZEN_RUN, "arms": several(one_of(lambda v: _frozen_arms(_beside_gatemem(v))), 2)}

NAMES: dict[str, Check] = {
    "corpus": _live_corpus,
    "frozen": _FROZEN_RUN,
    "others": several(_FROZEN_RUN, 0),
    "records": _folder,
    "arms": several(one_of(_live_arms)),
    "reference": one_of(_baselines),
    "gates": several(one_of(lambda v: ("scope", "policy", "lifecycle")), 0),
    "stratify": one_of(lambda v: ("axis", "none")),
    "evidence": _evidence,
    "outcomes": _outcomes,
    "verifier": _verifier,
    "query": _query,
    "top_k": _SEARCHED_DEPTH,
    "items": whole(1, _DEEPEST),
    "target_recall": _TARGET,
    "infeasibility_cost": number(0),
    "targets": several(_TARGET),
    "depths": several(_depth(lambda v: [v["frozen"]], lambda v: v["arms"])),
    "hidden_rates": several(_SHARE),
    "rates": several(_SHARE),
    "false_denial_limit": _SHARE,
    "kept": several(one_of(_studied), 0),
    "labels_shown": whole(1, 1000),
    "share": _among(0.01, 0.05, 0.2, 0.5),
    "budget": _among(1, 5, 20, 100),
    "seeds": whole(1, 1000),
    "simulations": whole(1, 100_000),
    "replicates": whole(1, 1_000_000),
    "confidence": number(0, 1, above=True, below=True),
    "seed": whole(0, 2**32 - 1),
}
"""Parameter to check, the same in every chapter; a check may rely on those above it."""

CHAPTERS: dict[str, dict[str, Check]] = {
    "00-front": {"top_k": _depth(lambda v: [v["frozen"]], lambda v: [_GLOBAL, _OWN])},
    "01-admissibility": {"arms": several(one_of(_live_arms), 2)},
    "02-support": {
        "arms": every(several(one_of(lambda v: _frozen_arms([v["frozen"]])), 2), _holding(_OWN)),
        "top_k": every(
            _depth(lambda v: [v["frozen"]], lambda v: v["arms"]),
            _depth(lambda v: v["others"], lambda v: [v["reference"], _OWN]),
        ),
    },
    "04-exposure": {**_AUDIENCE, "top_k": _depth(_beside_gatemem, lambda v: v["arms"])},
    "06-audit": {"items": whole(1, 100)},
    "08-open-questions": {"corpus": one_of(lambda v: ["demo", "rhelm", "gatemem"])},
}
"""What a chapter asks of a parameter instead."""


def check(chapter: str, values: Values) -> None:
    """Refuse values that a chapter cannot use; ``values`` are its parameters, and no other names."""
    for name, within in {**NAMES, **CHAPTERS.get(chapter, {})}.items():
        if name not in values:
            continue
        try:
            expected = within(values[name], values)
        except InputError as error:
            raise InputError(f"{chapter}, parameter {name}: {error}") from error
        if expected is not None:
            raise InputError(f"{chapter}, parameter {name}: {short(values[name])}; expected {expected}")


def short(value: Any) -> str:
    """Write any value for a message."""
    try:
        return repr(value)[:200]
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
