"""The stream of changes: every change told once and in order, whatever dies meanwhile, and to its own tenant alone."""
import pathlib
import queue
import sys
import threading
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from sse import Stream  # noqa: E402
from wire import Client, Unreachable  # noqa: E402


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


class Writer(threading.Thread):
    """Stores facts one after the other until told to stop; `ids` are those that were acknowledged, in order."""

    def __init__(self, base, token, entity):
        super().__init__(daemon=True)
        self._client, self._entity = Client(base, token), entity
        self.ids, self.go_on = [], True

    def run(self):
        while self.go_on:
            number = len(self.ids)
            key = f"{self._entity}-{number}"
            while True:
                try:
                    answer = self._client.call("store_fact", {"entity": self._entity, "key": f"k{number}", "value": "x", "idempotency_key": key})
                except Unreachable:
                    continue
                if answer.ok:
                    self.ids.append(answer.data["fact_id"])
                    break


class Events(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        cls.base = cls.deployment.info["http"]

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def open(self, query="", who="agent-a", last=None, **more):
        headers = {"Authorization": f"Bearer {self.deployment.token(who)}"}
        if last:
            headers["Last-Event-ID"] = last
        stream = Stream(self.base, f"/v1/events{query}", headers, **more)
        self.addCleanup(stream.close)
        return stream

    def client(self, who="agent-a"):
        return Client(self.base, self.deployment.token(who))

    def test_each_change_is_told_once_and_in_order_while_leaders_and_the_gateway_are_killed(self):
        entity = unique("svc")
        stream = self.open("?kinds=fact.stored")
        self.assertEqual(stream.status, 200)
        writer = Writer(self.base, self.deployment.token("agent-a"), entity)
        writer.start()
        until(lambda: len(writer.ids) > 30, 60, "writes before anything dies")
        self.deployment.kill_leader()
        until(lambda: len(writer.ids) > 80, 120, "writes after another node leads")
        self.deployment.kill(self.deployment.info["gateway"]["pid"])
        reached = len(writer.ids)
        until(lambda: len(writer.ids) > reached + 30, 120, "writes through the gateway that took over")
        writer.go_on = False
        writer.join(60)
        seen, position = [], None

        def read(stream):
            """Reads to the last write or to the end of the stream."""
            nonlocal position
            while not seen or seen[-1] != writer.ids[-1]:
                try:
                    event = stream.next(30)
                except queue.Empty:
                    self.fail(f"no event for 30 s after {len(seen)} of {len(writer.ids)}")
                if event is None:
                    return
                position = event.id
                if event.kind == "change" and event.json["about"].get("entity") == entity:
                    seen.append(event.json["id"])
        read(stream)
        while seen[-1] != writer.ids[-1]:
            read(self.open("?kinds=fact.stored", last=position))
        self.assertEqual(seen, writer.ids)

    def test_a_reader_that_falls_behind_misses_nothing(self):
        entity, client = unique("svc"), self.client()
        stream = self.open("?kinds=fact.", paused=True)
        value = "x" * 100
        ids = [client.ok("store_fact", entity=entity, key=f"{n}-{value * 4}", value=value)["fact_id"] for n in range(400)]
        stream.resume_reading()
        seen = []
        while len(seen) < len(ids):
            event = stream.next(30)
            if event.kind == "change" and event.json["about"].get("entity") == entity:
                seen.append(event.json["id"])
        self.assertEqual(seen, ids)

    def test_an_event_in_the_middle_of_a_revision_can_be_gone_on_from(self):
        a, b, resource = self.client(), self.client("agent-b"), f"file://{unique('src')}/lib.rs"
        card = a.ok("punch_in", resource=resource, holder_passport=a.name(), ttl_ms=60_000)
        stream = self.open("?kinds=punchcard.")
        waiting = threading.Thread(target=lambda: b.ok("punch_in", resource=resource, holder_passport=b.name(), ttl_ms=60_000, wait_ms=60_000))
        waiting.start()
        stream.until(lambda event: event.json.get("kind") == "punchcard.queued")
        a.ok("punch_out", resource=resource, holder_passport=a.name(), fencing_token=card["fencing_token"])
        waiting.join(60)
        # The card that goes and the one that comes are of one revision.
        events = [stream.until(lambda event: event.kind == "change")]
        while len(events) < 2 or events[-1].json["revision"] != events[-2].json["revision"]:
            events.append(stream.until(lambda event: event.kind == "change"))
        first, second = events[-2:]
        again = self.open("?kinds=punchcard.", last=first.id).until(lambda event: event.kind == "change")
        self.assertEqual((again.id, again.text), (second.id, second.text))

    def test_changes_are_told_to_their_tenant_and_of_the_kinds_asked_for(self):
        mark = self.client("other-tenant")
        other = self.open(who="other-tenant")
        facts = self.open("?kinds=fact.stored")
        entity = unique("svc")
        self.client().ok("save_session", session_id=unique("s"), state={})
        stored = self.client().ok("store_fact", entity=entity, key="k", value="v")["fact_id"]
        theirs = mark.ok("store_fact", entity=entity, key="k", value="v")["fact_id"]
        self.assertEqual(other.until(lambda event: event.kind == "change").json["id"], theirs)
        event = facts.until(lambda event: event.kind == "change" and event.json["about"].get("entity") == entity)
        self.assertEqual((event.json["kind"], event.json["id"]), ("fact.stored", stored))

    def test_a_reader_is_told_that_it_is_up_to_date_while_others_are_busy(self):
        quiet = self.open(who="other-tenant")
        first = quiet.until(lambda event: event.kind == "progress").json["revision"]
        writer = Writer(self.base, self.deployment.token("agent-a"), unique("svc"))
        writer.start()
        try:
            later = quiet.next(20)
            self.assertEqual(later.kind, "progress")
            self.assertGreater(later.json["revision"], first)
        finally:
            writer.go_on = False
            writer.join(60)

    def test_what_can_not_be_served_is_refused(self):
        for query, status, word in [("?since=99999999999", 400, "last revision"), ("?since=x", 400, "no position"), ("?colour=red", 400, "unknown")]:
            refused = self.open(query)
            self.assertEqual(refused.status, status, query)
            self.assertIn(word, refused.body)
        nobody = Stream(self.base, "/v1/events")
        self.assertEqual((nobody.status, nobody.kind), (401, "application/problem+json"))


if __name__ == "__main__":
    main()
