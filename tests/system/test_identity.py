"""Identities over processes: a revoked agent is nobody at once, and a hand-off holds over a restart of everything."""
import pathlib
import sys
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402


class Identity(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def client(self, who):
        return Client(self.deployment.info["http"], self.deployment.token(who))

    def test_a_package_and_a_passports_key_hold_over_a_full_restart_and_a_package_is_accepted_once(self):
        session = f"build-{uuid.uuid4().hex[:10]}"
        giver = self.client("agent-a")
        key = giver.ok("issue_passport")["public_key_hex"]
        giver.ok("save_session", session_id=session, state={"next": "the tests"})
        receiver = self.client("agent-b").name()
        package = giver.ok("create_handoff", session_id=session, target_agent=receiver)["package_json"]
        self.deployment.restart()
        self.assertEqual(self.client("agent-a").ok("get_passport")["public_key_hex"], key)
        self.assertFalse(self.client("operator").call("accept_handoff", {"package": package}).ok, "it is for another")
        accepted = self.client("agent-b").ok("accept_handoff", package=package)
        self.assertEqual((accepted["verified"], accepted["session_loaded"]), (True, True))
        self.assertEqual(self.client("agent-b").ok("get_session", session_id=session)["state"], {"next": "the tests"})
        self.deployment.restart()
        again = self.client("agent-b").call("accept_handoff", {"package": package})
        self.assertFalse(again.ok)
        self.assertEqual(again.error["code"], "SPENT")
        foreign = self.client("other-tenant").ok("accept_handoff", package=package)
        self.assertEqual((foreign["verified"], foreign["session_loaded"]), (False, False))

    def test_whoever_is_revoked_is_nobody_at_once_and_stays_so(self):
        agent, operator = self.client("agent-b"), self.client("operator")
        name, resource = agent.name(), f"file://{uuid.uuid4().hex}/a.rs"
        first = agent.ok("punch_in", resource=resource, holder_passport=name, ttl_ms=600_000)
        done = operator.ok("revoke_passport", target_passport=name, reason="lost laptop")
        self.assertTrue(operator.ok("receipt_verify", receipt_id=done["receipt_id"])["verified"])
        for tool, arguments in (("list_entities", {}), ("store_fact", {"entity": "e", "key": "k", "value": "v"})):
            self.assertFalse(agent.call(tool, arguments).ok, f"{tool} served a revoked caller")
        card = operator.ok("punch_in", resource=resource, holder_passport=operator.name(), ttl_ms=600_000)
        self.assertGreater(card["fencing_token"], first["fencing_token"])
        self.deployment.restart()
        self.assertEqual(self.client("agent-b").send("POST", "/v1/tools/crux/list_entities", b"{}").status, 401)


if __name__ == "__main__":
    main()
