"""Nodes are restarted one after the other, at random, while clients write: nothing acknowledged is lost, and all states are equal.

`RESTARTS=200 python3 tests/system/test_rolling_restarts.py`, or `make rolling`, for as many as an operator makes in years; the tests make
a few. `SEED` repeats the order.
"""
import os
import pathlib
import random
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

RESTARTS = int(os.environ.get("RESTARTS", "8"))
# Hashes are compared after so many, and at the end.
COMPARE_EVERY = 20
WRITERS = 2


class RollingRestarts(unittest.TestCase):
    def setUp(self):
        self.deployment = Deployment()
        self.ending, self.broken, self.acked = threading.Event(), [], [[] for _ in range(WRITERS)]

    def tearDown(self):
        self.ending.set()
        self.deployment.stop()

    def write(self, i):
        try:
            client = Client(self.deployment.info["http"], self.deployment.token("agent-a"), timeout=60)
            while not self.ending.is_set():
                key = f"{i}-{len(self.acked[i])}"
                client.ok("store_fact", entity="rolling", key=key, value=key)
                self.acked[i].append(key)
                # Not as fast as it can: the list of all of it is read at the end.
                time.sleep(0.05)
        except BaseException as error:
            self.broken.append(error)

    def settled(self):
        """Three nodes that serve, with nothing left to catch up on."""
        found = self.deployment.status() or {"nodes": []}
        serving = [node for node in found["nodes"] if node["role"] in ("leader", "follower") and not node.get("not_ready")]
        return len(serving) == 3 and all(node["lag"] < 100 for node in serving) and {node["id"]: node["pid"] for node in serving}

    def test_states_are_equal_after_many_restarts_and_nothing_acknowledged_is_lost(self):
        seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        order = random.Random(seed)
        print(f"{RESTARTS} restarts, SEED={seed}", flush=True)
        writers = [threading.Thread(target=self.write, args=(i,), daemon=True) for i in range(WRITERS)]
        for writer in writers:
            writer.start()
        for n in range(1, RESTARTS + 1):
            pids = until(self.settled, 120, "all nodes serve")
            node = order.choice(sorted(pids))
            # As an upgrade does it, or as a crash.
            os.kill(pids[node], order.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)))
            until(lambda: (self.settled() or pids)[node] != pids[node], 120, f"node {node} is back after restart {n}")
            self.assertEqual(self.broken, [])
            if n % COMPARE_EVERY == 0 or n == RESTARTS:
                code, found, text = self.deployment.verb("scrub")
                self.assertEqual(code, 0, f"after {n} restarts: {text}")
                print(f"{n} restarts: {len({row['blake3'] for row in found['nodes']})} hash at revision {found['revision']}", flush=True)
        self.ending.set()
        for writer in writers:
            writer.join(90)
        self.assertEqual(self.broken, [])
        client = Client(self.deployment.info["http"], self.deployment.token("agent-a"))
        found = {row["key"] for row in client.listed("query_facts", "rows", entity="rolling", top_k=1_000)}
        self.assertLessEqual({key for keys in self.acked for key in keys}, found)


if __name__ == "__main__":
    main()
