"""Nodes that nobody supervises: formed into a cluster by hand, backed up by address, and restored on folders that are carried."""
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import executable, until  # noqa: E402
from runner import main  # noqa: E402

KEY = "07" * 32


def addresses(count):
    """Addresses that were free a moment ago, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in held]
    for probe in held:
        probe.close()
    return found


class OwnNodes(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-own-"))
        self.running = []

    def tearDown(self):
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(30)
        self.running = []

    def verb(self, *words):
        done = subprocess.run([str(executable()), *map(str, words), "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, f"quorate {words} failed: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def start(self, folder, id, grpc, http, secret, lineage=0, new=False):
        config = self.home / f"{folder.name}.toml"
        config.write_text(f'node_id = {id}\ncluster_id = "acme"\nlineage = {lineage}\ndata = "{folder}"\ngrpc = "{grpc}"\n'
                          f'http = "{http}"\ncluster_secret = "{secret}"\nreceipt_key = "{KEY}"\n')
        with open(self.home / "nodes.log", "ab") as log:
            words = [str(executable()), "node", "--config", str(config), *(["--new"] if new else [])]
            self.running.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def leader(self, *target):
        def seen():
            done = subprocess.run([str(executable()), "status", *target, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            return json.loads(done.stdout)["leader"] if done.returncode == 0 else None
        return until(seen, 60, "a leader")

    def doctor(self, target):
        """The nodes as the doctor sees them, who has nothing against them but perhaps the machine's disk."""
        done = subprocess.run([str(executable()), "doctor", *target, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        found = json.loads(done.stdout)
        codes = {finding["code"] for finding in found["findings"] if finding["severity"] == "error"}
        self.assertLessEqual(codes, {"disk_full", "disk_low", "fsync_slow"}, done.stdout)
        return found["nodes"]

    def test_nodes_are_formed_backed_up_by_address_and_restored_under_new_addresses(self):
        at = addresses(6)
        for id in (1, 2, 3):
            self.start(self.home / f"old-{id}", id, at[2 * id - 2], at[2 * id - 1], "old", new=True)
        target = ["--nodes", ",".join(at[::2]), "--cluster-secret", "old"]
        voters = [word for id in (1, 2, 3) for word in ("--voter", f"{id}={at[2 * id - 2]},{at[2 * id - 1]}")]

        def formed():
            done = subprocess.run([str(executable()), "init", *voters, *target, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            return done.returncode == 0
        until(formed, 60, "the cluster is formed")
        self.leader(*target)
        made = self.verb("token", "create", "--passport", "ci", "--tenant", "default", *target)
        self.assertEqual(len(self.doctor(target)), 3)
        told = self.verb("backup", self.home / "b.tar", *target)
        self.assertFalse(told["holds_secrets"], "an address knows no deployment's secrets")
        self.stop()

        # Two disks are lost: what is left is one folder of a stopped node, which has all of its log besides.
        (self.home / "key").write_text(KEY)
        kept = self.verb("backup", "--of-stopped", self.home / "old-2", "--receipt-key-file", self.home / "key", self.home / "survivor.tar")
        self.assertGreaterEqual((kept["term"], kept["revision"]), (told["term"], told["revision"]))
        self.assertEqual((kept["cluster_id"], kept["taken_by"], kept["public_key"]), ("acme", 2, told["public_key"]))
        self.assertEqual(sorted(path.name for path in self.home.iterdir() if "survivor" in path.name), ["survivor.tar"])

        # Each folder could go to a machine of its own.
        at = addresses(6)
        voters = [word for id in (1, 2, 3) for word in ("--voter", f"{id}={at[2 * id - 2]},{at[2 * id - 1]}")]
        found = self.verb("restore", self.home / "survivor.tar", "--data", self.home / "restored", "--receipt-key-file", self.home / "key", *voters)
        for id in (1, 2, 3):
            folder = (self.home / "restored" / f"node-{id}").rename(self.home / f"new-{id}")
            self.start(folder, id, at[2 * id - 2], at[2 * id - 1], "new", lineage=found["lineage"])
        target = ["--nodes", ",".join(at[::2]), "--cluster-secret", "new"]
        self.leader(*target)
        nodes = self.doctor(target)
        self.assertEqual({node["lineage"] for node in nodes}, {found["lineage"]})
        self.assertGreater(min(node["applied"] for node in nodes), kept["revision"])
        self.assertTrue(self.verb("scrub", *target)["ok"])
        self.assertTrue(made["token"])


if __name__ == "__main__":
    main()
