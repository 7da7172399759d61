"""Two of three nodes are gone. What can still be known is told with its age; all else is refused, and nothing is ever called free."""
import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

RESOURCE = "file://src/lib.rs"
UNAVAILABLE = 3


class NoQuorum(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = deployment = Deployment()
        a = cls.client("agent-a")
        cls.holder = a.name()
        cls.card = a.ok("punch_in", resource=RESOURCE, holder_passport=cls.holder, ttl_ms=3_600_000)
        pids = deployment.node_pids()
        leader, _ = deployment.leader()
        until(lambda: all(node["lag"] == 0 for node in deployment.status()["nodes"]), 30, "every node knows of the card")
        cls.outage = deployment.unsupervised()
        cls.outage.__enter__()
        # The leader among them: the node that is left has never led.
        deployment.kill(pids[leader], next(pid for node, pid in pids.items() if node != leader))

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    @classmethod
    def client(cls, who):
        return Client(cls.deployment.info["http"], cls.deployment.token(who))

    def test_1_status_shows_who_is_left_and_says_by_its_exit_code_that_nobody_leads(self):
        def without_leader():
            code, found, _ = self.deployment.verb("status")
            return (code, found) if code == UNAVAILABLE and found else None
        _, found = until(without_leader, 30, "status without a leader")
        self.assertIsNone(found["leader"])
        self.assertEqual(sorted(node["role"] == "unreachable" for node in found["nodes"]), [False, True, True])

    def test_2_a_token_that_the_gateway_has_not_met_yet_still_opens_a_stale_read(self):
        start = time.monotonic()
        answer = self.client("agent-b").ok("check_punchcard", resource=RESOURCE, max_staleness_ms=600_000)
        self.assertTrue(answer["held_by_other"], answer)
        self.assertEqual(answer["holder_passport"], self.holder)
        self.assertGreater(answer["age_ms"], 0)
        # Handshake and call ask who is calling; nobody waits for a leader that nobody has seen.
        self.assertLess(time.monotonic() - start, 5)

    def test_3_a_token_that_nobody_made_still_opens_nothing(self):
        stranger = Client(self.deployment.info["http"], "made-up", via="http")
        answer = stranger.call("check_punchcard", {"resource": RESOURCE, "max_staleness_ms": 600_000})
        self.assertEqual(answer.status, 401, answer)

    def test_4_a_lease_is_unknown_and_never_free(self):
        for resource in (RESOURCE, "file://nobody/holds/this.rs"):
            answer = self.client("agent-b").call("check_punchcard", {"resource": resource})
            self.assertFalse(answer.ok, answer)
            self.assertEqual((answer.error["code"], answer.error["retryable"]), ("UNKNOWN", True), answer)

    def test_4b_whether_a_token_is_good_is_not_guessed_and_the_answer_comes_soon(self):
        start = time.monotonic()
        client = self.client("agent-a")
        answer = client.send("GET", f"/v1/punchcards/verify?resource={RESOURCE}&fencing_token={self.card['fencing_token']}")
        self.assertEqual((answer.status, client.answer_headers["Retry-After"]), (503, "1"), answer)
        self.assertLess(time.monotonic() - start, 10)

    def test_5_a_write_is_refused_as_one_to_try_again(self):
        answer = self.client("agent-a").call("store_fact", {"entity": "svc", "key": "k", "value": "v"})
        self.assertFalse(answer.ok)
        self.assertTrue(answer.error["retryable"], answer)

    def test_6_with_the_nodes_back_all_goes_on(self):
        self.outage.__exit__(None, None, None)
        client = self.client("agent-a")
        until(lambda: client.call("store_fact", {"entity": "svc", "key": "k", "value": "v"}).ok, 60, "a write succeeds")
        renewed = client.ok("punch_in", resource=RESOURCE, holder_passport=self.holder, ttl_ms=3_600_000)
        self.assertEqual(renewed["fencing_token"], self.card["fencing_token"])


if __name__ == "__main__":
    main()
