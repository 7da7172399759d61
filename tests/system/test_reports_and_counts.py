"""What is counted and rolled up is the cluster's: it is there when the leader that counted, or a gateway, is gone."""
import pathlib
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402


class ReportsAndCounts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def client(self, who="agent-a", base=None):
        return Client(base or self.deployment.info["http"], self.deployment.token(who))

    def second_gateway(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process, log = self.deployment.spawn("gateway", "--data", self.deployment.data, "--listen", f"127.0.0.1:{port}")
        base = f"http://127.0.0.1:{port}"

        def ready():
            assert process.poll() is None, f"the second gateway ended: {log.read_text()[-500:]}"
            try:
                return Client(base, None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(ready, 60, "the second gateway is ready")
        return base, process

    def test_a_roll_up_and_a_report_are_the_same_under_the_next_leader(self):
        agent = self.client()
        orchestrator = agent.ok("create_orchestrator", name="release", created_by_passport="agent-a")["id"]
        for state in ("planned", "complete"):
            work = agent.ok("create_work", project_id="p_default", title=state, created_by_passport="agent-a", state=state)["id"]
            agent.ok("attach_to_orchestrator", orchestrator_id=orchestrator, member_ref=work)
        agent.ok("attach_to_orchestrator", orchestrator_id=orchestrator, member_ref="agent-b")
        payload = {"id": "search", "name": "Search", "system": "core", "maturity": "shipped", "files": ["src/lib.rs"]}
        agent.ok("entity_upsert", kind="capability", id="search", payload=payload)
        asked = [("list_orchestrators", {}), ("feature_coverage_report", {}), ("feature_suggest_next", {})]
        before = [agent.ok(tool, **arguments) for tool, arguments in asked]
        self.assertEqual(before[0]["orchestrators"][0]["progress"]["percent_done"], 50)
        self.assertEqual(before[1]["report"]["gaps"]["critical"], 2)
        self.deployment.kill_leader()
        self.assertEqual([agent.ok(tool, **arguments) for tool, arguments in asked], before)
        agent.ok("feature_trigger_audit", id="search", status="audited")
        self.assertEqual(agent.ok("feature_coverage_report")["report"]["gaps"]["critical"], 1)

    def test_the_usage_that_a_killed_gateway_counted_is_told_by_another(self):
        base, process = self.second_gateway()
        doomed = self.client("agent-b", base)
        for _ in range(3):
            doomed.ok("list_entities")
        self.assertEqual(doomed.ok("session_token_usage")["calls"], 3)
        process.kill()
        process.wait()
        # The last call may have been handed over between its answer and the end.
        self.assertIn(self.client("agent-b").ok("session_token_usage")["calls"], (3, 4))

    def test_usage_is_counted_to_the_last_call_when_all_are_stopped_in_order(self):
        agent = self.client("operator")
        for _ in range(3):
            agent.ok("list_entities")
        self.deployment.restart()
        self.assertEqual(self.client("operator").ok("session_token_usage")["calls"], 3)


if __name__ == "__main__":
    main()
