"""Members come and go under load: no client call fails, no quorum is lost, and no used id comes back."""
import pathlib
import re
import socket
import sys
import threading
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

VOTING = ("leader", "follower")


class Load:
    """A few clients that write and read for as long as the block runs. Each call has to succeed at the first sending."""

    def __init__(self, deployment, clients=3):
        self._ending, self._broken, self.acked = threading.Event(), [], [[] for _ in range(clients)]
        self._entity, self._deployment = f"load-{uuid.uuid4().hex[:10]}", deployment
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(clients)]

    def _run(self, i):
        try:
            client = Client(self._deployment.info["http"], self._deployment.token("agent-a"), timeout=60)
            while not self._ending.is_set():
                key = f"{i}-{len(self.acked[i])}"
                client.ok("store_fact", entity=self._entity, key=key, value=key)
                self.acked[i].append(key)
                rows = client.ok("query_facts", entity=self._entity, key=key)["rows"]
                assert [row["key"] for row in rows] == [key], f"{key} was acknowledged and is read as {rows}"
        except BaseException as error:
            self._broken.append(error)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self._ending.set()
        for thread in self._threads:
            thread.join(90)
        if kind is None:
            self.check()

    def check(self):
        if self._broken:
            raise self._broken[0]

    def more(self, count=30):
        """Waits until so many more writes are acknowledged."""
        before = [len(keys) for keys in self.acked]

        def seen():
            self.check()
            return all(len(keys) >= old + count for keys, old in zip(self.acked, before))
        until(seen, 120, f"{count} more writes of each client")

    def verify(self):
        client = Client(self._deployment.info["http"], self._deployment.token("agent-a"))
        found = {row["key"] for row in client.listed("query_facts", "rows", entity=self._entity, top_k=1_000)}
        lost = {key for keys in self.acked for key in keys} - found
        assert not lost, f"{len(lost)} acknowledged facts are gone, such as {sorted(lost)[:3]}"
        return len(found)


