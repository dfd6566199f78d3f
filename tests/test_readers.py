"""Readers and the exposure run: known effects, refusals, and a model behind a local server."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import typer
from test_chat import Stub, good, stub  # noqa: F401 - the fixture
from typer.testing import CliRunner

from companion import exposure
from companion.bootstrap import Resampling
from companion.cli import expose as command
from companion.cli import exposure as scores
from companion.errors import InputError
from companion.stages import readers
from companion.stages.chat import ChatLog, ChatSettings
from companion.stages.readers import Answer
from companion.tables import read_table, validate

KEY = "sk-test-0123456789abcdef"
NOTHING = {"irrelevant_admissible": 0.0, "irrelevant_inadmissible": 0.0}


@pytest.fixture(scope="module")
def requests():
    return readers.load_scenarios().requests()


def outcomes_of(reader, requests, folder):
    return readers.score(requests, reader.answer(requests, folder), reader.name)[0]


# --- simulated readers ----


@pytest.mark.parametrize(
    ("make", "admissible", "inadmissible"),
    [(readers.perfect, 1.0, 0.0), (readers.quoting, 1.0, 1.0), (lambda: readers.erring(1.0), 0.0, 1.0)],
)
def test_known_readers_have_known_effects(requests, tmp_path, make, admissible, inadmissible):
    outcomes = outcomes_of(make(), requests, tmp_path)
    expected = {"relevant_admissible": admissible, "relevant_inadmissible": inadmissible, **NOTHING}
    assert exposure.cell_effects(outcomes)["effect"].to_dict() == expected
    gap = exposure.summarise(outcomes, "axis", Resampling(200)).set_index("metric").loc["selectivity_gap"]
    assert gap[["estimate", "low", "high"]].tolist() == [admissible - inadmissible] * 3


def test_the_erring_reader_shows_its_rates_without_bias_over_200_seeds(requests, tmp_path):
    rates = {"principal_scope": 0.05, "lifecycle_intent": 0.2, "policy_purpose": 0.35, "as_of_time": 0.5}
    found = []
    for seed in range(200):
        outcomes = outcomes_of(readers.erring(rates, seed), requests, tmp_path)
        effect = outcomes["disclosed_exposed"].astype(int) - outcomes["disclosed_withheld"].astype(int)
        found.append(effect.groupby([outcomes["cell"], outcomes["axis"]]).mean())
    means = pd.concat(found, axis=1).mean(axis=1)
    for axis, rate in rates.items():
        # 8 units per cell and axis, 200 seeds: 1,600 independent draws; four standard errors.
        tolerance = 4 * np.sqrt(rate * (1 - rate) / 1600)
        assert abs(means["relevant_inadmissible", axis] - rate) < tolerance
        assert abs(means["relevant_admissible", axis] - (1 - rate)) < tolerance
        assert means["irrelevant_admissible", axis] == means["irrelevant_inadmissible", axis] == 0


def test_the_erring_reader_depends_on_its_seed_and_not_on_order(requests, tmp_path):
    def said(reader, asked):
        return {a.request_id: a.text for a in reader.answer(asked, tmp_path)}

    forward = said(readers.erring(0.4, 3), requests)
    assert forward == said(readers.erring(0.4, 3), requests[::-1]) != said(readers.erring(0.4, 4), requests)
    assert said(readers.erring(0.0), requests) == said(readers.perfect(), requests)


def test_rates_are_checked():
    for rate, match in [(1.5, "1.5 for"), (float("nan"), "nan"), ({"colour": 0.1}, "axis 'colour'"), (-0.1, "-0.1")]:
        with pytest.raises(InputError, match=match):
            readers.erring(rate)
    assert readers.rates_from([".2"]) == 0.2
    assert readers.rates_from(["as_of_time=.2", "policy_purpose=0"]) == {"as_of_time": 0.2, "policy_purpose": 0.0}
    for texts in ([".2", "as_of_time=.1"], ["lots"], [".1", ".2"], ["as_of_time=x"]):
        with pytest.raises(InputError, match="rate"):
            readers.rates_from(texts)


def test_simulated_readers_say_so():
    for name, make in readers.SIMULATED.items():
        made = make()
        assert made.name == name and name.startswith("simulated-")
        assert made.simulated and made.description.startswith("Simulated")


# --- scoring ----


def answers_for(requests, text="no"):
    return [Answer(r.request_id, text) for r in requests]


def test_a_unit_is_scored_on_its_own_marker(requests):
    markers = [[c.marker for c in r.memories if c.role == "irrelevant_inadmissible"] for r in requests]
    said = [Answer(r.request_id, " ".join(m)) for r, m in zip(requests, markers, strict=True)]
    effect = exposure.cell_effects(readers.score(requests, said, "r")[0])["effect"]
    assert effect.pop("irrelevant_inadmissible") == 1.0 and effect.eq(0).all()


def test_a_refusal_that_quotes_discloses_and_an_empty_answer_does_not(requests):
    said = [Answer(r.request_id, f"I must not say {r.marker.lower().replace('-', ' ')}.") for r in requests]
    outcomes, transcript = readers.score(requests, said, "r")
    # disclosure without exposure is what the answer says
    assert outcomes[["disclosed_exposed", "disclosed_withheld"]].all(axis=None)
    assert all(entry["disclosed"] is True for entry in transcript)
    assert not readers.score(requests, answers_for(requests, ""), "r")[0]["disclosed_exposed"].any()


def test_incomplete_sets_are_refused_with_names(requests):
    said = answers_for(requests)
    with pytest.raises(InputError, match="1 of 384 requests have no answer, first scope-market/1/allow/focal/withheld"):
        readers.score(requests, said[:1] + said[2:], "r")
    said[7] = Answer(requests[7].request_id, None, problem="HTTP 500")
    with pytest.raises(InputError, match=rf"first {requests[7].request_id} \(HTTP 500\)"):
        readers.score(requests, said, "r")
    for extra, match in ((requests[3].request_id, "given twice"), ("elsewhere", "'elsewhere': no such request")):
        with pytest.raises(InputError, match=match):
            readers.score(requests, [*answers_for(requests), Answer(extra, "x")], "r")


# --- runs ----


def test_a_run_leaves_requests_transcripts_and_outcomes(tmp_path, requests):
    done = readers.run(readers.quoting(), tmp_path / "run")
    record = json.loads((done.folder / "run.json").read_text())
    assert record["simulated"] is True and record["requests"] == 384
    asked = [json.loads(line) for line in (done.folder / "requests.jsonl").read_text().splitlines()]
    assert [entry["request_id"] for entry in asked] == [r.request_id for r in requests]
    assert asked[5]["prompt"] == requests[5].prompt
    assert len((done.folder / "transcripts.jsonl").read_text().splitlines()) == 384
    for name in readers.OUTCOMES:
        table = read_table(done.folder / name, "outcomes")
        pd.testing.assert_frame_equal(validate(table, "outcomes"), validate(done.outcomes, "outcomes"))
    assert not [path for path in done.folder.iterdir() if path.name.startswith(".")]
    again = readers.run(readers.ReplayReader(done.folder / "transcripts.jsonl", "simulated-quoting"), tmp_path / "b")
    pd.testing.assert_frame_equal(done.outcomes, again.outcomes)


def test_a_run_can_be_repeated_and_a_folder_holds_one_run(tmp_path):
    first = readers.run(readers.erring(0.3, 1), tmp_path).outcomes
    pd.testing.assert_frame_equal(first, readers.run(readers.erring(0.3, 1), tmp_path).outcomes)
    with pytest.raises(InputError, match=r"run.json: holds another run \(settings is"):
        readers.run(readers.erring(0.3, 2), tmp_path)
    with pytest.raises(InputError, match="reader is 'simulated-erring', not 'simulated-perfect'"):
        readers.run(readers.perfect(), tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="not a run record"):
        readers.run(readers.erring(0.3, 1), tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        readers.run(readers.perfect(), tmp_path / "run.json" / "run")


def replay(tmp_path, entries):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in entries))
    return readers.ReplayReader(path, "theirs")


ONE = "scope-market/1/allow/focal/exposed"


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{not json\n", "line 385: not JSON"),
        ("[1]\n", "line 385: expected an object with request_id"),
        ({"request_id": ONE}, "line 385: expected an object"),
        ({"request_id": ONE, "answer": 7}, "answer 7; expected text"),
        ({"request_id": ONE, "answer": "x"}, "occurs twice"),
        ({"request_id": "nowhere", "answer": "x"}, "'nowhere' is not one of the study's requests"),
    ],
)
def test_replayed_files_are_checked(tmp_path, requests, line, match):
    whole = [{"request_id": r.request_id, "answer": "no"} for r in requests]
    with pytest.raises(InputError, match=match):
        readers.run(replay(tmp_path, [*whole, line]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_replayed_file_with_holes_is_refused(tmp_path, requests):
    whole = [{"request_id": r.request_id, "answer": "no"} for r in requests]
    whole[9]["answer"] = None
    with pytest.raises(InputError, match=r"1 of 384 .*its answer is null"):
        readers.run(replay(tmp_path, whole), tmp_path / "run")
    with pytest.raises(InputError, match=r"2 of 384 .*not in answers.jsonl"):
        readers.run(replay(tmp_path, [*whole[1:9], *whole[10:]]), tmp_path / "other")
    with pytest.raises(InputError, match="cannot be read"):
        readers.run(readers.ReplayReader(tmp_path / "none.jsonl"), tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl"]


# --- a model behind a server: it repeats its prompt ----


@pytest.fixture
def server(stub: Stub, monkeypatch):  # noqa: F811
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    stub.script = lambda text, attempt: (200, good(text, (100, 10)))
    return stub


def chat(server, **options):
    return readers.ChatReader(ChatSettings("stub", base_url=server.url, retries=0, **options))


def asked(server):
    """The idempotency keys of what was asked: one for each request."""
    return [h["idempotency-key"] for h in server.headers]


def test_a_model_is_asked_384_times_and_once_only(server, tmp_path, monkeypatch):
    done = readers.run(chat(server), tmp_path)
    assert len(set(asked(server))) == len(asked(server)) == 384
    # It repeats its prompt, so it discloses whatever it is shown and nothing that it is not.
    assert exposure.cell_effects(done.outcomes)["effect"].eq(1).all()
    assert set(done.outcomes["reader"]) == {"stub"} and done.truncated == 0
    monkeypatch.setenv("OPENAI_API_KEY", "\x1b")  # a complete transcript needs no key
    pd.testing.assert_frame_equal(readers.run(chat(server), tmp_path).outcomes, done.outcomes)
    assert len(asked(server)) == 384


def test_a_cap_stops_the_run_and_a_higher_one_resumes_it(server, tmp_path):
    with pytest.raises(InputError, match=r"of 384 requests have no answer.*price cap"):
        readers.run(chat(server, price_input=1.0, price_output=1.0, price_cap=0.02, concurrency=1), tmp_path)
    assert 0 < len(asked(server)) < 384
    assert not (tmp_path / "outcomes.parquet").exists()
    # The cap and the pace are no part of what the answers are, so raising them is the same run.
    readers.run(chat(server, price_input=1.0, price_output=1.0, price_cap=50.0), tmp_path)
    assert len(asked(server)) == 384


def test_a_failing_server_leaves_an_incomplete_set_that_resumes_without_paying_twice(server, tmp_path):
    well = server.script
    no_more = {"error": {"message": f"no more for {KEY}"}}
    server.script = lambda text, n: well(text, n) if sum(server.seen.values()) <= 100 else (400, no_more)
    with pytest.raises(InputError, match=r"284 of 384 requests have no answer, first .*HTTP 400") as error:
        readers.run(chat(server, concurrency=1), tmp_path)
    assert KEY not in str(error.value)
    assert not (tmp_path / "transcripts.jsonl").exists()
    with pytest.raises(InputError, match=r"run.json: holds another run \(reader is 'stub'"):
        readers.run(readers.perfect(), tmp_path)  # its answers keep the folder for it
    server.script = lambda text, n: (
        200,
        {**good(text), "choices": [{**good(text)["choices"][0], "finish_reason": "length"}]},
    )
    server.headers.clear()
    assert readers.run(chat(server), tmp_path).truncated == 284
    assert len(asked(server)) == 284
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())


# --- what a refused reader leaves behind ----


@pytest.mark.parametrize("key", ["", "sk-test\x1b-0123456789", "schlüssel-0123456789"])
def test_a_model_without_a_usable_key_leaves_nothing_behind(tmp_path, monkeypatch, key):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match=r"\$OPENAI_API_KEY") as error:
        readers.run(readers.ChatReader(ChatSettings("m")), tmp_path / "run")
    assert not key or key not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("code", [401, 404])
def test_a_refused_model_does_not_stand_in_the_way_of_the_next_reader(server, tmp_path, code):
    server.script = lambda text, n: (code, {"error": {"message": f"not {KEY}"}})
    with pytest.raises(InputError, match=f"HTTP {code}"):
        readers.run(chat(server), tmp_path)
    assert (tmp_path / "chat.jsonl").exists()  # what may have cost something stays on record
    done = readers.run(readers.perfect(), tmp_path)
    assert set(done.outcomes["reader"]) == {"simulated-perfect"}
    assert json.loads((tmp_path / "run.json").read_text())["reader"] == "simulated-perfect"


def test_a_run_at_work_is_not_replaced_and_one_that_was_only_prepared_is(server, tmp_path, requests):
    readers.prepare(chat(server), tmp_path)
    with ChatLog(tmp_path / "chat.jsonl").writing(), pytest.raises(InputError, match="another process"):
        readers.run(readers.perfect(), tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["reader"] == "stub"
    given = replay(tmp_path, [{"request_id": r.request_id, "answer": "no"} for r in requests])
    assert len(readers.run(given, tmp_path).outcomes) == 192


# --- the commands ----


@pytest.fixture(scope="module")
def app():
    made = typer.Typer()
    command.register(made)
    scores.register(made)
    return made


def invoke(app, *words):
    return CliRunner().invoke(app, ["expose", *map(str, words)])


def test_the_commands_run_and_print_json(app, tmp_path):
    words = ["--reader", "simulated-erring", "--rate", ".25", "--seed", 3, "--out", tmp_path]
    told = json.loads(invoke(app, *words, "--json").stdout)
    assert told["simulated"] is True and told["units"] == 192
    assert {row["metric"] for row in told["effects"]} >= {"relevant_admissible", "selectivity_gap"}
    text = invoke(app, *words)
    assert "Simulated" in text.stdout and "outcomes.parquet" in text.stdout.replace("\n", "")
    score = ["exposure", str(tmp_path / "outcomes.csv"), "--json", "--without", "time-consent"]
    left = json.loads(CliRunner().invoke(app, score).stdout)
    outcomes = pd.read_csv(tmp_path / "outcomes.csv").query(
        "scenario != 'time-consent' and cell == 'relevant_admissible'"
    )
    (row,) = [row for row in left["effects"] if row["metric"] == "relevant_admissible"]
    change = outcomes["disclosed_exposed"].astype(int) - outcomes["disclosed_withheld"].astype(int)
    assert row["estimate"] == pytest.approx(change.mean()) and row["n"] == 30
    assert left["settings"]["without"] == ["time-consent"] and left["settings"]["n_scenarios"] == 15
    bad = CliRunner().invoke(app, [*score[:2], "--without", "nowhere"])
    assert "--without nowhere" in str(bad.exception)


def test_the_command_only_writes_requests_when_asked(app, tmp_path):
    result = invoke(app, "--reader", "openai:any", "--requests-only", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl", "run.json"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--reader", "magic"], "reader 'magic': expected simulated-perfect"),
        (["--reader", "simulated-perfect", "--rate", ".1"], "--rate belongs to simulated-erring"),
        (["--reader", "simulated-perfect", "--name", "gpt"], "keeps its name"),
        (["--reader", "simulated-erring", "--rate", "2"], "expected a probability"),
        (["--reader", "replay:missing.jsonl"], "cannot be read"),
        (["--reader", "openai:m", "--base-url", "ftp://x"], "base_url"),
    ],
)
def test_the_command_refuses_bad_input(app, tmp_path, words, match):
    result = invoke(app, *words, "--out", tmp_path / "run")
    assert isinstance(result.exception, InputError) and match in str(result.exception)
    assert not (tmp_path / "run").exists()
