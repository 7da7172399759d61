"""Two gateways side by side: what was begun at one goes on at the other, and one may die."""
import pathlib
import socket
import sys
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


class TwoGateways(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cls.process, cls.log = cls.deployment.spawn("gateway", "--data", cls.deployment.data, "--listen", f"127.0.0.1:{port}")
        cls.first, cls.second = cls.deployment.info["http"], f"http://127.0.0.1:{port}"

        def ready():
            assert cls.process.poll() is None, f"the second gateway ended: {cls.log.read_text()[-500:]}"
            try:
                return Client(cls.second, None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(ready, 60, "the second gateway is ready")

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def client(self, base, who="agent-a"):
        return Client(base, self.deployment.token(who))

    def test_a_session_goes_on_at_the_other_gateway(self):
        here, there = self.client(self.first), self.client(self.second)
        here.initialize()
        session = unique("session")
        here.ok("save_session", session_id=session, state={"title": "begun here"})
        there.continue_as(here)
        self.assertEqual(there.ok("get_session", session_id=session)["state"], {"title": "begun here"})
        there.ok("save_session", session_id=session, state={"title": "gone on there"})
        self.assertEqual(here.ok("get_session", session_id=session)["state"], {"title": "gone on there"})
        self.assertEqual(set(here.tools()), set(there.tools()))

    def test_a_repeated_call_has_one_effect_whichever_gateway_it_meets(self):
        here, there = self.client(self.first), self.client(self.second)
        entity, key = unique("svc"), unique("key")
        first = here.ok("store_fact", entity=entity, key="owner", value="platform", idempotency_key=key)
        again = there.ok("store_fact", entity=entity, key="owner", value="platform", idempotency_key=key)
        self.assertEqual(first, again)
        self.assertEqual(len(there.ok("fact_history", entity=entity, key="owner")["versions"]), 1)

    def test_a_card_of_one_gateway_holds_at_the_other(self):
        here, there = self.client(self.first), self.client(self.second, "agent-b")
        resource, holder = f"file://{unique('src')}/lib.rs", here.name()
        card = here.ok("punch_in", resource=resource, holder_passport=holder, ttl_ms=60_000)
        refused = there.call("punch_in", {"resource": resource, "holder_passport": there.name(), "ttl_ms": 60_000})
        self.assertFalse(refused.ok)
        self.assertIn(holder, refused.text)
        self.client(self.second).ok("punch_out", resource=resource, holder_passport=holder, fencing_token=card["fencing_token"])
        there.ok("punch_in", resource=resource, holder_passport=there.name(), ttl_ms=60_000)

    def test_work_goes_on_while_one_gateway_is_killed(self):
        here, there = self.client(self.first), self.client(self.second)
        here.initialize()
        entity = unique("svc")
        here.ok("store_fact", entity=entity, key="owner", value="platform")
        self.deployment.kill(self.deployment.info["gateway"]["pid"])
        there.continue_as(here)
        self.assertEqual([row["value"] for row in there.ok("query_facts", entity=entity)["rows"]], ["platform"])
        there.ok("store_fact", entity=entity, key="owner", value="sre")

        def back():
            try:
                return self.client(self.first).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(back, 60, "the killed gateway serves again")
        here.close()
        # Its own session, at the gateway that replaced the one which began it.
        self.assertEqual([row["value"] for row in here.ok("query_facts", entity=entity)["rows"]], ["sre"])


if __name__ == "__main__":
    main()