class Membership(unittest.TestCase):
    def setUp(self):
        self.deployment = Deployment()

    def tearDown(self):
        self._log = self.deployment.log()[-3000:]
        self.deployment.stop()

    def run(self, result=None):
        """A case that fails tells what dev said."""
        before = result.failed
        super().run(result)
        if result.failed > before:
            print(getattr(self, "_log", ""), flush=True)

    # -------- words

    def must(self, *words):
        code, found, text = self.deployment.verb(*words)
        self.assertEqual(code, 0, f"quorate {words} failed: {text}")
        return found

    def refused(self, *words):
        code, found, text = self.deployment.verb(*words)
        self.assertNotEqual(code, 0, f"quorate {words} was done: {text}")
        self.assertFalse(found.get("ok", True))
        return found["error"]

    def nodes(self):
        return {node["id"]: node for node in (self.deployment.status() or {"nodes": []})["nodes"]}

    def voters(self):
        return {id for id, node in self.nodes().items() if node["voter"]}

    def await_voters(self, *ids):
        def seen():
            nodes = self.nodes()
            serving = {id for id, node in nodes.items() if node["role"] in VOTING and not node.get("not_ready")}
            return {id for id, node in nodes.items() if node["voter"]} == serving == set(ids)
        until(seen, 60, f"the voters {ids}, all of them serving")

    def follower(self):
        leader, _ = self.deployment.leader()
        return next(id for id in self.voters() if id != leader)

    def start_node(self, id):
        """A node that nobody supervises, on a folder of its own."""
        data = self.deployment.data
        held = [socket.socket() for _ in range(2)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
        grpc, http = (f"127.0.0.1:{probe.getsockname()[1]}" for probe in held)
        for probe in held:
            probe.close()
        text = (data / "node-1.toml").read_text()
        folder = data / f"extra-{uuid.uuid4().hex[:6]}"
        for field, value in [("node_id", id), ("data", f'"{folder}"'), ("grpc", f'"{grpc}"'), ("http", f'"{http}"')]:
            text, changed = re.subn(rf"(?m)^{field} = .*$", f"{field} = {value}", text)
            self.assertEqual(changed, 1, f"{field} in {text}")
        config = folder.with_suffix(".toml")
        config.write_text(text)
        process, log = self.deployment.spawn("node", "--config", config, "--new")

        def serves():
            self.assertIsNone(process.poll(), log.read_text()[-500:])
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(grpc.rpartition(":")[2]))) == 0
        until(serves, 60, f"node {id} listens")
        return grpc

    # -------- cases

    def test_a_wiped_node_is_replaced_under_load_and_no_call_fails(self):
        lost = self.follower()
        with Load(self.deployment) as load:
            load.more()
            self.deployment.wipe(lost)
            until(lambda: f"quorate replace {lost}" in self.deployment.log(), 60, "the way out is told")
            load.more()
            self.assertIn("dry_run", self.must("replace", lost, "--dry-run"))
            replacing = self.deployment.begin("replace", lost)
            until(lambda: 4 in self.nodes(), 60, "the new node shows")
            self.assertIn("another change", self.refused("remove", self.follower()))
            out, err = replacing.communicate(timeout=120)
            self.assertEqual(replacing.returncode, 0, out + err)
            self.await_voters(*({1, 2, 3, 4} - {lost}))
            load.more()
        found = load.verify()
        self.assertNotIn(lost, self.nodes())
        again = self.must("replace", lost)
        self.assertEqual((again["id"], again["changed"]), (4, False))
        # The new one counts: with one of the others down there is a quorum.
        other = next(id for id in self.voters() - {4} if id != self.deployment.leader()[0])
        with self.deployment.unsupervised():
            self.deployment.kill(self.deployment.node_pids()[other])
            with Load(self.deployment) as load:
                load.more()
        self.deployment.restart()
        self.assertEqual(sorted(node["id"] for node in self.deployment.info["nodes"]), sorted({1, 2, 3, 4} - {lost}))
        self.await_voters(*({1, 2, 3, 4} - {lost}))
        print(f"       {found} facts stand", flush=True)

    def test_an_interrupted_replacement_goes_on_where_it_was(self):
        lost = self.deployment.leader()[0]
        with Load(self.deployment, clients=2) as load:
            for moment in (0.4, 1.5, 4):
                replacing = self.deployment.begin("replace", lost)
                time.sleep(moment)  # Where it is cut off does not matter.
                replacing.kill()
                replacing.communicate()
            done = self.must("replace", lost)
            self.assertEqual((done["replaced"], done["id"]), (lost, 4))
            self.await_voters(*({1, 2, 3, 4} - {lost}))
            load.more()
        load.verify()
        until(lambda: not (set(self.nodes()) & {lost, 5}), 30, "the old node is gone, and there is one new one")

    def test_a_fourth_node_comes_votes_and_goes_for_good(self):
        nobody = "127.0.0.1:1"
        self.assertIn("Nothing was changed", self.refused("join", nobody))
        address = self.start_node(4)
        with Load(self.deployment) as load:
            load.more()
            self.assertFalse(self.must("join", address, "--dry-run")["changed"])
            self.assertNotIn(4, self.nodes())
            self.assertEqual(self.must("join", address)["id"], 4)
            self.assertFalse(self.must("join", address)["changed"])
            self.assertEqual(self.nodes()[4]["role"], "learner")
            until(lambda: self.deployment.verb("promote", 4)[0] == 0, 60, "node 4 is promoted")
            self.assertFalse(self.must("promote", 4)["changed"])
            self.await_voters(1, 2, 3, 4)
            load.more()
            # A leader hands over before it goes, and dev stops it.
            self.must("transfer", 1)
            leader = 1
            self.assertTrue(self.must("remove", leader)["changed"])
            self.await_voters(*({1, 2, 3, 4} - {leader}))
            until(lambda: leader not in self.nodes(), 30, "dev stops the removed node")
            load.more()
            if self.deployment.status()["leader"] == 4:
                self.must("transfer", next(iter(self.voters() - {4})))
            self.assertTrue(self.must("remove", 4)["changed"])
            self.assertFalse(self.must("remove", 4)["changed"])
            self.assertNotIn(4, self.voters())
            load.more()
        load.verify()
        self.assertIn("used before", self.refused("join", self.start_node(4)))
        self.assertIn("used before", self.refused("join", self.start_node(leader)))
        self.assertIn("not a member", self.refused("remove", 9))
        self.assertIn("not a member", self.refused("promote", 9))

    def test_a_step_that_leaves_no_live_quorum_is_refused(self):
        leader, _ = self.deployment.leader()
        dead, alive = (id for id in self.voters() if id != leader)
        with self.deployment.unsupervised():
            self.deployment.kill(self.deployment.node_pids()[dead])
            until(lambda: self.deployment.verb("remove", alive, "--dry-run")[0] != 0, 30, "the dead one is missed")
            for words in [("remove", alive), ("remove", alive, "--dry-run"), ("remove", leader)]:
                self.assertIn("no quorum would be left", self.refused(*words))
            self.assertEqual(self.voters(), {1, 2, 3})
            with Load(self.deployment, clients=1) as load:
                load.more(5)
        self.await_voters(1, 2, 3)


if __name__ == "__main__":
    main()
