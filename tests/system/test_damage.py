"""A byte flipped in one node's state, log or snapshot: it is found, never served, and the node is rebuilt or replaced."""
import http.client
import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402


def flip(path, at):
    """Turns one bit of one byte."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
        os.fsync(file.fileno())


class Damage(unittest.TestCase):
    def setUp(self):
        self.deployment = Deployment()
        self.client = Client(self.deployment.info["http"], self.deployment.token("agent-a"))
        for i in range(60):
            self.client.ok("store_fact", entity="svc:a", key=f"k{i}", value=f"{i} " * 200)

    def tearDown(self):
        self.deployment.stop()

    def node(self, id):
        return next(node for node in self.deployment.status()["nodes"] if node["id"] == id)

    def folder(self, id):
        return self.deployment.data / f"node-{id}"

    def follower(self):
        leader = self.deployment.leader()[0]
        return next(node["id"] for node in self.deployment.status()["nodes"] if node["id"] != leader)

    def readyz(self, address):
        connection = http.client.HTTPConnection(*address.split(":"), timeout=10)
        try:
            connection.request("GET", "/readyz?verbose")
            return json.loads(connection.getresponse().read())
        except (OSError, ValueError):
            return {}
        finally:
            connection.close()

    def assert_all_right(self):
        """Everything that was acknowledged is read, whoever is asked."""
        for _ in range(6):
            rows = self.client.listed("query_facts", "rows", entity="svc:a", top_k=200)
            self.assertEqual({row["key"]: row["value"] for row in rows}, {f"k{i}": f"{i} " * 200 for i in range(60)})

    def test_a_byte_of_the_state_is_found_and_the_node_rebuilds_itself(self):
        # A stop in good order puts the state on the disk.
        self.deployment.halt()
        victim = 2
        tables = sorted(self.folder(victim).glob("state/gen-*/*.sst"), key=lambda path: path.stat().st_size)
        self.assertTrue(tables)
        # The largest holds facts or receipts; its begin holds rows.
        flip(tables[-1], 64)
        self.deployment.go_on()
        self.client = Client(self.deployment.info["http"], self.deployment.token("agent-a"))
        until(lambda: "goes into quarantine" in self.deployment.log(), 90, "the damage is found")
        self.assert_all_right()
        until(lambda: "the state was rebuilt from another member's" in self.deployment.log(), 150, "the node rebuilds itself")

        def back():
            node = self.node(victim)
            return node["role"] in ("leader", "follower") and not node.get("not_ready") and node["lag"] == 0
        until(back, 150, "the node is back")
        code, found, text = self.deployment.verb("scrub")
        self.assertEqual(code, 0, text)
        self.assertFalse((self.folder(victim) / "quarantine").exists())
        self.assertFalse((self.folder(victim) / "state.damaged").exists())
        self.assert_all_right()

    def test_a_byte_of_the_log_keeps_its_node_out_until_it_is_replaced(self):
        victim = self.follower()
        address = self.node(victim)["http"]
        with self.deployment.unsupervised():
            self.deployment.kill(self.node(victim)["pid"])
            logs = sorted(self.folder(victim).glob("log/*.log"))
            self.assertTrue(logs)
            # In the first records, with others behind: no crash leaves that.
            flip(logs[-1], 200)
        told = until(lambda: (lambda seen: seen if seen.get("reasons") == ["log_damaged"] else None)(self.readyz(address)), 60, "its word")
        self.assertFalse(told["ready"])
        self.assertIn("quorate replace", self.deployment.log())
        self.assert_all_right()
        self.client.ok("store_fact", entity="svc:b", key="during", value="v")
        code, found, text = self.deployment.verb("replace", victim)
        self.assertEqual(code, 0, text)
        self.assert_all_right()
        code, found, text = self.deployment.verb("scrub")
        self.assertEqual(code, 0, text)


if __name__ == "__main__":
    main()
