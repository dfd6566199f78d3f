"""Make the demo corpus, at the committed size or up to a thousand times larger.

``python tools/demo.py`` writes ``data/demo`` anew, with the sums in its README; ``python tools/demo.py FOLDER SCALE``
writes a larger corpus as Parquet. The authored sentences and questions stand in ``tools/demo_content``.

What decides a label is authored once per sentence: its state, its restriction, what it copies, which question needs
it. This *structure* (`structure`) is the same in every replica; names, dates, doses and amounts are drawn anew. Scale
``n`` is ``n`` replicas of twelve principals, so labels are one integer table whose ids are substituted, and
scale 1,000 takes minutes.

The rules (three-valued logic, with the choices it leaves open):

scope
    1 within the principal's namespace, 0 outside; unresolved where the ownership of a memory is doubtful.
policy
    AND of these: the restriction on the memory lists the purposes that may read it (`READERS`), and only in the asker's
    own namespace; some purposes may only touch some subjects (`SUBJECTS`); what was to be forgotten is closed to
    every purpose but ``erasure``, which asks about the forgetting itself. A doubtful restriction that would close the
    memory leaves policy unresolved, and so does doubtful ownership: it is not known whose rules apply.
lifecycle
    From state and intent (`companion.logic.lifecycle`). A memory that certainly copies another has the state of its
    original, however it is marked itself; if that is uncertain its state counts as unknown. Forgotten content is
    out of force under every known intent, also for a question about the forgetting: that question is
    answered by the record of the request.
relevant
    Authored: 1 for what answers and for its near copies, 0 for what was judged and for other subjects, unresolved for
    the rest of the subject and for other namespaces.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from casts import CASTS, Slots

from companion import logic
from companion.corpora.demo import FILES, demo_dir
from companion.errors import InputError
from companion.tables import atomic_path, write_table

CONTENT = Path(__file__).parent / "demo_content"
VARIANTS = "abc"
"""The three principals of a setting in one replica: twins in part, each with memories of its own."""

MAX_SCALE = 1000
FIRST_MONDAY = dt.date(2025, 1, 6)
"""Day 0 of principal a in the committed corpus; b and c follow one and two weeks later."""

READERS: dict[str, dict[str, frozenset[str]]] = {
    "company": {
        "hr": frozenset({"hr"}),
        "minor": frozenset({"hr"}),
        "audit": frozenset({"audit"}),
        "pricing": frozenset({"audit"}),
        "consent": frozenset(),
        "board": frozenset(),
        "patient": frozenset(),
    },
    "medication": {
        "psy": frozenset({"therapy"}),
        "teen": frozenset({"care", "therapy"}),
        "family": frozenset({"care", "therapy"}),
        "incident": frozenset({"audit"}),
        "study": frozenset(),
        "minor": frozenset(),
    },
    "legal": {
        "priv": frozenset({"counsel", "client", "hr"}),
        "nego": frozenset({"counsel", "client", "hr"}),
        "embargo": frozenset({"counsel", "client", "hr"}),
        "priced": frozenset({"counsel"}),
        "eyes": frozenset({"counsel"}),
        "minor": frozenset({"counsel"}),
        "hr": frozenset({"hr"}),
    },
    "personal": {
        "intimate": frozenset({"owner"}),
        "money": frozenset({"owner"}),
        "surprise": frozenset({"owner"}),
        "kids": frozenset({"owner", "delegate"}),
        "code": frozenset({"owner", "delegate"}),
        "optout": frozenset(),
    },
}
"""Setting -> restriction on a memory -> purposes that may read it in their own namespace."""

SUBJECTS: dict[str, dict[str, frozenset[str]]] = {
    "company": {},
    "medication": {"research": frozenset({"study"})},
    "legal": {
        "outside": frozenset(
            [
                "matter",
                "expert",
                "minutes",
                "witness-contact",
                "cargo",
                "hearing",
                "announcement",
                "seat",
                "opponent",
                "mediation",
                "crew",
            ]
        )
    },
    "personal": {
        "guest": frozenset(
            [
                "self",
                "food",
                "allergy",
                "pets",
                "keys",
                "phone",
                "music",
                "music-things",
                "child-things",
                "child-health",
                "child-care",
                "home",
            ]
        )
    },
}
"""Setting -> purpose -> the only subjects it may touch; a purpose that is not listed may touch all."""

_CHOICE = re.compile(r"\[([^\[\]~]*(?:~[^\[\]~]*)+)\]")
_PHRASINGS = 6  # choices have two or three ways: six combinations of residues cover them
_DATE_FORMS = {"": "{d} {m}", "w": "{w}", "m": "{m}", "d": "{w} {d} {m}"}
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]  # spelled out: strftime follows the locale
_MINUTES_A_DAY = 1440
_EPOCH = np.datetime64("2025-01-01T00:00", "m")


# --- Structure: what is the same in every replica ----------------------------------------------------------------


@dataclass(frozen=True)
class Structure:
    """Everything about a replica that does not depend on names, dates and amounts."""

    memories: pd.DataFrame
    queries: pd.DataFrame
    labels: pd.DataFrame


@lru_cache(maxsize=1)
def structure() -> Structure:
    """Read the authored sentences and questions, and derive the labels from the rules."""
    memories, queries = _lay_out("memories"), _lay_out("queries")
    memories = _resolve_copies(memories)
    return Structure(memories, queries, _label(memories, queries))


def _lay_out(kind: str) -> pd.DataFrame:
    """Give every principal its sentences (or questions), in order of time."""
    parts = []
    for setting in CASTS:
        source = CONTENT / f"{setting}_{kind}.psv"
        with source.open(encoding="utf-8") as file:
            authored = pd.read_csv(file, sep="|", dtype="str", keep_default_na=False, quoting=3)
        parts += [_of_variant(authored, setting, variant) for variant in range(len(VARIANTS))]
    return pd.concat(parts, ignore_index=True)


def _of_variant(authored: pd.DataFrame, setting: str, variant: int) -> pd.DataFrame:
    who = authored["who"]
    part = authored[who.eq("*") | who.str.contains(VARIANTS[variant], regex=False)].copy()
    # The minute within office hours depends on the sentence, so that twins are not written at the same time.
    minute = [480 + zlib.crc32(f"{setting} {key} {variant}".encode()) % 570 for key in part["key"]]
    start = 7 * variant * _MINUTES_A_DAY
    part["moment"] = start + part["day"].astype("int64") * _MINUTES_A_DAY + np.asarray(minute, dtype=np.int64)
    part = part.sort_values(["moment", "key"], kind="stable", ignore_index=True)
    return part.assign(setting=setting, variant=variant, number=np.arange(1, len(part) + 1))


def _resolve_copies(memories: pd.DataFrame) -> pd.DataFrame:
    """Split the tag column into restriction, original and doubts, and find the state that counts."""
    tag = memories["tags"]
    sure = ~tag.str.endswith("?")
    name = tag.str.rstrip("?")
    copies = name.str.startswith("=")
    misfiled = name.eq("misfiled")
    row_of = {place: row for row, place in enumerate(_places(memories, memories["key"]))}
    wanted = _places(memories, name.str.removeprefix("="))
    original = np.array([row_of[place] if copy else -1 for place, copy in zip(wanted, copies, strict=True)])
    inherited = memories["state"].to_numpy(dtype=object)[original]
    effective = np.where(copies, np.where(sure, inherited, "unknown"), memories["state"].to_numpy(dtype=object))
    return memories.assign(
        restriction=name.where(~copies & ~misfiled, ""),
        restriction_sure=sure,
        misfiled=misfiled,
        original=original,
        copy_sure=sure,
        effective=effective,
        forgotten=copies & (inherited == "forgotten") | memories["state"].eq("forgotten"),
    )


def _places(frame: pd.DataFrame, keys: pd.Series) -> Iterator[tuple[str, int, str]]:
    return zip(frame["setting"], frame["variant"], keys, strict=True)


# --- Rules: what decides a label ---------------------------------------------------------------------------------


def _label(memories: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    """Label every visible memory of the asker's namespace, and the twins and doubtful memories of its setting."""
    pairs = _pairs(memories, queries)
    own = pairs["variant_m"].eq(pairs["variant_q"])
    labels = pd.DataFrame(
        {
            "query": pairs["query"],
            "memory": pairs["memory"],
            "relevant": _relevant(pairs, own),
            "scope": own.astype("boolean").mask(pairs["misfiled"], pd.NA),
            "policy": policy(pairs, own),
            "lifecycle": logic.lifecycle(pairs["effective"], pairs["intent"]),
            "item": pairs["item"],
        }
    )
    labels["note"] = _notes(labels, pairs)
    return labels


