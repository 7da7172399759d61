"""The executable as people and their scripts use it: what it says when something is wrong, and whether the codes are true."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable, until  # noqa: E402
from runner import main  # noqa: E402
from terminal import Terminal  # noqa: E402
from wire import Client  # noqa: E402

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("QUORATE_")}


def quorate(*words, **environment):
    return subprocess.run([str(executable()), *map(str, words)], env={**CLEAN, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


class Shell(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        cls.data = cls.deployment.data

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def test_a_value_that_looks_like_a_number_is_text_where_the_tool_wants_text(self):
        entity = f"svc-{uuid.uuid4().hex[:8]}"
        done = quorate("tool", "call", "store_fact", f"entity={entity}", "key=port", "value=8080", "--as", "agent-a", "--data", self.data)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = quorate("tool", "call", "query_facts", f"entity={entity}", "top_k=1", "--as", "agent-a", "--data", self.data, "--json")
        self.assertEqual(json.loads(done.stdout)["rows"][0]["value"], "8080")

    def test_a_refusal_in_json_has_its_code_and_whether_to_try_again(self):
        resource = f"resource=file://{uuid.uuid4().hex}"
        for who, code in (("agent-a", 0), ("agent-b", 1)):
            done = quorate("tool", "call", "punch_in", resource, f"holder_passport={who}", "--as", who, "--data", self.data, "--json")
            self.assertEqual(done.returncode, code, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["ok"], said["code"], said["retryable"], said["wrote"]), (False, "HELD", True, "no"))
        self.assertEqual(said["data"]["holder"], "agent-a")

    def test_a_reader_that_has_seen_enough_ends_a_verb_quietly(self):
        access = ("--as", "agent-a", "--data", str(self.data))
        for words in (("tool", "list", "--json", *access), ("tool", "call", "list_work", "--json", *access), ("completions", "bash"),
                      ("fact", "list", *access), ("ingest", "--list", *access), ("--help",)):
            reader, writer = os.pipe()
            os.close(reader)
            try:
                done = subprocess.run([str(executable()), *words], env=CLEAN, stdin=subprocess.DEVNULL, stdout=writer,
                                      stderr=subprocess.PIPE, text=True, timeout=120)
            finally:
                os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)

    def test_wrong_usage_is_json_too_when_json_is_asked_for(self):
        done = quorate("transfer", "--json")
        self.assertEqual(done.returncode, 2)
        said = json.loads(done.stdout)
        self.assertEqual((said["ok"], said["exit_code"]), (False, 2))
        self.assertTrue(said["error"])

    def test_a_wrong_cluster_secret_is_called_that(self):
        nodes = ",".join(node["grpc"] for node in self.deployment.info["nodes"])
        for words in (("status",), ("transfer", 1), ("remove", 3, "--dry-run"), ("token", "create", "--passport", "x")):
            done = quorate(*words, "--nodes", nodes, "--cluster-secret", "wrong", "--json")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("secret", json.loads(done.stdout)["error"])
            self.assertNotIn("none of the nodes", done.stderr)

    def test_dev_stops_with_the_words_when_the_gateway_s_address_is_taken(self):
        other = Deployment()
        self.addCleanup(other.stop)
        other.halt()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            file = other.data / "deployment.json"
            deployment = json.loads(file.read_text())
            deployment["gateway"] = f"127.0.0.1:{taken.getsockname()[1]}"
            file.write_text(json.dumps(deployment))
            done = quorate("dev", "--json", "--data", other.data)
        self.assertIn("address in use", done.stderr)
        self.assertEqual((done.returncode, json.loads(done.stdout)["exit_code"]), (78, 78), done.stderr)

    def test_who_asked_for_an_approval_can_see_from_the_shell_what_became_of_it(self):
        def approve(verb, *words, who="agent-a"):
            done = quorate("approve", verb, *words, "--as", who, "--data", self.data, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        asked = quorate("tool", "call", "approval_request", "action_summary=drop it", "risk_tier=high", "scope=default", "token_budget=500",
                        "--as", "agent-a", "--data", self.data, "--json")
        request = json.loads(asked.stdout)["request_id"]
        self.assertIn(request, [row["request_id"] for row in approve("list")["approvals"]])
        self.assertEqual(approve("show", request)["status"], "pending")
        approve("decide", request, "reject", "--notes", "not today", who="operator")
        shown = approve("show", request)
        self.assertEqual((shown["status"], shown["reviewer"], shown["reviewer_notes"]), ("rejected", "operator", "not today"))
        self.assertNotIn(request, [row["request_id"] for row in approve("list")["approvals"]])
        missing = quorate("approve", "show", "no-such", "--as", "agent-a", "--data", self.data, "--json")
        self.assertEqual((missing.returncode, json.loads(missing.stdout)["ok"]), (1, False))

    # -------- the verbs of people

    def run_as(self, who, *words):
        return quorate(*words, "--as", who, "--data", self.data)

    def done(self, who, *words):
        """What a verb prints for people, which goes well."""
        done = self.run_as(who, *words)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def json(self, who, *words, code=0):
        """What it prints for programs: one line."""
        done = self.run_as(who, *words, "--json")
        self.assertEqual(done.returncode, code, f"{words}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stdout.count("\n"), 1, done.stdout)
        return json.loads(done.stdout)

    def tool(self, who, name, **arguments):
        """The structured answer of a tool, over HTTP."""
        client = Client(self.deployment.info["http"], self.deployment.token(who), via="http")
        self.addCleanup(client.close)
        answer = client.call(name, arguments)
        self.assertTrue(answer.ok, answer)
        return answer.data

    def terminal(self, who, *words, **size):
        command = [executable(), *words, "--as", who, "--data", self.data]
        terminal = Terminal(command, environment=CLEAN, **size)
        self.addCleanup(terminal.close)
        return terminal

    def rows(self, text):
        """The cells of a table that was printed, by its heads."""
        head, *rows = text.splitlines()
        names = re.split(r"  +", head.strip())
        starts = [head.index(name) for name in names]
        ends = starts[1:] + [None]
        return [{name: row[start:end].strip() for name, start, end in zip(names, starts, ends)} for row in rows]

    def test_a_fact_s_whole_life_from_the_shell(self):
        entity = unique("svc")
        first = self.json("agent-a", "fact", "set", entity, "owner", "platform", "--confidence", "0.9")
        again = self.json("agent-a", "fact", "set", entity, "owner", "sre")
        self.assertEqual((first["version"], again["version"], again["superseded_fact_ids"]), (1, 2, [first["fact_id"]]))
        self.done("agent-a", "fact", "set", entity, "port", "8080")

        got, asked = self.json("agent-b", "fact", "get", entity, "owner"), self.tool("agent-b", "query_facts", entity=entity, key="owner")
        for rows in (got["rows"], asked["rows"]):
            rows[0].pop("age_hours")
        self.assertEqual(got, asked)
        self.assertRegex(self.done("agent-b", "fact", "get", entity, "owner"), r"(?m)^value +sre$")
        table = self.rows(self.done("agent-b", "fact", "get", entity))
        self.assertEqual({row["KEY"]: row["VALUE"] for row in table}, {"owner": "sre", "port": "8080"})
        self.assertEqual([row["VALUE"] for row in self.rows(self.done("agent-b", "fact", "list", entity, "--key", "port"))], ["8080"])
        self.assertEqual(self.json("agent-b", "fact", "entities", entity)["entities"], [entity])
        self.assertEqual(self.json("agent-b", "fact", "search", entity, "port")["rows"][0]["value"], "8080")
        history = self.rows(self.done("agent-b", "fact", "history", entity, "owner"))
        self.assertEqual([(row["VERSION"], row["STATE"], row["VALUE"]) for row in history], [("1", "superseded", "platform"), ("2", "active", "sre")])

        self.assertEqual(self.json("agent-a", "fact", "pin", again["fact_id"])["pinned"], True)
        self.assertEqual(self.json("agent-a", "fact", "unpin", again["fact_id"])["pinned"], False)
        would = self.done("agent-a", "fact", "forget", "entity_prefix", entity, "--dry-run")
        self.assertIn("3 versions would be forgotten; nothing was", would)
        self.assertEqual(len(self.json("agent-a", "fact", "get", entity)["rows"]), 2)
        without = self.run_as("agent-a", "fact", "forget", "entity_prefix", entity)
        self.assertEqual((without.returncode, "--reason" in without.stderr), (2, True), without.stderr)
        forgotten = self.json("agent-a", "fact", "forget", "entity_prefix", entity, "--reason", "a trial")
        self.assertEqual(forgotten["facts_affected"], 3)
        none = self.run_as("agent-a", "fact", "get", entity, "owner")
        self.assertEqual((none.returncode, none.stdout), (1, "no such fact is known\n"))
        self.json("agent-a", "fact", "forget-undo", forgotten["forget_receipt_id"])
        self.assertEqual(self.json("agent-a", "fact", "get", entity, "owner")["rows"][0]["value"], "sre")
        self.assertEqual(self.json("agent-a", "fact", "delete", again["fact_id"])["deleted"], True)
        self.json("agent-a", "fact", "get", entity, "owner", code=1)

    def test_a_key_makes_a_repeated_change_one_change(self):
        words = ("fact", "set", unique("svc"), "owner", "platform", "--idempotency-key", unique("key"))
        self.assertEqual(self.json("agent-a", *words), self.json("agent-a", *words))
        other = [*words[:4], "somebody else", *words[5:]]
        self.assertEqual(self.json("agent-a", *other, code=1)["ok"], False)

    def test_a_lease_is_taken_queued_for_given_back_and_taken_away(self):
        resource = f"file://{unique('lib')}.rs"
        taken = self.json("agent-a", "lease", "take", resource, "--ttl-ms", 60_000, "--reason", "a change")
        self.assertEqual((taken["holder_passport"], taken["renewed"]), ("agent-a", False))
        refused = self.json("agent-b", "lease", "take", resource, code=1)
        self.assertEqual((refused["code"], refused["data"]["holder"]), ("HELD", "agent-a"))
        self.assertTrue(self.done("agent-b", "lease", "show", resource).startswith("leave it alone: another holds it\n"))
        self.assertEqual(self.json("agent-b", "lease", "show", resource)["held_resource"], resource)
        rows = {row["RESOURCE"]: row for row in self.rows(self.done("agent-b", "lease", "list"))}
        self.assertEqual((rows[resource]["HOLDER"], rows[resource]["TOKEN"], rows[resource]["REASON"]),
                         ("agent-a", str(taken["fencing_token"]), "a change"))
        self.assertRegex(self.done("agent-b", "lease", "list", resource), rf"(?m)^id +{taken['id']}$")
        self.assertEqual(self.json("agent-b", "lease", "verify", resource, taken["fencing_token"])["valid"], True)
        self.json("agent-b", "lease", "verify", resource, taken["fencing_token"] + 1, code=1)
        longer = self.json("agent-a", "lease", "renew", resource, "--ttl-ms", 900_000)
        self.assertGreater(longer["renewed"][0]["expires_at_unix_ms"], taken["expires_at_unix_ms"])

        waiting = self.deployment.begin("lease", "take", resource, "--wait-ms", 60_000, "--as", "agent-b")
        queue = ("lease", "waiters", resource)
        until(lambda: self.json("agent-a", *queue)["waiters"], 30, "agent-b waits")
        row, = self.rows(self.done("agent-a", *queue))
        self.assertEqual((row["WAITS"], row["FOR"]), ("agent-b", "agent-a"))
        given = self.json("agent-a", "lease", "give-back", resource, "--fencing-token", taken["fencing_token"])
        self.assertEqual(given["status"], "released")
        out, err = waiting.communicate(timeout=60)
        self.assertEqual(waiting.returncode, 0, err)
        granted = json.loads(out)
        self.assertGreater(granted["fencing_token"], taken["fencing_token"])

        self.assertEqual(self.run_as("agent-a", "lease", "renew", resource).returncode, 1)
        without = self.run_as("operator", "lease", "force-release", granted["id"], "--reason", "it is stuck")
        self.assertEqual((without.returncode, "--confirm" in without.stderr), (2, True), without.stderr)
        self.json("operator", "lease", "force-release", granted["id"], "--reason", "it is stuck", "--confirm")
        statuses = [row["STATUS"] for row in self.rows(self.done("agent-a", "lease", "list", resource, "--all"))]
        self.assertEqual(statuses, ["force_released", "released"])
        self.assertEqual(self.done("agent-a", "lease", "list", resource), "nobody holds anything\n")

    def test_who_interrupts_a_wait_for_a_lease_gives_its_place_up(self):
        resource = f"file://{unique('lib')}.rs"
        self.json("agent-a", "lease", "take", resource)
        waiting = self.deployment.begin("lease", "take", resource, "--wait-ms", 600_000, "--as", "agent-b")
        queue = ("lease", "waiters", resource)
        until(lambda: self.json("agent-a", *queue)["waiters"], 30, "agent-b waits")
        waiting.terminate()
        waiting.communicate(timeout=30)
        until(lambda: not self.json("agent-a", *queue)["waiters"], 30, "agent-b is out of the queue")
        self.json("agent-a", "lease", "give-back", resource)

    def test_an_item_of_work_from_the_board_to_its_end(self):
        title = unique("write the parser")
        item = self.json("agent-a", "work", "add", title, "--body", "one\ntwo", "--assignee-passport", "agent-a")["id"]
        later = self.json("agent-a", "work", "add", unique("use it"), "--depends-on", item)["id"]
        rows = {row["ITEM"]: row for row in self.rows(self.done("agent-b", "work", "list", "--state", "planned"))}
        self.assertEqual((rows[item]["TITLE"], rows[item]["DOES IT"]), (title, "agent-a"))
        self.assertNotIn(later, [work["id"] for work in self.json("agent-b", "work", "list", "--ready")["work"]])
        claimed = self.json("agent-b", "work", "claim", item)
        self.assertEqual((claimed["applied"], claimed["work"]["assignee_passport"], claimed["work"]["state"]), (True, "agent-b", "in_progress"))
        self.assertEqual(self.run_as("agent-a", "work", "claim", item).returncode, 1, "a second claim")
        blocked = self.run_as("agent-b", "work", "move", item, "blocked")
        self.assertEqual((blocked.returncode, "--blocker-reason" in blocked.stderr), (2, True), blocked.stderr)
        self.json("agent-b", "work", "move", item, "blocked", "--blocker-reason", "no grammar")
        self.assertIn("no grammar", self.done("agent-b", "inbox"))
        self.json("agent-b", "work", "move", item, "in_progress")
        self.json("agent-a", "work", "comment", item, "the grammar is there")
        shown = self.done("agent-b", "work", "show", item)
        self.assertRegex(shown, r"(?m)^body +one\n +two$")
        self.assertRegex(shown, r"(?m)^\S+ \S+Z  agent-a  the grammar is there$")
        self.assertEqual(self.json("agent-b", "work", "done", item)["work"]["state"], "complete")
        self.assertIn(later, [work["id"] for work in self.json("agent-b", "work", "list", "--ready")["work"]])
        self.assertEqual(self.json("agent-b", "work", "projects"), self.tool("agent-b", "list_projects"))
        wrong = self.run_as("agent-b", "work", "move", item, "finished")
        self.assertEqual((wrong.returncode, "complete" in wrong.stderr), (2, True), wrong.stderr)

    def test_a_claim_of_what_waits_for_other_work_says_what_that_is(self):
        first = self.json("agent-a", "work", "add", unique("the grammar"))["id"]
        second = self.json("agent-a", "work", "add", unique("the parser"), "--depends-on", first)["id"]
        said = self.json("agent-b", "work", "claim", second, code=1)
        self.assertEqual((said["code"], said["retryable"], said["wrote"]), ("UNREADY", True, "no"))
        self.assertIn(f"`{first}`", said["error"])
        self.json("agent-a", "work", "move", first, "archive")
        self.assertEqual(self.json("agent-b", "work", "claim", second)["work"]["state"], "in_progress")
        unknown = self.json("agent-a", "work", "add", unique("x"), "--assignee-passport", "nobody", code=1)
        self.assertIn("get_project_context", unknown["error"])

    def test_a_gated_passport_s_move_waits_for_a_person_and_happens_once(self):
        item = self.json("agent-b", "work", "add", unique("rotate the keys"))["id"]
        self.json("agent-a", "work", "gate", "agent-b", "on", code=1)
        self.assertIn("wait for a person", self.done("operator", "work", "gate", "agent-b", "on"))
        try:
            said = self.done("agent-b", "work", "claim", item)
            self.assertIn("not moved yet", said)
            queued = self.json("agent-b", "work", "claim", item)["queued"]
            self.assertIn(f"{queued['action_id']}", said, "asked again, it is the same move")
            shown = self.json("agent-a", "work", "show", item)["work"][0]
            self.assertEqual(shown["state"], "planned")
            self.json("agent-b", "inbox", "decide", queued["action_id"], "approve", code=1)
            self.assertIn(queued["action_id"], [row["request_id"] for row in self.json("operator", "inbox")["yours"]])
            self.json("operator", "inbox", "decide", queued["action_id"], "approve")
            self.assertEqual(self.json("operator", "inbox", "decide", queued["action_id"], "approve", code=1)["code"], "ALREADY_DECIDED")
            self.assertEqual(self.json("agent-a", "work", "show", item)["work"][0]["state"], "in_progress")
            verbs = [event["verb"] for event in self.tool("agent-a", "status_feed", work_id=item)["events"]]
            self.assertEqual(verbs, ["HUMAN_HOLD", "CLAIMED"])
        finally:
            self.assertEqual(self.json("operator", "work", "gate", "agent-b", "off")["agent_work_gate"], False)
        self.assertEqual(self.json("agent-b", "work", "done", item)["work"]["state"], "complete")

    def test_any_call_shows_that_its_caller_is_there(self):
        session = uuid.uuid4().hex
        self.tool("agent-a", "coord_announce", session_id=session, project_id="p_default")

        def seen():
            return next(row["last_seen_at_unix_ms"] for row in self.json("agent-b", "session", "live")["active_sessions"]
                        if row["session_id_hex"] == session)
        before = seen()
        self.done("agent-a", "fact", "list")
        until(lambda: seen() > before, 30, "agent-a was seen later")

    def test_the_inbox_holds_what_its_owner_may_decide_and_decides_it(self):
        asked = self.tool("agent-a", "approval_request", action_summary=unique("drop the table"), risk_tier="high", scope="default",
                          token_budget=500)["request_id"]

        def names(who, part):
            return [row["request_id"] for row in self.json(who, "inbox")[part]]
        self.assertIn(asked, names("operator", "yours"))
        self.assertIn(asked, names("agent-a", "others"))
        self.assertNotIn(asked, names("agent-a", "yours"))
        table = self.rows(self.done("operator", "inbox").split("\ndecide with")[0])
        self.assertIn((asked, "high", "agent-a"), [(row["REQUEST"], row["RISK"], row["BY"]) for row in table])
        self.assertRegex(self.done("operator", "inbox", "show", asked), rf"(?m)^request_id +{asked}$")
        decided = self.json("operator", "inbox", "decide", asked, "approve", "--notes", "go on")
        self.assertEqual(decided["status"], "approved")
        self.assertNotIn(asked, names("operator", "yours"))

        receipt = decided["receipt_id"]
        self.assertEqual(self.json("operator", "receipt", "verify", receipt), self.tool("operator", "receipt_verify", receipt_id=receipt))
        self.assertTrue(self.done("operator", "receipt", "verify", receipt).startswith("verified\n"))
        self.assertRegex(self.done("operator", "receipt", "show", receipt), r"(?m)^signer_passport +operator$")
        self.json("operator", "receipt", "show", "no-such-receipt", code=1)
        head = self.json("operator", "receipt", "log-head")
        self.assertEqual(head["form"], "quorate.log-head.v1")
        self.assertIn(head["public_key"], self.done("operator", "receipt", "log-head"))

    def test_sessions_that_were_saved_and_those_that_are_live(self):
        name = unique("build")
        self.tool("agent-a", "save_session", session_id=name, state={"title": "release work", "next": ["a"]})
        self.assertIn(name, self.done("agent-a", "session", "list").splitlines())
        self.assertNotIn(name, self.json("agent-b", "session", "list")["sessions"])
        self.assertEqual(self.json("agent-a", "session", "show", name), self.tool("agent-a", "get_session", session_id=name))
        self.assertRegex(self.done("agent-a", "session", "show", name), r"(?m)^title  release work$")
        note = unique("releasing")
        self.tool("agent-a", "coord_announce", session_id=uuid.uuid4().hex, project_id="p_default", note=note)
        rows = self.rows(self.done("agent-b", "session", "live").split("\n\n")[0])
        self.assertIn(("agent-a", note), [(row["WHO"], row["DOES"]) for row in rows])

    def test_a_search_finds_what_was_just_written(self):
        word = uuid.uuid4().hex[:12]
        self.done("agent-a", "fact", "set", unique("svc"), "note", f"the {word} is new")
        found = self.json("agent-b", "search", "new", word)
        self.assertIn(word, found["results"][0]["snippet"])
        self.assertIn(word, self.rows(self.done("agent-b", "search", word))[0]["EXTRACT"])
        self.assertIn("found nowhere: zzyzx", self.done("agent-b", "search", word, "zzyzx"))

    def test_bad_usage_and_a_gateway_that_is_not_there_have_codes_of_their_own(self):
        for words in (("fact", "set", "svc:x"), ("lease", "take"), ("work", "move", "w"), ("search",), ("inbox", "decide", "x", "maybe")):
            done = quorate(*words, "--json")
            self.assertEqual((done.returncode, json.loads(done.stdout)["exit_code"]), (2, 2), words)
            self.assertIn("--help", done.stderr)
        nobody = quorate("fact", "set", "svc:x", "k", "v", "--url", "http://127.0.0.1:1", "--token", "x", "--json")
        said = json.loads(nobody.stdout)
        self.assertEqual((nobody.returncode, said["exit_code"]), (3, 3))
        self.assertEqual(said["wrote"], "no")
        unknown = quorate("fact", "list", "--url", self.deployment.info["http"], "--token", "qt_nonsense", "--json")
        self.assertEqual((unknown.returncode, json.loads(unknown.stdout)["ok"]), (1, False))

    def test_a_table_fits_its_terminal_with_a_mark_and_a_pipe_gets_all(self):
        entity, value = unique("svc"), "a statement that goes on " * 20 + "to its end"
        self.done("agent-a", "fact", "set", entity, "note", value)
        code, seen = self.terminal("agent-a", "fact", "list", entity, columns=80).wait()
        self.assertEqual(code, 0)
        row = seen.splitlines()[1]
        self.assertLessEqual(len(row), 80)
        self.assertTrue(row.endswith("…"), seen)
        self.assertIn(value, self.done("agent-a", "fact", "list", entity))
        code, seen = self.terminal("agent-a", "fact", "list", entity, "--json", columns=80).wait()
        self.assertEqual(json.loads(seen)["rows"][0]["value"], value)

    def test_what_somebody_stored_cannot_act_on_a_reader_s_terminal(self):
        entity = unique("svc")
        self.tool("agent-b", "store_fact", entity=entity, key="note", value="\x1b[2Jgone\x07\nsecond \u202eline")
        for words in (("fact", "list", entity), ("fact", "get", entity, "note")):
            out = self.done("agent-a", *words)
            self.assertNotRegex(out, "[\x1b\x07\u202e]")
            self.assertIn("gone", out)

    def test_a_watched_list_is_drawn_again_at_a_change_and_only_then_asked_for(self):
        entity = unique("svc")
        watched = self.terminal("agent-a", "fact", "list", entity, "--watch")
        watched.sees("no such fact is known")
        calls = self.calls("query_facts")
        self.done("agent-b", "fact", "set", entity, "owner", "platform")
        page = watched.sees("platform")
        self.assertEqual(self.calls("query_facts") - calls, 1, "one question for one change")
        self.assertEqual(page.splitlines()[1].split()[0], "ENTITY")
        self.done("agent-b", "work", "add", unique("something else"))
        self.done("agent-b", "fact", "set", entity, "owner", "sre")
        self.assertNotIn("platform", watched.sees("sre"))
        self.assertEqual(self.calls("query_facts") - calls, 2, "what it does not show is no reason to ask")

    def calls(self, tool):
        """Calls of a tool that the gateway has counted."""
        with urllib.request.urlopen(self.deployment.url("/metrics"), timeout=30) as page:
            text = page.read().decode()
        counts = re.findall(rf'^\S*calls_total{{[^}}]*"{tool}"[^}}]*}} (\d+)', text, re.MULTILINE)
        return sum(map(int, counts))

    def test_a_watch_in_a_pipe_prints_each_state_once(self):
        title = unique("watched")
        item = self.json("agent-a", "work", "add", title)["id"]
        watching = self.deployment.begin("work", "show", item, "--watch", "--as", "agent-b")
        self.addCleanup(watching.wait)
        self.addCleanup(watching.kill)
        states = []
        for state in ("planned", "in_progress", "complete"):
            if state != "planned":
                self.done("agent-a", "work", "move", item, state)
            states.append(json.loads(watching.stdout.readline())["work"][0]["state"])
        self.assertEqual(states, ["planned", "in_progress", "complete"])

    def test_a_watch_goes_on_when_the_leader_and_when_the_gateway_is_killed(self):
        state = unique("state")
        watched = self.terminal("agent-a", "fact", "list", state, "--watch")
        watched.sees("no such fact is known")
        killed = self.deployment.kill_leader()
        self.done("agent-b", "fact", "set", state, "leader", "gone")
        watched.sees("gone", 60)
        self.deployment.leader(other_than=killed[1])
        self.deployment.kill(self.deployment.info["gateway"]["pid"])

        def stored():
            return self.run_as("agent-b", "fact", "set", state, "gateway", "back").returncode == 0
        until(stored, 60, "a gateway answers again")
        watched.sees("back", 60)

    # -------- operators

    def test_a_removal_that_leaves_two_voters_says_what_they_tolerate(self):
        for flags in ((), ("--json",)):
            would = quorate("remove", 3, "--dry-run", "--data", self.data, *flags)
            self.assertEqual(would.returncode, 0, would.stderr)
            self.assertIn("2 voters are left: nothing goes on when either of them fails", would.stderr)
        self.assertIn("2 voters are left", json.loads(would.stdout)["warning"])

    def test_tokens_are_listed_by_their_hashes_and_never_as_they_are(self):
        passport = unique("ci")
        made = json.loads(quorate("token", "create", "--passport", passport, "--days", 3, "--data", self.data, "--json").stdout)
        gone = json.loads(quorate("token", "create", "--passport", passport, "--data", self.data, "--json").stdout)
        self.assertEqual(quorate("token", "revoke", gone["hash"], "--data", self.data).returncode, 0)
        listed = quorate("token", "list", "--data", self.data, "--json")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        rows = {row["hash"]: row for row in json.loads(listed.stdout)["tokens"]}
        self.assertEqual((rows[made["hash"]]["passport"], rows[made["hash"]]["state"]), (passport, "valid"))
        self.assertEqual(rows[made["hash"]]["expires_at"], made["expires_at"])
        self.assertNotIn(gone["hash"], rows)
        self.assertIn("operator", [row["passport"] for row in rows.values()])
        ended = quorate("token", "list", "--passport", passport, "--all", "--data", self.data)
        self.assertEqual({row["STATE"] for row in self.rows(ended.stdout)}, {"valid", "revoked"})
        other = json.loads(quorate("token", "list", "--tenant", "other", "--data", self.data, "--json").stdout)["tokens"]
        self.assertEqual([row["passport"] for row in other], ["agent-c"])
        for text in (listed.stdout, ended.stdout):
            for secret in (made["token"], gone["token"], *self.deployment.info["tokens"].values()):
                self.assertNotIn(secret, text)

    def test_a_gateway_and_a_node_on_port_0_say_which_port_they_got(self):
        gateway, log = self.deployment.spawn("gateway", "--data", str(self.data), "--listen", "127.0.0.1:0")
        said = until(lambda: re.search(r"^gateway at (http://127\.0\.0\.1:\d+)$", log.read_text(), re.MULTILINE), 60, "it says where it is")
        self.assertNotIn(said.group(1).rsplit(":", 1)[1], ("0", self.deployment.info["http"].rsplit(":", 1)[1]))
        done = quorate("fact", "list", "--url", said.group(1), "--token", self.deployment.token("agent-a"))
        self.assertEqual(done.returncode, 0, done.stderr)
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as folder:
            config = pathlib.Path(folder, "node.toml")
            config.write_text(f'node_id = 1\ncluster_id = "acme"\ndata = "{folder}/node"\nreceipt_key = "{"07" * 32}"\n'
                              'grpc = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n')
            node, log = self.deployment.spawn("node", "--new", "--config", str(config))
            pattern = r"^node 1 at (127\.0\.0\.1:\d+), health and metrics at (127\.0\.0\.1:\d+)$"
            said = until(lambda: re.search(pattern, log.read_text(), re.MULTILINE), 60, "it says where it is")
            status = json.loads(quorate("status", "--nodes", said.group(1), "--json").stdout)["nodes"]
            self.assertEqual([(one["grpc"], one["http"]) for one in status], [said.groups()])
            node.terminate()
            node.wait(60)

    def test_every_shell_gets_its_completions(self):
        for shell in ("bash", "zsh", "fish"):
            done = quorate("completions", shell)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("force-release", done.stdout)

    def test_the_manual_has_a_page_for_every_verb(self):
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as folder:
            done = quorate("man", f"{folder}/man1")
            self.assertEqual(done.returncode, 0, done.stderr)
            pages = {page.name: page.read_text() for page in pathlib.Path(folder, "man1").iterdir()}
        for name in ("quorate.1", "quorate-fact.1", "quorate-lease-take.1", "quorate-token-list.1", "quorate-search.1"):
            self.assertIn(".SH OPTIONS", pages[name])
        self.assertIn(r"\-\-wait\-ms", pages["quorate-lease-take.1"])

    def test_connect_writes_into_a_project_once(self):
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as home:
            words = ("connect", "claude-code", "--project", home, "--write", "--json")
            refused = quorate(*words)
            self.assertEqual(refused.returncode, 2, "it wrote without being allowed to")
            self.assertEqual(list(pathlib.Path(home).iterdir()), [])
            for state in ("new", "unchanged"):
                done = quorate(*words, "--yes", "--url", self.deployment.info["mcp"])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual({file["state"] for file in json.loads(done.stdout)["files"]}, {state})
            written = json.loads((pathlib.Path(home) / ".mcp.json").read_text())
            self.assertEqual(written["mcpServers"]["quorate"]["url"], self.deployment.info["mcp"])


if __name__ == "__main__":
    main()
