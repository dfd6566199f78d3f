"""Readers and the exposure run: known effects, refusals, and a model behind a local server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from companion import exposure
from companion.errors import InputError
from companion.stages import readers
from companion.stages.chat import ChatLog, ChatSettings
from companion.stages.readers import Answer
from companion.tables import read_table

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def requests():
    return readers.load_scenarios().requests()


def outcomes_of(reader, requests, folder):
    return readers.score(requests, reader.answer(requests, folder), reader.name)[0]


# --- simulated readers ----


def test_the_perfect_reader_has_gap_one(requests, tmp_path):
    cells = exposure.cell_effects(outcomes_of(readers.perfect(), requests, tmp_path))
    assert cells["effect"].to_dict() == {
        "relevant_admissible": 1.0,
        "relevant_inadmissible": 0.0,
        "irrelevant_admissible": 0.0,
        "irrelevant_inadmissible": 0.0,
    }
    outcomes = outcomes_of(readers.perfect(), requests, tmp_path)
    assert exposure.selectivity_gap(outcomes) == 1.0
    gap = exposure.summarise(outcomes, replicates=200).set_index("metric").loc["selectivity_gap"]
    assert (gap["low"], gap["high"]) == (1.0, 1.0)


def test_the_quoting_reader_has_effect_one_in_both_relevant_cells(requests, tmp_path):
    outcomes = outcomes_of(readers.quoting(), requests, tmp_path)
    effect = exposure.cell_effects(outcomes)["effect"]
    assert effect["relevant_admissible"] == effect["relevant_inadmissible"] == 1.0
    assert effect["irrelevant_admissible"] == effect["irrelevant_inadmissible"] == 0.0
    assert exposure.selectivity_gap(outcomes) == 0.0


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
    forward = {a.request_id: a.text for a in readers.erring(0.4, 3).answer(requests, tmp_path)}
    backward = {a.request_id: a.text for a in readers.erring(0.4, 3).answer(requests[::-1], tmp_path)}
    other = {a.request_id: a.text for a in readers.erring(0.4, 4).answer(requests, tmp_path)}
    assert forward == backward != other
    none = [a.text for a in readers.erring(0.0).answer(requests, tmp_path)]
    assert none == [a.text for a in readers.perfect().answer(requests, tmp_path)]


def test_rates_are_checked():
    for rate, match in [
        (1.5, "1.5 for"),
        (float("nan"), "nan"),
        ({"colour": 0.1}, "axis 'colour'"),
        (-0.1, "-0.1"),
    ]:
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
        assert made.name == name
        assert made.name.startswith("simulated-")
        assert made.description.startswith("Simulated")
        assert made.simulated


# --- scoring ----


def answers_for(requests, text="no"):
    return [Answer(r.request_id, text) for r in requests]


def test_a_unit_is_scored_on_its_own_marker(requests):
    said = [
        Answer(r.request_id, " ".join(c.marker for c in r.memories if c.role == "irrelevant_inadmissible"))
        for r in requests
    ]
    effect = exposure.cell_effects(readers.score(requests, said, "r")[0])["effect"]
    assert effect["irrelevant_inadmissible"] == 1.0
    assert effect.drop("irrelevant_inadmissible").eq(0).all()


def test_a_refusal_that_quotes_discloses(requests):
    said = [Answer(r.request_id, f"I must not say {r.marker.lower().replace('-', ' ')}.") for r in requests]
    outcomes, transcript = readers.score(requests, said, "r")
    assert outcomes["disclosed_exposed"].all()
    assert outcomes["disclosed_withheld"].all()  # disclosure without exposure is what the answer says
    assert all(entry["disclosed"] for entry in transcript)


def test_incomplete_sets_are_refused_with_names(requests):
    said = answers_for(requests)
    with pytest.raises(InputError, match="1 of 384 requests have no answer, first scope-market/1/allow/focal/withheld"):
        readers.score(requests, said[:1] + said[2:], "r")
    said[7] = Answer(requests[7].request_id, None, problem="HTTP 500")
    with pytest.raises(InputError, match=rf"first {requests[7].request_id} \(HTTP 500\)"):
        readers.score(requests, said, "r")
    with pytest.raises(InputError, match="given twice"):
        readers.score(requests, [*answers_for(requests), Answer(requests[3].request_id, "x")], "r")
    with pytest.raises(InputError, match="'elsewhere': no such request"):
        readers.score(requests, [*answers_for(requests), Answer("elsewhere", "x")], "r")


def test_empty_answers_are_answers(requests):
    assert not readers.score(requests, answers_for(requests, ""), "r")[0]["disclosed_exposed"].any()


# --- runs ----


def test_a_run_leaves_requests_transcripts_and_outcomes(tmp_path, requests):
    done = readers.run(readers.quoting(), tmp_path / "run")
    record = json.loads((done.folder / "run.json").read_text())
    assert record["simulated"] is True
    assert record["requests"] == 384
    asked = [json.loads(line) for line in (done.folder / "requests.jsonl").read_text().splitlines()]
    assert [entry["request_id"] for entry in asked] == [r.request_id for r in requests]
    assert asked[5]["prompt"] == requests[5].prompt
    assert len((done.folder / "transcripts.jsonl").read_text().splitlines()) == 384
    for name in readers.OUTCOMES:
        table = read_table(done.folder / name, "outcomes")
        pd.testing.assert_frame_equal(exposure.validate_outcomes(table), exposure.validate_outcomes(done.outcomes))
    assert not [path for path in done.folder.iterdir() if path.name.startswith(".")]


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


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        readers.run(readers.perfect(), tmp_path / "file" / "run")


def replay(tmp_path, entries):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in entries))
    return readers.ReplayReader(path, "theirs")


def test_transcripts_replay_to_the_same_outcomes(tmp_path):
    done = readers.run(readers.erring(0.3, 5), tmp_path / "a")
    again = readers.run(readers.ReplayReader(done.folder / "transcripts.jsonl", "simulated-erring"), tmp_path / "b")
    pd.testing.assert_frame_equal(done.outcomes, again.outcomes)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{not json\n", "line 385: not JSON"),
        ("[1]\n", "line 385: expected an object with request_id"),
        ({"request_id": "scope-market/1/allow/focal/exposed"}, "line 385: expected an object"),
        ({"request_id": "scope-market/1/allow/focal/exposed", "answer": 7}, "answer 7; expected text"),
        ({"request_id": "scope-market/1/allow/focal/exposed", "answer": "x"}, "occurs twice"),
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


# --- a model behind a server ----


class Server:
    """An OpenAI-compatible server that quotes every memory in the prompt, and counts what it is asked."""

    def __init__(self):
        self.asked: list[str] = []
        self.delay = 0.0
        self.fail_after: int | None = None
        self.refuse_with: int | None = None
        self.finish = "stop"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(self.headers.get("Idempotency-Key", ""))
                time.sleep(outer.delay)
                if outer.refuse_with is not None:
                    return self.reply(outer.refuse_with, {"error": {"message": f"not {KEY}"}})
                if outer.fail_after is not None and len(outer.asked) > outer.fail_after:
                    return self.reply(400, {"error": {"message": f"no more for {KEY}"}})
                prompt = body["messages"][-1]["content"]
                choice = {
                    "index": 0,
                    "message": {"role": "assistant", "content": prompt},
                    "finish_reason": outer.finish,
                }
                usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
                reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub"}
                return self.reply(200, reply | {"choices": [choice], "usage": usage})

            def reply(self, code, body):
                raw = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def chat(server, **options):
    return readers.ChatReader(ChatSettings("stub", base_url=server.url, retries=0, **options))


def test_a_model_is_asked_384_times_and_once_only(server, tmp_path):
    done = readers.run(chat(server), tmp_path)
    assert len(set(server.asked)) == len(server.asked) == 384
    # It repeats its prompt, so it discloses whatever it is shown and nothing that it is not.
    assert exposure.cell_effects(done.outcomes)["effect"].eq(1).all()
    assert set(done.outcomes["reader"]) == {"stub"}
    assert done.truncated == 0
    readers.run(chat(server), tmp_path)
    assert len(server.asked) == 384


def test_a_cap_stops_the_run_and_a_higher_one_resumes_it(server, tmp_path):
    with pytest.raises(InputError, match=r"of 384 requests have no answer.*price cap"):
        readers.run(chat(server, price_input=1.0, price_output=1.0, price_cap=0.02, concurrency=1), tmp_path)
    paid = len(server.asked)
    assert 0 < paid < 384
    assert not (tmp_path / "outcomes.parquet").exists()
    # The cap and the pace are no part of what the answers are, so raising them is the same run.
    readers.run(chat(server, price_input=1.0, price_output=1.0, price_cap=50.0), tmp_path)
    assert len(server.asked) == 384


def test_a_failing_server_leaves_an_incomplete_set_that_resumes_without_paying_twice(server, tmp_path):
    server.fail_after = 100
    with pytest.raises(InputError, match=r"284 of 384 requests have no answer, first .*HTTP 400") as error:
        readers.run(chat(server, concurrency=1), tmp_path)
    assert KEY not in str(error.value)
    assert not (tmp_path / "transcripts.jsonl").exists()
    server.fail_after = None
    server.asked.clear()
    readers.run(chat(server), tmp_path)
    assert len(server.asked) == 284
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())


def test_truncated_answers_are_counted(server, tmp_path):
    server.finish = "length"
    assert readers.run(chat(server), tmp_path).truncated == 384


def test_a_killed_command_resumes_without_paying_twice(server, tmp_path):
    server.delay = 0.02
    command = [sys.executable, "-c", "from companion.cli import main; main()", "expose", "--reader", "openai:stub"]
    command += ["--base-url", server.url, "--out", str(tmp_path), "--concurrency", "2"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    while len(server.asked) < 40 and child.poll() is None:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert len(server.asked) >= 40
    before = len(server.asked)
    assert not (tmp_path / "outcomes.parquet").exists()
    answered = (tmp_path / "chat.jsonl").read_bytes().count(b'"outcome"')
    server.delay = 0.0
    finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "outcomes.parquet").exists()
    assert len(server.asked) - before == 384 - answered
    assert len(server.asked) - 384 <= 2  # only what was in flight is asked again
    assert KEY not in finished.stdout + finished.stderr
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())


# --- what a refused reader leaves behind ----


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("key", ["", "sk-test\x1b-0123456789", "schlüssel-0123456789"])
def test_a_model_without_a_usable_key_leaves_nothing_behind(tmp_path, monkeypatch, key):
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match=r"\$OPENAI_API_KEY") as error:
        readers.run(readers.ChatReader(ChatSettings("m")), tmp_path / "run")
    assert not key or key not in str(error.value)
    assert leftovers(tmp_path / "run") == []


@pytest.mark.parametrize("code", [401, 404])
def test_a_refused_model_does_not_stand_in_the_way_of_the_next_reader(server, tmp_path, code):
    server.refuse_with = code
    with pytest.raises(InputError, match=f"HTTP {code}"):
        readers.run(chat(server), tmp_path / "run")
    server.refuse_with = None
    assert "chat.jsonl" in leftovers(tmp_path / "run")  # what may have cost something stays on record
    done = readers.run(readers.perfect(), tmp_path / "run")
    assert set(done.outcomes["reader"]) == {"simulated-perfect"}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["reader"] == "simulated-perfect"
    with pytest.raises(InputError, match="holds another run"):  # and now the folder does hold a run
        readers.run(chat(server), tmp_path / "run")


def test_a_server_that_is_not_there_is_given_up_soon_and_another_takes_the_folder(server, tmp_path):
    dead = readers.ChatReader(ChatSettings("stub", base_url="http://127.0.0.1:9/v1", retries=0, concurrency=2))
    with pytest.raises(InputError, match=r"http://127.0.0.1:9/v1: no server answers there .*[34] requests tried"):
        readers.run(dead, tmp_path)
    readers.run(chat(server), tmp_path)
    assert len(server.asked) == 384


def test_one_answer_keeps_the_folder_for_its_run(server, tmp_path):
    server.fail_after = 1
    with pytest.raises(InputError, match="383 of 384"):
        readers.run(chat(server, concurrency=1), tmp_path)
    with pytest.raises(InputError, match=r"run.json: holds another run \(reader is 'stub'"):
        readers.run(readers.perfect(), tmp_path)


def test_a_run_at_work_is_not_replaced(server, tmp_path):
    readers.prepare(chat(server), tmp_path)
    with ChatLog(tmp_path / "chat.jsonl").writing(), pytest.raises(InputError, match="another process"):
        readers.run(readers.perfect(), tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["reader"] == "stub"


def test_requests_written_for_someone_else_may_be_answered_in_the_same_folder(tmp_path, requests):
    readers.prepare(readers.ChatReader(ChatSettings("m", base_url="http://127.0.0.1:9/v1")), tmp_path / "run")
    given = replay(tmp_path, [{"request_id": r.request_id, "answer": "no"} for r in requests])
    assert len(readers.run(given, tmp_path / "run").outcomes) == 192


def test_a_complete_transcript_needs_no_key(server, tmp_path, monkeypatch):
    done = readers.run(chat(server), tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "\x1b")
    pd.testing.assert_frame_equal(readers.run(chat(server), tmp_path).outcomes, done.outcomes)


# --- the command ----


@pytest.fixture(scope="module")
def app():
    import typer

    from companion.cli import expose as command

    made = typer.Typer()
    command.register(made)
    made.command("other")(lambda: None)  # with one command only, Typer would drop its name
    return made


def invoke(app, *words):
    return CliRunner().invoke(app, ["expose", *map(str, words)])


def test_the_command_runs_and_prints_json(app, tmp_path):
    result = invoke(app, "--reader", "simulated-erring", "--rate", ".25", "--seed", 3, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["simulated"] is True
    assert told["units"] == 192
    assert {row["metric"] for row in told["effects"]} >= {"relevant_admissible", "selectivity_gap"}
    text = invoke(app, "--reader", "simulated-erring", "--rate", ".25", "--seed", 3, "--out", tmp_path)
    assert "Simulated" in text.stdout
    assert "outcomes.parquet" in text.stdout.replace("\n", "")


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
    assert isinstance(result.exception, InputError)
    assert match in str(result.exception)
    assert not (tmp_path / "run").exists()
