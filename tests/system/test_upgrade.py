"""From one version to the next: one node after the other is restarted while clients work, and then the new level is begun."""
import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

RESTART = "kill -TERM $QUORATE_NODE_PID"


class Upgrade(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def roll(self, *words):
        return self.deployment.verb("upgrade", "roll", *words)

    def version(self):
        return self.deployment.status()["nodes"][0]["version"]

    def test_check_says_what_each_node_runs_and_that_nothing_is_left(self):
        code, found, text = self.deployment.verb("upgrade", "check")
        self.assertEqual(code, 0, text)
        self.assertEqual({(node["version"], node["feature_level_max"]) for node in found["nodes"]}, {(self.version(), 1)})
        self.assertEqual((found["feature_level"], found["next"]), (1, "nothing is left to do"))
        for words in [("finalise",), ("finalise", "--dry-run")]:
            code, found, text = self.deployment.verb("upgrade", *words)
            self.assertEqual((code, found.get("changed")), (0, False), text)

    def test_nodes_that_run_the_version_are_left_alone(self):
        before = self.deployment.node_pids()
        code, found, text = self.roll("--restart", RESTART)
        self.assertEqual((code, found["restarted"], found["due"]), (0, [], []), text)
        code, found, text = self.roll("--restart", RESTART, "--again", "--dry-run")
        self.assertEqual((code, sorted(found["due"])), (0, [1, 2, 3]), text)
        self.assertEqual(self.deployment.node_pids(), before)

    def test_all_nodes_are_restarted_the_leader_last_and_no_client_sees_an_error(self):
        before, leader = self.deployment.node_pids(), self.deployment.leader()[0]
        ending, broken, acked = threading.Event(), [], []

        def write():
            try:
                client = Client(self.deployment.info["http"], self.deployment.token("agent-a"), timeout=60)
                while not ending.wait(0.02):
                    client.ok("store_fact", entity="upgrade", key=f"k{len(acked)}", value="v")
                    acked.append(f"k{len(acked)}")
            except BaseException as error:
                broken.append(error)
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        code, found, text = self.roll("--restart", RESTART, "--again")
        ending.set()
        writer.join(60)
        self.assertEqual(code, 0, text)
        self.assertEqual((sorted(found["restarted"]), found["restarted"][-1]), ([1, 2, 3], leader))
        after = self.deployment.node_pids()
        self.assertFalse(set(before.values()) & set(after.values()))
        self.assertEqual(broken, [])
        self.assertTrue(acked)
        code, _, text = self.deployment.verb("scrub")
        self.assertEqual(code, 0, text)

    def test_a_roll_stops_at_the_first_node_that_does_not_come_back_as_it_should(self):
        before = self.deployment.node_pids()
        code, _, text = self.roll("--restart", "exit 7", "--again")
        self.assertEqual(code, 1, text)
        self.assertIn("ended with exit status: 7", text)
        self.assertEqual(self.deployment.node_pids(), before)
        code, _, text = self.roll("--restart", "true", "--again", "--node-seconds", "2")
        self.assertEqual(code, 3, text)
        self.assertIn("was not back and ready within 2 s (restarted so far: []", text)
        self.assertEqual(self.deployment.node_pids(), before)
        code, _, text = self.roll("--restart", RESTART, "--to", "99.0.0")
        self.assertEqual(code, 1, text)
        self.assertIn("not 99.0.0: install the executable there", text)
        changed = {id for id, pid in self.deployment.node_pids().items() if pid != before[id]}
        self.assertEqual(len(changed), 1)


if __name__ == "__main__":
    main()
