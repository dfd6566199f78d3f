"""Scoring at matched recall once more, as plainly as Python allows: one route at a time, no pandas.

Shown in the book's Methods, and used by the tests to check the fast scorer. It must not import the code under test.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

AXES = ("scope", "policy", "lifecycle")


def kleene_and(values):
    """Return 0 if any value is, 1 if all are, unresolved (None) otherwise."""
    if any(v is False for v in values):
        return False
    return None if any(v is None for v in values) else True


def pair_label(records, query, memory):
    """Axis -> True, False or None for one pair."""
    q_namespace, m_namespace = records["queries"][query], records["memories"][memory]
    result = {axis: records["defaults"].get(axis) for axis in ("relevant", *AXES)}
    result["scope"] = None if q_namespace is None or m_namespace is None else q_namespace == m_namespace
    for axis, value in records["labels"].get((query, memory), {}).items():
        if axis != "anchors":
            result[axis] = value
    return result


def anchors(records, query):
    """Anchor name -> the memories that satisfy it."""
    found = {}
    for (q, memory), label in records["labels"].items():
        values = pair_label(records, q, memory)
        if q != query or kleene_and([values[a] for a in ("relevant", *AXES)]) is not True:
            continue
        for anchor in label.get("anchors") or [None]:
            found.setdefault(("own", memory) if anchor is None else ("id", anchor), set()).add(memory)
    return found


def score(records, route, query, *, axes=AXES, family="admissibility", tau=Fraction(4, 5), top_k=None, cost=1.0):
    """Return the quantities of one route as a dict; None is undefined."""
    route = list(route)[:top_k]
    wanted = anchors(records, query)
    names = (
        *("evidence_recall", "feasible", "matched_prefix", "lower_bound", "upper_bound", "known_rate"),
        *("label_coverage", "any_violation", "violation_count", "wrong_scope", "policy_disallowed"),
        *("lifecycle_incompatible", "loss", "infeasibility_component", "prefix_component"),
    )
    out = dict.fromkeys(names)
    out["anchors"] = len(wanted)
    if not wanted:
        return out

    def recall(depth):
        return Fraction(sum(bool(set(route[:depth]) & m) for m in wanted.values()), len(wanted))

    out["evidence_recall"] = float(recall(len(route)))
    prefix = next((n for n in range(len(route) + 1) if recall(n) >= Fraction(tau)), None)
    out["feasible"] = int(prefix is not None)
    if prefix is None:
        return out | {"loss": cost, "infeasibility_component": cost, "prefix_component": 0.0}
    labels = [pair_label(records, query, m) for m in route[:prefix]]
    names = (("relevant",) if family == "non_usable" else ()) + tuple(axes)
    statuses = [kleene_and([label[a] for a in names]) for label in labels]
    bad, unknown = statuses.count(False), statuses.count(None)
    out["matched_prefix"] = prefix
    out["lower_bound"] = bad / prefix if prefix else 0.0
    out["upper_bound"] = (bad + unknown) / prefix if prefix else 0.0
    out["known_rate"] = bad / (prefix - unknown) if prefix > unknown else None
    out["label_coverage"] = (prefix - unknown) / prefix if prefix else 1.0
    out["any_violation"] = int(bad > 0)
    out["violation_count"] = bad
    for name, axis in zip(("wrong_scope", "policy_disallowed", "lifecycle_incompatible"), AXES, strict=True):
        out[name] = sum(label[axis] is False for label in labels) / prefix if prefix else 0.0
    out["loss"] = out["prefix_component"] = out["upper_bound"]
    out["infeasibility_component"] = 0.0
    return out


def from_tables(records):
    """Turn checked tables into the plain form: memories and queries by namespace, labels by pair."""

    def plain(value):
        return None if value != value or repr(value) == "<NA>" else value

    def column(table, name):
        return [plain(value) for value in table[name].tolist()]

    labels = {}
    stated = [axis for axis in ("relevant", *AXES) if axis in records.labels]
    for row in records.labels.to_dict("records"):
        label = {axis: plain(row[axis]) for axis in stated}
        known = labels.setdefault((row["query_id"], row["memory_id"]), label | {"anchors": []})
        known["anchors"].append(plain(row["anchor_id"]))
    memories, queries = records.memories, records.queries
    return {
        "memories": dict(zip(column(memories, "memory_id"), column(memories, "namespace"), strict=True)),
        "queries": dict(zip(column(queries, "query_id"), column(queries, "namespace"), strict=True)),
        "defaults": dict(records.defaults),
        "labels": labels,
    }


def completed_rates(labels, axes=AXES):
    """Violation shares of a prefix under every way in which its unresolved labels could turn out."""
    cells = [(i, a) for i, label in enumerate(labels) for a in axes if label[a] is None]
    for values in itertools.product([True, False], repeat=len(cells)):
        world = [dict(label) for label in labels]
        for (i, axis), value in zip(cells, values, strict=True):
            world[i][axis] = value
        yield sum(not all(label[a] for a in axes) for label in world) / len(world)


def close(left, right):
    """Equal, with None, NaN and missing all meaning undefined."""
    undefined = [v is None or repr(v) == "<NA>" or v != v for v in (left, right)]
    return all(undefined) if any(undefined) else math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-12)
