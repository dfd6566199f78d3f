"""Malformed calls of every command: ``python benchmarks/fuzz.py 10000 --seed 0``.

Every call must end within 20 seconds with exit code 0, 1 or 2, without a traceback, a fault of the companion, control
characters on the terminal, or files left behind by a call that was refused. Tables that ``score`` accepts are scored
again by the plain reference, which knows nothing of the package. What would start a kernel or a network connection
stops right before it does. A failing case is printed with its folder, which is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book"))

LIMIT = 20
MEMORY = 6
AXES = ("relevant", "scope", "policy", "lifecycle")
CELLS = [
    "", "?", "1", "0", "1.0", "true", "FALSE", "2", "-1", "0.5", "maybe", "NULL", "nan", "None", "inf", "-inf",
    "1e400", "9" * 400, str(2**63), "3.0", "007", " a", "a ", "\u00e9", "e\u0301", "\x1b[31mred", "\x1b]0;title\x07",
    "=1+1", "@x", "<script>alert(1)</script>", "[bold]x", "\u202e", "\ufeff", "\x00", "\x85", "\u2028", "q1",
    "q2", "m1",
    "m2", "alice", "current", "superseded", "2026-13-45", "2026-01-01", "0001-01-01", "99999-01-01", "x" * 5000, '"',
    "'", ",", "\\",
]  # fmt: skip
VALUES = [
    *CELLS, "0.8", "1e-99999999", "1e99999999", "1/3", "1/0", "0/0", "3" * 6000, "[" * 600, "!!int abc", "!!bool maybe",
    "{a: &a [x, x], b: [*a, *a]}", "&a [*a]", "1000000000", "-5", "20", "~", "/dev/zero", "/dev/null", "/proc/self/mem",
    "/", ".", "..", "x" * 300, "x/" * 3000, "tcp://x", "git://x", "http://[", "a,b", "scope", "global_dense", "demo",
    "rhelm", "02-support", "a=b", ".2", "axis=.3", "non_usable", "\udc80", "{}", "[]", "null", "true",
]  # fmt: skip
TABLES = {
    "memories": "memory_id,namespace,state,time,text\nm1,alice,current,2026-01-01,a\nm2,alice,superseded,,b\n"
    "m3,bob,current,,c\nm4,,unknown,,d\n",
    "queries": "query_id,namespace,group,source,intent\nq1,alice,g1,s,current\nq2,bob,g2,s,history\n"
    "q3,alice,g1,t,unknown\n",
    "labels": "query_id,memory_id,relevant,scope,policy,lifecycle,anchor_id\nq1,m1,1,1,1,1,\nq1,m2,0,1,1,0,\n"
    "q2,m3,1,1,1,1,x\nq2,m1,,0,?,1,\nq3,m1,1,1,1,1,y\nq3,m2,1,1,1,1,y\n",
    "rankings": "arm,query_id,rank,memory_id,score\na,q1,1,m2,.9\na,q1,2,m1,.8\na,q2,1,m1,.7\na,q2,2,m3,.6\n"
    "a,q3,1,m4,.5\na,q3,2,m2,.4\nb,q1,1,m1,.9\nb,q2,1,m3,.8\nb,q3,1,m3,.1\n",
    "work": "arm,query_id,candidates_scored\na,q1,4\na,q2,4\na,q3,4\nb,q1,2\nb,q2,1\nb,q3,2\n",
}
LOGS = {
    "jsonl": '{"query": "x", "namespace": "alice", "retrieved": ["m1", "m2"]}\n'
    '{"query": "y", "retrieved": [{"id": "m1"}]}\n',
    "openinference": '{"name": "r", "attributes": {"openinference.span.kind": "RETRIEVER", "input.value": "x", '
    '"retrieval.documents.0.document.id": "m1"}}\n',
    "trec": "q1 Q0 m1 1 0.9 run\nq1 Q0 m2 2 0.8 run\n",
}
PLAN = "notebook: 02-support\nparameters: {replicates: 200}\ngrid: {top_k: [5, 10]}\n"
RECORD = (
    '{"notebook": "02.md", "parameters": {"top_k": 5}, "headline": [{"name": "x", "estimate": 1, "low": 0, "high": 2}]}'
)
BAD_YAML = [
    "a: [",
    "a: b: c",
    "{a: &a [x, x], b: [*a, *a]}",
    "- 1",
    "",
    "? [a]\n: 1",
    "a: !!python/name:os.system x",
    "\t",
]


class Fuzz:
    """One generator of cases and what it has seen."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.seen, self.rescored = random.Random(seed), folder, Counter(), 0
        self.peak = 0.0

    # --- making a case --------------------------------------------------------------------------------------------

    def text(self, table: str, times: int = 1) -> str:
        """Break a CSV table in one place or a few."""
        rows = [line.split(",") for line in table.splitlines()]
        for _ in range(self.rng.randint(0, times)):
            kind, row = self.rng.randrange(9), self.rng.randrange(len(rows))
            column = self.rng.randrange(max(1, len(rows[row])))
            if kind < 4 and rows[row]:
                rows[row][column] = self.rng.choice(CELLS)
            elif kind == 4:
                rows.insert(row, list(rows[row]))
            elif kind == 5 and len(rows) > 1:
                del rows[row]
            elif kind == 6:
                rows[row] = rows[row][:column]
            elif kind == 7:
                rows[row].append(self.rng.choice(CELLS))
            else:
                self.rng.shuffle(rows[1:])
        quoted = io.StringIO()
        csv.writer(quoted, lineterminator="\n").writerows(rows)
        return quoted.getvalue()

    def put(self, path: Path, text: str) -> Path:
        """Write a file, now and then as something that is no sound file at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kind, content = self.rng.randrange(40), text.encode("utf-8", "surrogatepass")
        if kind == 0:
            os.mkfifo(path)
        elif kind == 1:
            path.symlink_to(self.rng.choice([path, Path("/dev/zero"), Path("/dev/null"), path.parent, Path("nowhere")]))
        elif kind == 2:
            path.mkdir()
        elif kind == 3:
            path.write_bytes(content[: self.rng.randrange(len(content) + 1)])
        elif kind == 4:
            place = self.rng.randrange(len(content) + 1)
            path.write_bytes(content[:place] + self.rng.randbytes(3) + content[place:])
        elif kind == 5:
            path.write_bytes(text.encode("utf-16", "surrogatepass"))
        elif kind != 6:
            path.write_bytes(content)
        return path

    def records(self, here: Path) -> Path:
        """Lay out a folder of tables, as CSV, JSON Lines or a file that only claims to be Parquet."""
        worst = self.rng.choice([*TABLES, ""])
        for name, table in TABLES.items():
            text = self.text(table, 3 if name == worst else 0)
            ending = self.rng.choices(["csv", "jsonl", "parquet", "csv.gz", "txt"], [20, 8, 1, 1, 1])[0]
            if ending == "jsonl":
                rows = list(csv.DictReader(io.StringIO(text), restkey="more"))
                text = "\n".join(json.dumps(row, ensure_ascii=self.rng.random() < 0.5) for row in rows) + "\n"
                text = text.replace('"1"', "1") if self.rng.random() < 0.5 else text
            if name == worst or self.rng.random() < 0.05:
                self.put(here / f"{name}.{ending}", text)
            else:
                (here / f"{name}.csv").parent.mkdir(parents=True, exist_ok=True)
                (here / f"{name}.csv").write_text(TABLES[name])
        return here

    def sound(self, here: Path) -> Path:
        """Lay out tables that must be accepted, with everything drawn that decides a score."""
        rng = self.rng
        memories, queries = [f"m{n}" for n in range(rng.randint(1, 9))], [f"q{n}" for n in range(rng.randint(1, 4))]
        space = ["alice", "bob", "NULL", ""]
        made = {
            "memories": [["memory_id", "namespace"], *([memory, rng.choice(space)] for memory in memories)],
            "queries": [
                ["query_id", "namespace", "group"],
                *([q, rng.choice(space), rng.choice("gh")] for q in queries),
            ],
            "labels": [["query_id", "memory_id", *AXES, "anchor_id"]],
            "rankings": [["arm", "query_id", "rank", "memory_id"]],
            "work": [["arm", "query_id", "candidates_scored"]],
        }
        for query in queries:
            for memory in rng.sample(memories, rng.randint(0, len(memories))):
                values = rng.choices(["1", "true", "1.0", "0", "FALSE", "?", ""], [9, 3, 3, 2, 2, 2, 2], k=4)
                made["labels"].append([query, memory, *values, rng.choice(["", "x", "y"])])
            for arm in "ab":
                route = rng.sample(memories, rng.randint(0, len(memories)))
                made["rankings"] += [[arm, query, str(n), memory] for n, memory in enumerate(route, 1)]
        here.mkdir()
        for name, rows in made.items():
            body = rows[1:]
            rng.shuffle(body)
            (here / f"{name}.csv").write_text("\n".join(",".join(row) for row in [rows[0], *body]) + "\n")
        return here

    def options(self, *names: str) -> list[str]:
        """Give some options, mostly with values that they do not take."""
        chosen = [name for name in names if self.rng.random() < 0.3]
        return [word for name in chosen for word in (name, self.rng.choice(VALUES))]

    def case(self, here: Path) -> list[str]:
        """Make the files of one call and return its words."""
        rng, out = self.rng, str(here / "out")
        fine = rng.random() < 0.2
        tables = str((self.sound if fine else self.records)(here / "in"))
        files = [f"--{name}={next(iter(sorted(Path(tables).glob(f'{name}.*'))), 'none')}" for name in TABLES]
        scoring = ("--target-recall", "--top-k", "--infeasibility-cost", "--axes", "--family", "--reference")
        sampling = ["--replicates", rng.choice(["200", "5", *VALUES]), *self.options("--seed", "--confidence")]
        kind = rng.choice(sorted(LOGS))
        value = [rng.choice(["top_k", "seed", "corpus", "arms", "outcomes", "nope", "\x1b[1m"]), rng.choice(VALUES)]
        made = {
            "score": [*files, "--per-query", f"{out}.csv", "--replicates", "2"]
            if fine
            else [*files, *self.options(*scoring), *sampling, "--per-query", f"{out}.csv"],
            "validate": [tables, *self.options("--format")],
            "audit": [tables, "--out", f"{out}.html", *self.options(*scoring[:3], "--items"), "--replicates", "5"],
            "trace": ["--query", rng.choice(["q1", *VALUES]), "--records", tables, *self.options("--memory", "--gate")],
            "partition": [tables, "--out", out, *self.options("--rows-per-part")],
            "score-parts": [tables, *self.options(*scoring), *sampling],
            "exposure": [
                str(self.put(here / "o.csv", self.text(self.outcomes, 3))),
                *self.options("--stratify"),
                *sampling,
            ],
            "import": [kind, str(self.put(here / f"log.{kind}", self.broken(LOGS[kind]))), "--out", out],
            "rerun": ["02-support", "-p", *value, "--out", out],
            "book": ["-p", *value, "--out", out],
            "sweep": [str(self.put(here / "plan.yaml", self.yaml())), "--out", out, *self.options("--jobs")],
            "runs": [str(self.put(here / "runs" / "a.json", self.broken(RECORD)).parent), *self.options("--html")],
            "reproduce": [*self.options("--stage", "--status", "--format"), "--replicates", "2"],
            "corpora": self.options("--format"),
            "fetch": [rng.choice(["rhelm", *VALUES]), "--from", rng.choice([tables, *CELLS, "/dev/null"])],
            "rank": [
                rng.choice(["demo", *VALUES]),
                "--encoder",
                "nowhere/none",
                "--out",
                out,
                *self.options("--arm", "--top-k"),
            ],
            "expose": ["--reader", rng.choice(VALUES), "--out", out, *self.options("--rate", "--seed", "--scenarios")],
            "candidates": [rng.choice(VALUES[1:40]), "--out", out],
            "corrupt": [rng.choice(VALUES[1:40]), *self.options("--channel", "--rate", "--seeds")],
            "": [rng.choice(VALUES), *self.options("--nope", "--version")],
        }
        words = rng.choices(list(made), [9 if name == "score" else 1 for name in made])[0]
        found = [*([words] if words else []), *made[words]]
        if rng.random() < 0.05:
            found.insert(rng.randrange(len(found)), rng.choice(VALUES))
        return [word.replace("\x00", "\\0") for word in found]  # no argument of a process can hold one

    def broken(self, text: str) -> str:
        """Break any text in one place."""
        place, kind = self.rng.randrange(len(text)), self.rng.randrange(5)
        middle = ["", self.rng.choice(CELLS), "[" * 3000, '"x": {}', "null"][kind]
        return text[:place] + middle + text[place + (kind > 1) :]

    def yaml(self) -> str:
        """Write a plan with something wrong in it."""
        if self.rng.random() < 0.3:
            return self.rng.choice(BAD_YAML)
        return re.sub(r"\b(02-support|200|5|10)\b", lambda m: self.rng.choice([m[0], self.rng.choice(VALUES)]), PLAN)

    @property
    def outcomes(self) -> str:
        """The first rows of the published outcomes."""
        lines = (ROOT / "data" / "published" / "exposure_outcomes.csv").read_text().splitlines()
        return "\n".join(lines[: self.rng.choice([13, 193])])

    # --- judging it -----------------------------------------------------------------------------------------------

    def run(self, words: list[str], here: Path) -> list[str]:
        """Run one call and return what is wrong with how it ended."""
        before = {path for path in here.rglob("*") if "in" not in path.parts}
        began = time.process_time()
        code, out, err = call(words, here)
        spent = time.process_time() - began
        peak, grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, self.peak
        self.peak = max(self.peak, peak)
        self.seen[words[0] if words else "", code] += 1
        wrong = [f"exit code {code}"] if code not in (0, 1, 2) else []
        wrong += [f"took {spent:.0f} s of the processor"] if spent > LIMIT else []
        wrong += [f"took {peak:.1f} GiB"] if peak > max(MEMORY, grown) else []
        wrong += [f"said {word!r}" for word in ("Traceback", "a fault of the companion") if word in err + out]
        wrong += (
            ["control characters on the terminal"] if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err) else []
        )
        left = sorted(path.name for path in here.rglob("*") if "in" not in path.parts and path not in before)
        if code == 2:
            wrong += ["more than one line of complaint"] if len(err.strip().splitlines()) != 1 else []
            wrong += [f"left {left}"] if left else []
        elif any(name.startswith(".") or name.endswith((".tmp", ".lock")) for name in left):
            wrong.append(f"left {left}")
        if code == 0 and words[0] == "score":
            wrong += self.rescore(words, here)
        return [*wrong, *(err.strip().splitlines()[-3:] if wrong else [])]

    def rescore(self, words: list[str], here: Path) -> list[str]:
        """Score accepted tables once more by the plain reference."""
        import reference_scoring as plain

        given = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        if any(not path.endswith(".csv") for path in given.values()) or set(words) & {"--axes", "--family", "--top-k"}:
            return []
        if set(words) & {"--target-recall", "--infeasibility-cost"}:
            return []
        read = {name: Path(path).read_text(encoding="utf-8-sig") for name, path in given.items()}
        tables = {name: list(csv.DictReader(io.StringIO(text))) for name, text in read.items()}
        records = {
            "defaults": {},
            "memories": {row["memory_id"]: known(row["namespace"]) for row in tables["memories"]},
            "queries": {row["query_id"]: known(row["namespace"]) for row in tables["queries"]},
            "labels": {},
        }
        for row in tables["labels"]:
            label = records["labels"].setdefault((row["query_id"], row["memory_id"]), {"anchors": []})
            label.update({axis: truth(row[axis]) for axis in AXES if axis in row})
            label["anchors"] += [known(row.get("anchor_id"))]
        routes: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for row in tables["rankings"]:
            routes.setdefault((row["arm"], row["query_id"]), []).append((int(float(row["rank"])), row["memory_id"]))
        self.rescored += 1
        wrong = []
        for row in csv.DictReader(io.StringIO((here / "out.csv").read_text(encoding="utf-8"))):
            route = [memory for _, memory in sorted(routes.get((row["arm"], row["query_id"]), []))]
            want = plain.score(records, route, row["query_id"])
            for name in ("evidence_recall", "feasible", "lower_bound", "upper_bound", "loss", "wrong_scope"):
                got = float(row[name]) if row[name] else None
                if not plain.close(got, want[name]):
                    wrong.append(f"{row['arm']}, {row['query_id']}: {name} is {got}, the reference says {want[name]}")
        return wrong


def known(text: str | None) -> str | None:
    """Read an id or a namespace."""
    return None if text in (None, "", "?", "NULL", "null", "None", "nan", "NaN") else text


def truth(text: str | None) -> bool | None:
    """Read a label."""
    return {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}.get((text or "").lower())


class TimeIsUpError(BaseException):
    """A call took too long; nothing in it may catch this as an error of its own."""


def call(words: list[str], here: Path) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, output and errors."""
    from companion.cli import main

    def stop(*args: object) -> None:
        raise TimeIsUpError

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape") for _ in range(2))
    before, sys.argv = sys.argv, ["companion", *words]
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 2 * LIMIT)  # a hang; other work on the machine is none
    code: int | str | None = -1
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(here):
            main()
    except SystemExit as error:
        code = error.code
    except TimeIsUpError:
        code = -2
    except BaseException as error:
        err.write(f"Traceback: {type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv = before
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))
    return int(code or 0), said[0], said[1]