def _pairs(memories: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    """Pair queries with memories of their setting that were written before, and drop unrelated foreign ones."""
    left = queries.rename_axis("query").reset_index()
    right = memories.drop(columns=["text", "who", "day"]).rename_axis("memory").reset_index()
    pairs = left.merge(right, on="setting", suffixes=("_q", "_m"))
    pairs = pairs[pairs["moment_m"] < pairs["moment_q"]].reset_index(drop=True)
    named = _named(queries)
    keys = list(zip(pairs["query"], pairs["key_m"], strict=True))
    found = [named.get(key, ("", 0)) for key in keys]
    pairs["role"] = [role for role, _ in found]
    pairs["item"] = np.array([item for _, item in found], dtype=np.int64)
    own = pairs["variant_q"].eq(pairs["variant_m"])
    pairs.loc[~own, "item"] = 0
    return pairs[own | pairs["role"].ne("") | pairs["misfiled"]].reset_index(drop=True)


def _named(queries: pd.DataFrame) -> dict[tuple[int, str], tuple[str, int]]:
    """Map (query row, memory key) to the role the author gave it and the number of its interchangeable item."""
    named: dict[tuple[int, str], tuple[str, int]] = {}
    for row, query in enumerate(queries.to_dict("records")):
        for role in ("unsure", "not", "also"):
            named.update({(row, key): (role, 0) for key in query[role].split()})
        for item, members in enumerate(query["needs"].split(), start=1):
            keys = members.split("/")
            named.update({(row, key): ("needs", item if len(keys) > 1 else 0) for key in keys})
    return named


def _relevant(pairs: pd.DataFrame, own: pd.Series) -> pd.Series:
    subjects = pairs[own & pairs["role"].isin(["needs", "also"])].groupby("query")["topic_m"].agg(frozenset)
    about = pairs["query"].map(subjects)
    same = [
        topic == asked or (isinstance(more, frozenset) and topic in more)
        for topic, asked, more in zip(pairs["topic_m"], pairs["topic_q"], about, strict=True)
    ]
    relevant = pairs["role"].isin(["needs", "also"]).astype("boolean")
    unjudged = pairs["role"].eq("unsure") | (pairs["role"].eq("") & pd.Series(same, index=pairs.index))
    return relevant.mask(unjudged | ~own, pd.NA)


def policy(pairs: pd.DataFrame, own: pd.Series) -> pd.Series:
    """Apply the policy rules to pairs of a query and a memory."""
    cleared, within = [], []
    columns = ["setting", "purpose", "topic_m", "restriction"]
    for setting, purpose, topic, restriction in pairs[columns].itertuples(index=False):
        cleared.append(not restriction or purpose in READERS[setting][restriction])
        within.append(topic in SUBJECTS[setting].get(purpose, {topic}))
    free = pairs["restriction"].eq("")
    open_ = (free | (pd.Series(cleared, index=pairs.index) & own)).astype("boolean")
    open_ = open_.mask(~open_.astype(bool) & ~pairs["restriction_sure"], pd.NA)
    kept = (~pairs["forgotten"] | pairs["purpose"].eq("erasure")).astype("boolean")
    kept = kept.mask(~kept.astype(bool) & ~pairs["copy_sure"], pd.NA)
    governed = pd.Series(True, index=pairs.index, dtype="boolean").mask(pairs["misfiled"], pd.NA)
    return logic.conjunction([open_, pd.Series(within, index=pairs.index, dtype="boolean"), kept, governed])


def _notes(labels: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Say why an axis is unresolved, and where a state was inherited from an original."""
    memory_doubt = labels["scope"].isna() | labels["policy"].isna()
    memory_doubt |= labels["lifecycle"].isna() & pairs["effective"].eq("unknown")
    reasons = [
        pairs["why_m"].where(memory_doubt, ""),
        pairs["why_q"].where(labels["lifecycle"].isna() & pairs["intent"].eq("unknown"), ""),
        pd.Series(np.where(pairs["original"].ge(0) & pairs["copy_sure"], _COPY_NOTE, ""), index=pairs.index),
    ]
    joined = ["; ".join(filter(None, row)) for row in zip(*reasons, strict=True)]
    return pd.Series(joined, index=pairs.index, dtype="str")


_COPY_NOTE = "repeats another memory (copy_of) and shares its fate, although it is not marked"


# --- Surface: names, dates and amounts ---------------------------------------------------------------------------


class _Details(dict[str, str]):
    """Slots of one principal; a slot that starts with @ is a date counted from its day 0."""

    def __init__(self, slots: Slots, start: dt.date) -> None:
        super().__init__(slots)
        self.start = start

    def __missing__(self, slot: str) -> str:
        if not slot.startswith("@"):
            raise KeyError(slot)
        return _date_words(self.start, slot)


@lru_cache(maxsize=100_000)
def _date_words(start: dt.date, slot: str) -> str:
    days = slot[1:].rstrip("wmd")
    date = start + dt.timedelta(days=int(days))
    form = _DATE_FORMS[slot[1 + len(days) :]]
    return form.format(d=date.day, m=_MONTHS[date.month - 1], w=_WEEKDAYS[date.weekday()])


@lru_cache(maxsize=100_000)
def _phrase(text: str, turn: int) -> str:
    """Choose one way of every choice in a text; neighbouring turns choose differently."""
    count = iter(range(zlib.crc32(text.encode()) % _PHRASINGS, 10**9))

    def pick(match: re.Match[str]) -> str:
        ways = match[1].split("~")
        return ways[(turn + next(count)) % len(ways)]

    return _CHOICE.sub(pick, text)


def _say(text: str, turn: int, details: _Details) -> str:
    said = _phrase(text, turn % _PHRASINGS).format_map(details)
    return said[:1].upper() + said[1:]


def _shift(replica: int, seed: int) -> int:
    """Weeks by which a replica starts later; the committed replica starts at `FIRST_MONDAY`."""
    return Random(f"weeks {seed} {replica}").randrange(26) if replica or seed else 0


def _principals(replica: int, seed: int) -> list[_Details]:
    """Draw the twelve principals of a replica, in the order of the namespaces in `structure`."""
    monday = FIRST_MONDAY + dt.timedelta(weeks=_shift(replica, seed))
    return [
        _Details(slots, monday + dt.timedelta(weeks=variant))
        for setting, draw in CASTS.items()
        for variant, slots in enumerate(draw(Random(f"{setting} {seed} {replica}")))
    ]


def _block(replicas: Sequence[int], seed: int, seen: set[int]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Render several replicas into the three tables; `seen` remembers the texts of earlier blocks."""
    whole = structure()
    people = [_principals(replica, seed) for replica in replicas]
    weeks = np.array([_shift(replica, seed) for replica in replicas])
    memories = _memories(whole, replicas, people, weeks)
    memories["text"] = pd.array(_signed(memories, seen), dtype="str")
    queries = _queries(whole, replicas, people, weeks)
    return memories, queries, _labels(whole.labels, len(replicas), memories, queries)


def _memories(
    whole: Structure, replicas: Sequence[int], people: list[list[_Details]], weeks: npt.NDArray[Any]
) -> pd.DataFrame:
    frame = whole.memories
    common = _common(frame, replicas, people, weeks, "m")
    ids = common["id"].to_numpy(dtype=object)
    step = len(frame)
    original = np.tile(frame["original"], len(replicas))
    base = np.repeat(np.arange(len(replicas)) * step, step)
    copies = original >= 0
    copy_of = np.full(len(ids), None, dtype=object)
    copy_of[copies] = ids[(base + original)[copies]]
    restriction = (frame["restriction"] + np.where(frame["restriction_sure"], "", "?")).where(
        frame["restriction"].ne("")
    )
    repeats = len(replicas)
    return pd.DataFrame(
        {
            "memory_id": common["id"],
            "namespace": common["namespace"],
            "group": common["namespace"],
            "source": common["source"],
            "order": common["order"],
            "time": common["time"],
            "state": _tile(frame["state"], repeats),
            "text": common["text"],
            "tenant": common["tenant"],
            "topic": _tile(frame["topic"], repeats),
            "restriction": _tile(restriction, repeats),
            "copy_of": pd.array(copy_of, dtype="str"),
            "copy_certain": pd.array(np.tile(frame["copy_sure"], repeats), dtype="boolean"),
            "ownership": _tile(pd.Series(np.where(frame["misfiled"], "doubtful", "certain")), repeats),
            "skeleton": _tile(frame["key"], repeats),
        }
    ).assign(copy_certain=lambda df: df["copy_certain"].mask(df["copy_of"].isna(), pd.NA))


def _signed(memories: pd.DataFrame, seen: set[int]) -> list[str]:
    """Sign a memory that says word for word what an earlier one says: whose it is, and the day it was written."""
    texts: list[str] = []
    for text, tenant, time in zip(memories["text"], memories["tenant"], memories["time"], strict=True):
        mark = zlib.crc32(text.encode()) << 32 | zlib.adler32(text.encode())
        if mark in seen:
            texts.append(f"{text} – {tenant}, {int(time[8:10])} {_MONTHS[int(time[5:7]) - 1]}")
        else:
            texts.append(text)
        seen.add(mark)
    return texts


def _queries(
    whole: Structure, replicas: Sequence[int], people: list[list[_Details]], weeks: npt.NDArray[Any]
) -> pd.DataFrame:
    frame, repeats = whole.queries, len(replicas)
    common = _common(frame, replicas, people, weeks, "q")
    said = [
        _say(role, 0, who[place]) for who in people for role, place in zip(frame["role"], _place_of(frame), strict=True)
    ]
    return pd.DataFrame(
        {
            "query_id": common["id"],
            "namespace": common["namespace"],
            "group": common["namespace"],
            "source": common["source"],
            "split": pd.array(["evaluation"] * len(common), dtype="str"),
            "stratum": _tile(frame["setting"] + ":" + frame["intent"], repeats),
            "intent": _tile(frame["intent"], repeats),
            "principal": pd.array(said, dtype="str"),
            "time": common["time"],
            "text": common["text"],
            "order": common["order"],
            "purpose": _tile(frame["purpose"], repeats),
            "topic": _tile(frame["topic"], repeats),
            "skeleton": _tile(frame["key"], repeats),
        }
    )


def _common(
    frame: pd.DataFrame,
    replicas: Sequence[int],
    people: list[list[_Details]],
    weeks: npt.NDArray[Any],
    letter: str,
) -> pd.DataFrame:
    """Ids, namespaces, times and texts, which memories and queries have alike."""
    rows = list(zip(frame["setting"], frame["variant"], frame["number"], frame["text"], _place_of(frame), strict=True))
    names, ids, texts, tenants = [], [], [], []
    for replica, who in zip(replicas, people, strict=True):
        for setting, variant, number, text, place in rows:
            name = f"{setting}-{len(VARIANTS) * replica + variant + 1:04d}"
            names.append(name)
            ids.append(f"{name}-{letter}{number:02d}")
            texts.append(_say(text, replica + variant, who[place]))
            tenants.append(who[place]["tenant"])
    day_zero = (np.datetime64(FIRST_MONDAY, "m") - _EPOCH).astype(np.int64)
    shifts = np.repeat(weeks * 7 * _MINUTES_A_DAY, len(frame))
    moments = np.tile(frame["moment"], len(replicas)) + shifts + day_zero
    times = np.datetime_as_string(_EPOCH + moments.astype("timedelta64[m]"), unit="m")
    return pd.DataFrame(
        {
            "id": pd.array(ids, dtype="str"),
            "namespace": pd.array(names, dtype="str"),
            "source": _tile(frame["setting"], len(replicas)),
            "order": moments,
            "time": pd.array(times, dtype="str"),
            "text": pd.array(texts, dtype="str"),
            "tenant": pd.array(tenants, dtype="str"),
        }
    )


def _place_of(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the number of the principal among the twelve of a replica."""
    settings = {setting: number for number, setting in enumerate(CASTS)}
    return np.asarray(frame["setting"].map(settings) * len(VARIANTS) + frame["variant"], dtype=np.int64)


def _tile(column: pd.Series, repeats: int) -> Any:
    return pd.array(np.tile(column.to_numpy(dtype=object), repeats), dtype="str")


def _labels(frame: pd.DataFrame, repeats: int, memories: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    """Substitute the ids of every replica into the one table of labels."""
    steps = {"query": len(queries) // repeats, "memory": len(memories) // repeats}
    rows = {
        side: (np.arange(repeats)[:, None] * step + frame[side].to_numpy()[None, :]).ravel()
        for side, step in steps.items()
    }
    query_ids = queries["query_id"].to_numpy(dtype=object)[rows["query"]]
    item = np.tile(frame["item"], repeats)
    anchor = np.full(len(item), None, dtype=object)
    shared = item > 0
    anchor[shared] = [f"{query}-i{number}" for query, number in zip(query_ids[shared], item[shared], strict=True)]
    note = frame["note"].where(frame["note"].ne(""))
    axes = {axis: pd.concat([frame[axis]] * repeats, ignore_index=True) for axis in ("relevant", *logic.AXES)}
    return pd.DataFrame(
        {
            "query_id": pd.array(query_ids, dtype="str"),
            "memory_id": pd.array(memories["memory_id"].to_numpy(dtype=object)[rows["memory"]], dtype="str"),
            **axes,
            "anchor_id": pd.array(anchor, dtype="str"),
            "note": _tile(note, repeats),
        }
    )


# --- What others call ---------------------------------------------------------------------------------------------


def generate(scale: int = 1, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Make memories, queries and labels in memory."""
    blocks = list(_blocks(scale, seed))
    memories, queries, labels = (pd.concat(parts, ignore_index=True) for parts in zip(*blocks, strict=True))
    return memories, queries, labels


def write_scaled(out_dir: str | PathLike[str], scale: int, seed: int = 0) -> dict[str, Path]:
    """Make a corpus and stream it to Parquet, twenty replicas (a row group) at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _check(scale, seed)
    paths = {name: Path(out_dir) / f"{name}.parquet" for name in ("memories", "queries", "labels")}
    with ExitStack() as stack:
        temporary = {name: stack.enter_context(atomic_path(path)) for name, path in paths.items()}
        writers: dict[str, pq.ParquetWriter] = {}
        for block in _blocks(scale, seed):
            for name, frame in zip(paths, block, strict=True):
                table = pa.Table.from_pandas(frame, schema=_arrow_schema(frame), preserve_index=False)
                if name not in writers:
                    writers[name] = stack.enter_context(pq.ParquetWriter(temporary[name], table.schema))
                writers[name].write_table(table)
    return paths


def _arrow_schema(frame: pd.DataFrame) -> Any:
    """Fix the column types, so that a block whose optional column is empty fits the others."""
    import pyarrow as pa

    kinds = {"boolean": pa.bool_(), "int64": pa.int64()}
    return pa.schema([(name, kinds.get(str(dtype), pa.string())) for name, dtype in frame.dtypes.items()])


def _blocks(scale: int, seed: int, size: int = 20) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]]:
    _check(scale, seed)
    seen: set[int] = set()
    for first in range(0, scale, size):
        yield _block(range(first, min(first + size, scale)), seed, seen)


def _check(scale: int, seed: int) -> None:
    if isinstance(scale, bool) or not isinstance(scale, int) or not 1 <= scale <= MAX_SCALE:
        raise InputError(f"scale is {scale!r}; expected a whole number from 1 to {MAX_SCALE}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed is {seed!r}; expected a whole number, 0 or more")


def checksums(folder: Path) -> dict[str, str]:
    """Sha256 of the three files."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES.values()}


def write_committed(folder: str | PathLike[str]) -> dict[str, Path]:
    """Write the three files of scale 1 and seed 0, and bring the sums and counts in the folder's README up to date."""
    tables = dict(zip(FILES, generate(1, 0), strict=True))
    paths = {name: write_table(frame, Path(folder) / FILES[name]) for name, frame in tables.items()}
    readme = Path(folder) / "README.md"
    if readme.is_file():
        sums = checksums(Path(folder))
        lines = ["| file | rows | sha256 |", "| --- | ---: | --- |"]
        lines += [f"| {FILES[name]} | {len(frame):,} | `{sums[FILES[name]]}` |" for name, frame in tables.items()]
        block = "<!-- sums -->\n" + "\n".join(lines) + "\n<!-- /sums -->"
        old = readme.read_text(encoding="utf-8")
        readme.write_text(re.sub(r"<!-- sums -->.*<!-- /sums -->", block, old, flags=re.DOTALL), encoding="utf-8")
    return paths


if __name__ == "__main__":
    if len(sys.argv) > 2:
        written = write_scaled(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        written = write_committed(sys.argv[1] if len(sys.argv) > 1 else demo_dir())
    for path in written.values():
        print(path)
