"""Forgetting as its users rely on it: out of reach at once, back while the window is open, and then gone from every disk."""
import contextlib
import json
import pathlib
import secrets
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

SECRET = "zebra-4711-crossing"
SCOPE = {"type": "entity_prefix", "value": "scratch:"}


def files_with(folder, *texts):
    """Every file below a folder that holds the bytes of a text: as they are, or as the list of numbers that answers are stored as."""
    needles = [form for text in texts for form in (text.encode(), bytes(part for byte in text.encode() for part in (0x18, byte)))]
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                held = path.read_bytes()
                if any(needle in held for needle in needles):
                    found.append(str(path.relative_to(folder)))
    return sorted(found)


class Forget(unittest.TestCase):
    def setUp(self):
        self.deployment = Deployment()
        self.addCleanup(self.deployment.stop)

    def client(self, who):
        client = Client(self.deployment.url(""), self.deployment.token(who))
        self.addCleanup(client.close)
        return client

    def call(self, client, tool, **arguments):
        answer = client.call(tool, arguments)
        self.assertTrue(answer.ok, answer)
        return answer.data

    def history(self, client, key):
        return self.call(client, "fact_history", entity="scratch:a", key=key)["versions"]

    def segments(self):
        """The files of each node's search index that hold words, by names that are given out once."""
        found = {}
        for node in (1, 2, 3):
            names = {path.name for path in (self.deployment.data / f"node-{node}" / "search").iterdir()}
            found[node] = {name for name in names if len(name.split(".")[0]) == 32}
        return found

    def test_a_purged_value_is_in_no_file_of_any_node(self):
        agent, other = self.client("agent-a"), self.client("agent-b")
        first = self.call(agent, "store_fact", entity="scratch:a", key="k", value=SECRET + "-1")
        self.call(other, "memory_edit", fact_id=first["fact_id"], new_value=SECRET + "-2", reason="it was " + SECRET)
        # Enough for files of every kind: entries and rows that were written, flushed and written over. Files of the state are
        # compressed: of what is random, nothing is left out because it stood somewhere before.
        marks = [secrets.token_urlsafe(24) for _ in range(160)]
        for n, mark in enumerate(marks):
            self.call(agent, "store_fact", entity="scratch:a", key=f"k{n % 20}", value=f"{SECRET}-{n} {mark} " + "x" * 2_000)
        # Both ways of finding it have seen it, so every index has its words.
        self.assertEqual(self.call(agent, "query", tenant_id="local", query=marks[-1])["results"][0]["kind"], "fact")
        self.call(agent, "query_facts", query=marks[-1])
        every = [SECRET, *marks]
        self.call(agent, "store_fact", entity="kept", key="k", value="kept-value-0815")
        # A replica that is away all the while learns of it when it comes back.
        away = next(node for node in self.deployment.node_pids() if node != self.deployment.leader()[0])
        code, found, said = self.deployment.verb("backup", self.deployment.data.parent / "before.tar")
        self.assertEqual(code, 0, said)
        self.assertTrue(files_with(self.deployment.data, SECRET))
        indexed = self.segments()
        self.assertTrue(all(indexed.values()), "every node has an index of it")

        preview = self.call(agent, "memory_forget_dry_run", scope=SCOPE)
        self.assertEqual((preview["count"], preview["dry_run"]), (162, True))
        forgotten = self.call(agent, "memory_forget", scope=SCOPE, reason="it was a trial")
        self.assertEqual(forgotten["facts_affected"], preview["count"])
        self.assertEqual(forgotten["recovery_window_seconds"], 7 * 86_400)
        self.assertEqual({version["value"] for version in self.history(other, "k")}, {""})
        undone = self.call(agent, "memory_forget_undo", forget_receipt_id=forgotten["forget_receipt_id"])
        self.assertEqual((undone["facts_recovered"], undone["active"]), (162, 21))
        self.assertEqual([version["value"] for version in self.history(other, "k")], [SECRET + "-1", SECRET + "-2"])

        forgotten = self.call(agent, "memory_forget", scope=SCOPE, reason="it was a trial, really")
        code, found, said = self.deployment.verb("scrub", "--purge-forgotten", "--dry-run")
        self.assertEqual((code, found["windows_open"]), (0, 1), said)
        with self.deployment.unsupervised():
            self.deployment.kill(self.deployment.node_pids()[away])
            code, found, said = self.deployment.verb("scrub", "--purge-forgotten")
            self.assertEqual(code, 3, said)
            self.assertEqual({node["id"]: node["state"] for node in found["nodes"]},
                             {node: "unreachable" if node == away else "erased" for node in (1, 2, 3)})
            clean = [f"node-{node}" for node in (1, 2, 3) if node != away]
            self.assertEqual({name: files_with(self.deployment.data / name, *every) for name in clean}, {name: [] for name in clean})
            self.assertTrue(files_with(self.deployment.data / f"node-{away}", SECRET), "what is away still has it")
        self.deployment.node_pids()
        folder = self.deployment.data.parent / "statements"
        code, found, said = self.deployment.verb("scrub", "--purge-forgotten", "--statements", folder)
        self.assertEqual((code, found["windows_ended"]), (0, 0), said)
        self.assertEqual(files_with(self.deployment.data, *every), [])
        self.assertTrue(files_with(self.deployment.data, "kept-value-0815"), "what was not forgotten is there")
        # Words are stored in pieces there, which no search of bytes finds; so no file of before may be left.
        self.assertEqual({node: names & indexed[node] for node, names in self.segments().items()}, {1: set(), 2: set(), 3: set()})
        self.assertEqual(self.call(agent, "query", tenant_id="local", query=marks[-1])["results"], [])
        self.assertIn("outside backups", (folder / "erasure-node-1.json").read_text())
        for node in (1, 2, 3):
            done = subprocess.run([executable(), "verify", folder / f"erasure-node-{node}.json", "--json"], capture_output=True, timeout=60)
            report = json.loads(done.stdout)["report"]
            self.assertIn(f"node {node} ", report["shows"])
            self.assertGreaterEqual(report["size"], found["due"])

        # It can't come back, its numbers are not used again, and all replicas are the same.
        late = agent.call("memory_forget_undo", {"forget_receipt_id": forgotten["forget_receipt_id"]})
        self.assertEqual(late.error["code"], "SPENT")
        self.assertEqual(self.call(agent, "store_fact", entity="scratch:a", key="k", value="new")["version"], 3)
        purged = forgotten["forget_receipt_id"].replace("r_forget_", "r_purge_")
        proof = self.call(agent, "receipt_verify", receipt_id=purged)
        self.assertTrue(proof["verified"])
        self.assertEqual(len(set(proof["report"]["body"]["purged_fact_ids"])), 162)
        code, _, said = self.deployment.verb("scrub")
        self.assertEqual(code, 0, said)
        # A restart finds its log as it was rewritten.
        self.deployment.restart()
        client = self.client("agent-a")
        self.assertEqual([version["version"] for version in self.history(client, "k")], [1, 2, 3])
        self.assertEqual(files_with(self.deployment.data, *every), [])


if __name__ == "__main__":
    main()