def prepare() -> None:
    """Stop calls right before they would start a kernel, a cluster or a connection; load what every call needs."""
    from companion.book import runs, site, sweep
    from companion.errors import InputError

    def stop(*args: object, **more: object) -> None:
        raise InputError("nothing is started by a fuzz run")

    def execute(notebook: str, values: dict, *args: object, **more: object) -> None:
        runs.checked_parameters(runs.find_notebook(notebook), values)
        stop()

    runs.execute = execute
    site._run_chapters = stop
    sweep._run_all = stop
    with contextlib.suppress(Exception):
        from companion.corpora import _git

        _git.run = stop
    os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="200", NO_COLOR="1", GIT_TERMINAL_PROMPT="0")
    os.environ.pop("OPENAI_API_KEY", None)
    resource.setrlimit(resource.RLIMIT_DATA, (2 * MEMORY * 2**30, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def fuzz(count: int, seed: int, keep: Path | None = None) -> list[str]:
    """Run a number of cases and return one line for each that failed."""
    prepare()
    report = os.fdopen(os.dup(1), "w")  # a call whose reader is gone closes standard output for good

    def say(line: str) -> None:
        print(line, file=report, flush=True)

    failures = []
    with tempfile.TemporaryDirectory(prefix="companion-fuzz-") as folder:
        machine = Fuzz(seed, Path(folder))
        for number in range(count):
            here = Path(folder) / str(number)
            here.mkdir()
            words = machine.case(here)
            wrong = machine.run(words, here)
            if wrong:
                failures.append(f"case {number} of seed {seed}: {' | '.join(wrong)}\n    {words!r}"[:1500])
                say(failures[-1])
                if keep is not None:
                    shutil.copytree(here, keep / str(number), symlinks=True, ignore=_special)
            shutil.rmtree(here, ignore_errors=True)
        codes = Counter(code for (_, code), n in machine.seen.items() for _ in range(n))
        say(f"{count} calls: {dict(codes)}; {machine.rescored} accepted tables scored again; {len(failures)} failures")
    return failures


def _special(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files of failing cases")
    asked = parser.parse_args()
    sys.exit(bool(fuzz(asked.count, asked.seed, asked.keep)))
