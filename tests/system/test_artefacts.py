"""Artefacts and the blobs under them: on every node, after crashes, around a damaged disk, and in a backup."""
import base64
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

LARGE = os.urandom(600_000)


class Artefacts(unittest.TestCase):
    def setUp(self):
        self.deployment = Deployment()
        self.addCleanup(self.deployment.stop)

    def client(self, who="agent-a", deployment=None):
        deployment = deployment or self.deployment
        client = Client(deployment.url(""), deployment.token(who))
        self.addCleanup(client.close)
        return client

    def put(self, client, content):
        return client.ok("artefact_put", content_bytes_base64=base64.b64encode(content).decode(), mime_type="text/plain")["artefact_id"]

    def get(self, client, artefact):
        """The whole content, part by part."""
        content, offset = b"", 0
        while offset is not None:
            part = client.ok("artefact_get", artefact_id=artefact, offset=offset)
            content += base64.b64decode(part["content_base64"])
            offset = part.get("next_offset")
        return content

    def files(self, artefact):
        """The blob's file of each node, where there is one."""
        name = artefact.removeprefix("art_")
        paths = {node: self.deployment.data / f"node-{node}" / "blobs" / name[:2] / name for node in (1, 2, 3)}
        return {node: path for node, path in paths.items() if path.exists()}

    def everywhere(self, artefact):
        return until(lambda: len(found := self.files(artefact)) == 3 and found, 60, "the blob is on every node")

    def test_what_was_parked_outlives_the_loss_of_every_process_and_of_a_disk(self):
        client = self.client()
        large = self.put(client, LARGE)
        # A quorum has it before the answer.
        self.assertGreaterEqual(len(self.files(large)), 2)
        self.deployment.kill(*self.deployment.node_pids().values())
        self.deployment.node_pids()
        client = self.client()
        self.assertEqual(self.get(client, large), LARGE)
        # Damage is never served, and is healed from the others; a file that is gone comes back.
        for path in self.everywhere(large).values():
            damaged = path
        damaged.write_bytes(b"damaged" + LARGE[7:])
        for _ in range(4):
            self.assertEqual(self.get(client, large), LARGE)
        code, found, said = self.deployment.verb("scrub")
        self.assertIn(code, (0, 1), said)
        until(lambda: damaged.exists() and damaged.read_bytes() == LARGE, 60, "the damaged file is whole again")
        self.everywhere(large)[2].unlink()
        self.everywhere(large)
        # A node that was away while something was parked gets it when it is back.
        follower = next(node for node in (1, 2, 3) if node != self.deployment.leader()[0])
        with self.deployment.unsupervised():
            self.deployment.kill(self.deployment.node_pids()[follower])
            late = self.put(client, b"parked while one was away")
        self.deployment.node_pids()
        self.everywhere(late)
        # And so does a new one.
        self.deployment.wipe(follower)
        code, _, said = self.deployment.verb("replace", follower)
        self.assertEqual(code, 0, said)
        new = until(lambda: next((path for path in self.deployment.data.glob("node-*/blobs") if path.parent.name not in
                                  {f"node-{node}" for node in (1, 2, 3)}), None), 60, "the new node's folder")
        name = large.removeprefix("art_")
        until(lambda: (new / name[:2] / name).exists(), 60, "the blob is on the new node")

    def test_a_backup_holds_the_blobs_and_a_restore_brings_them_back(self):
        client = self.client()
        artefact = self.put(client, LARGE)
        home = tempfile.mkdtemp(prefix="quorate-test-")
        self.addCleanup(shutil.rmtree, home, True)
        backup, data = pathlib.Path(home) / "backup.tar", pathlib.Path(home) / "restored"
        code, _, said = self.deployment.verb("backup", backup)
        self.assertEqual(code, 0, said)
        self.deployment.halt()
        code, _, said = Deployment.verb(_At(data), "restore", backup)
        self.assertEqual(code, 0, said)
        restored = Deployment(data=data)
        self.addCleanup(restored.stop)
        self.assertEqual(self.get(self.client(deployment=restored), artefact), LARGE)
        self.assertEqual(len(list(data.glob("node-*/blobs/*/*"))), 3)

    def test_an_artefact_is_its_owners_alone_and_is_never_cut(self):
        mine, other = self.client(), self.client("agent-b")
        small, large = self.put(mine, b"hello"), self.put(mine, LARGE)
        whole = mine.ok("artefact_get", artefact_id=small)
        self.assertEqual((base64.b64decode(whole["content_base64"]), whole["size_bytes"]), (b"hello", 5))
        self.assertEqual(other.call("artefact_get", {"artefact_id": small}).error["code"], "CAPABILITY_DENIED")
        self.assertEqual(self.client("other-tenant").call("artefact_get", {"artefact_id": small}).error["code"], "NOT_FOUND")
        for arguments in [{}, {"token_budget": 10}]:
            refused = mine.call("artefact_get", {"artefact_id": large, **arguments})
            self.assertEqual(refused.error["code"], -32602)
            self.assertIn("600000", refused.text)
        self.assertEqual(self.put(other, b"hello"), small)
        self.assertEqual([row["artefact_id"] for row in mine.ok("artefact_list")["artefacts"]], [large, small])
        self.assertEqual(other.ok("artefact_list")["envelope"]["memories_used"], [small])


class _At:
    """Where a verb runs that needs no deployment yet."""

    def __init__(self, data):
        self.data = data

    begin = Deployment.begin


if __name__ == "__main__":
    main()
