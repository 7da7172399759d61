"""Backups are taken while everybody works, restored with nothing lost, and leave the old cluster no way in."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

HOUR_MS = 3_600_000
OF_THE_MACHINE = ("disk_full", "disk_low", "fsync_slow")


def quorate(*words, env=None):
    """A verb without a deployment: exit code, its JSON, all it printed."""
    done = subprocess.run([str(executable()), *map(str, words), "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300, env={**os.environ, **(env or {})})
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {}
    return done.returncode, found, (done.stdout + done.stderr).strip()


class Writers:
    """Clients that store facts for as long as the block runs, and remember what was acknowledged when."""

    def __init__(self, deployment, count=3):
        self.entity, self.acked, self.broken = f"load-{uuid.uuid4().hex[:10]}", [], []
        self._ending, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(deployment, i), daemon=True) for i in range(count)]

    def _run(self, deployment, i):
        try:
            client, n = Client(deployment.info["http"], deployment.token("agent-a")), 0
            while not self._ending.is_set():
                client.ok("store_fact", entity=self.entity, key=f"{i}-{n}", value="v", idempotency_key=uuid.uuid4().hex)
                with self._lock:
                    self.acked.append(f"{i}-{n}")
                n += 1
        except BaseException as error:
            self.broken.append(error)

    def snapshot(self):
        with self._lock:
            return list(self.acked)

    def more(self, count=40):
        before = len(self.snapshot())
        until(lambda: self.broken or len(self.snapshot()) >= before + count, 120, f"{count} more writes")
        if self.broken:
            raise self.broken[0]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self._ending.set()
        for thread in self._threads:
            thread.join(90)
        if kind is None and self.broken:
            raise self.broken[0]


class Case(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-backup-"))
        self.deployments = []
        self.deployment = self.run_dev()
        self.a, self.b = self.client("agent-a"), self.client("agent-b")

    def tearDown(self):
        for deployment in self.deployments:
            deployment.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def run_dev(self, data=None):
        deployment = Deployment(data=data)
        self.deployments.append(deployment)
        return deployment

    def client(self, who, deployment=None):
        deployment = deployment or self.deployment
        return Client(deployment.info["http"], deployment.token(who))

    def must(self, *words, of=None):
        code, found, text = (of or self.deployment).verb(*words)
        self.assertEqual(code, 0, f"quorate {words} failed: {text}")
        return found

    def restore(self, file, name="restored", *words):
        code, found, text = quorate("restore", file, "--data", self.home / name, *words)
        self.assertEqual(code, 0, f"restore failed: {text}")
        return found, self.home / name

    def punch(self, client, resource, **options):
        return client.ok("punch_in", resource=resource, holder_passport=client.name(), ttl_ms=HOUR_MS, **options)


class Backup(Case):
    def test_a_backup_under_write_load_holds_everything_acknowledged_before_it_and_restores_twice(self):
        session = uuid.uuid4().hex
        self.a.ok("save_session", session_id=session, state={"step": 3})
        card = self.punch(self.a, "file://src/lib.rs")
        leader, _ = self.deployment.leader()
        with Writers(self.deployment) as writers:
            writers.more()
            before = writers.snapshot()
            told = self.must("backup", self.home / "b.tar")
            writers.more()
        self.assertNotEqual(told["taken_by"], leader, "a follower takes it")
        self.assertTrue(told["verified"] and told["holds_secrets"])
        self.assertEqual(stat.S_IMODE((self.home / "b.tar").stat().st_mode), 0o600)
        with tarfile.open(self.home / "b.tar") as tar:
            names = tar.getnames()
            manifest = json.load(tar.extractfile("manifest.json"))
        self.assertEqual(names[:3], ["manifest.json", "manifest.sig", "deployment.json"])
        self.assertEqual({file["name"] for file in manifest["files"]}, set(names[2:]))
        self.assertEqual(list(self.home.iterdir()), [self.home / "b.tar"], "nothing else is left")
        code, _, text = self.deployment.verb("backup", self.home / "b.tar")
        self.assertNotEqual(code, 0, text)
        self.assertIn("is there already", text)

        late = self.punch(self.b, "file://after/the/backup.rs")
        self.assertGreater(late["fencing_token"], told["revision"])
        self.deployment.halt()

        # Twice is once; another folder that holds anything is left alone.
        code, found, text = quorate("restore", self.home / "b.tar", "--data", self.home / "dry", "--dry-run")
        self.assertEqual((code, found["changed"], (self.home / "dry").exists()), (0, False, False), text)
        found, data = self.restore(self.home / "b.tar")
        self.assertTrue(found["changed"])
        self.assertGreater(found["first_revision"], late["fencing_token"])
        again, _ = self.restore(self.home / "b.tar")
        self.assertEqual((again["changed"], again["lineage"]), (False, found["lineage"]))
        (self.home / "full").mkdir()
        (self.home / "full" / "mine").write_text("x")
        code, _, text = quorate("restore", self.home / "b.tar", "--data", self.home / "full")
        self.assertNotEqual(code, 0)
        self.assertIn("holds something already", text)
        self.assertEqual([path.name for path in (self.home / "full").iterdir()], ["mine"])

        new = self.run_dev(data)
        a, b = self.client("agent-a", new), self.client("agent-b", new)
        self.assertEqual(self.deployment.info["tokens"], new.info["tokens"], "bearer tokens are as they were")
        self.assertEqual(a.ok("get_session", session_id=session)["state"], {"step": 3})
        kept = {row["key"] for row in a.listed("query_facts", "rows", entity=writers.entity, top_k=1_000)}
        self.assertEqual(set(before) - kept, set(), "acknowledged before the backup, and not in it")
        self.assertTrue(a.ok("receipt_verify", receipt_id=card["receipt_acquire"])["verified"])

        # Tokens of before and of after the backup are refused; the card is still hers, under a new one.
        for who, token in (a, card["fencing_token"]), (b, late["fencing_token"]):
            answer = who.call("store_fact", {"entity": "e", "key": "k", "value": "late", "fencing_token": token})
            self.assertFalse(answer.ok, f"token {token} of the old lineage is taken: {answer}")
            self.assertIn("fencing token", answer.text)
        self.assertFalse(b.call("punch_in", {"resource": "file://src/lib.rs", "holder_passport": b.name()}).ok)
        renewed = self.punch(a, "file://src/lib.rs")
        self.assertEqual(renewed["id"], card["id"])
        self.assertGreater(renewed["fencing_token"], late["fencing_token"])
        a.ok("store_fact", entity="e", key="k", value="in time", fencing_token=renewed["fencing_token"])
        fresh = self.punch(b, "file://after/the/backup.rs")
        self.assertGreater(fresh["fencing_token"], late["fencing_token"])
        self.assertTrue(a.ok("receipt_verify", receipt_id=fresh["receipt_acquire"])["verified"], "the chain goes on")
        self.assertTrue(self.must("scrub", of=new)["ok"])

    def test_nodes_of_the_old_lineage_are_no_part_of_the_new_cluster(self):
        told = self.must("backup", self.home / "b.tar")
        found, data = self.restore(self.home / "b.tar")
        self.assertNotEqual(found["lineage"], told["lineage"])
        new = self.run_dev(data)
        old_secret = json.loads((self.deployment.data / "deployment.json").read_text())["cluster_secret"]
        # A gateway, or an operator, of the old cluster that knows the new addresses.
        code, _, text = quorate("status", "--nodes", new.info["nodes"][0]["grpc"], "--cluster-secret", old_secret)
        self.assertNotEqual(code, 0, text)
        # An old folder that is started as a node of the new cluster.
        new.halt()
        shutil.rmtree(data / "node-3")
        shutil.copytree(self.deployment.data / "node-2", data / "node-3")
        done = subprocess.run([str(executable()), "node", "--config", str(data / "node-3.toml"), "--node-id", "2"],
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("belongs to lineage", done.stderr)
        # The old cluster never noticed.
        self.a.ok("store_fact", entity="old", key="k", value="v")

    def test_a_flipped_byte_is_found_and_its_file_named(self):
        self.a.ok("store_fact", entity="e", key="k", value="v")
        self.must("backup", self.home / "b.tar")
        whole = (self.home / "b.tar").read_bytes()
        with tarfile.open(self.home / "b.tar") as tar:
            members = {member.name: (member.offset, member.offset_data, member.size) for member in tar}
        table = next(name for name, (_, _, size) in members.items() if name.endswith(".sst") and size)
        spots = {name: members[name][1] + members[name][2] // 2 for name in ("manifest.json", "manifest.sig", "deployment.json", table)}
        spots[f"{table}, its header"] = members[table][0] + 3
        for name, spot in spots.items():
            damaged = bytearray(whole)
            damaged[spot] ^= 0x01
            (self.home / "bad.tar").write_bytes(damaged)
            for words in ("restore", self.home / "bad.tar", "--data", self.home / "never"), ("backup", "--verify", self.home / "bad.tar"):
                code, found, text = quorate(*words)
                self.assertEqual(code, 1, f"{name}: {text}")
                self.assertFalse(found["ok"])
                # A manifest that is not what was signed shows at its signature.
                wanted = ("manifest.json", "manifest.sig") if name.startswith("manifest") else (name.split(",")[0],)
                self.assertTrue(any(f"`{word}`" in found["error"] for word in wanted), f"{name}: {found['error']}")
        (self.home / "bad.tar").write_bytes(whole[:len(whole) // 2])
        code, _, text = quorate("restore", self.home / "bad.tar", "--data", self.home / "never")
        self.assertEqual(code, 1, text)
        self.assertFalse((self.home / "never").exists(), "nothing was made of a damaged backup")
        self.assertEqual([path.name for path in self.home.iterdir() if path.name.startswith(".")], [])
        code, found, text = quorate("backup", "--verify", self.home / "b.tar")
        self.assertEqual(code, 0, text)
        code, _, text = quorate("backup", "--verify", self.home / "b.tar", "--public-key", "00" * 32)
        self.assertEqual(code, 1, text)
        self.assertIn("signed by", text)

    def test_a_backup_goes_on_to_another_node_when_the_leader_dies_and_without_a_quorum_says_what_to_do(self):
        self.a.ok("store_fact", entity="e", key="k", value="v")
        with self.deployment.unsupervised():
            pids = self.deployment.node_pids()
            leader, pid = self.deployment.leader()
            self.deployment.kill(pid)
            told = self.must("backup", self.home / "b.tar")
            self.assertNotEqual(told["taken_by"], leader)
            follower = next(id for id in pids if id not in (leader, told["taken_by"]))
            self.deployment.kill(pids[follower])
            code, found, text = self.deployment.verb("backup", self.home / "c.tar")
            self.assertEqual(code, 3, text)
            self.assertIn("--stale", found["error"])
            self.assertFalse((self.home / "c.tar").exists())
            self.assertGreaterEqual(self.must("backup", "--stale", self.home / "c.tar")["revision"], told["revision"])
        self.restore(self.home / "c.tar")

    def test_a_backup_without_secrets_needs_the_receipt_key_and_holds_no_token(self):
        card = self.punch(self.a, "file://a")
        told = self.must("backup", self.home / "b.tar", "--without-secrets")
        self.assertFalse(told["holds_secrets"])
        kept = json.loads((self.deployment.data / "deployment.json").read_text())
        raw = (self.home / "b.tar").read_bytes()
        for secret in (kept["receipt_key"], kept["cluster_secret"], kept["session_key"], kept["tokens"][0]["token"]):
            self.assertNotIn(secret.encode(), raw)
        code, _, text = quorate("restore", self.home / "b.tar", "--data", self.home / "restored")
        self.assertEqual(code, 2, text)
        self.assertIn("--receipt-key-file", text)
        (self.home / "wrong").write_text("07" * 32)
        code, _, text = quorate("restore", self.home / "b.tar", "--data", self.home / "restored", "--receipt-key-file", self.home / "wrong")
        self.assertEqual(code, 1, text)
        (self.home / "key").write_text(kept["receipt_key"])
        _, data = self.restore(self.home / "b.tar", "restored", "--receipt-key-file", self.home / "key", "--nodes", 1)
        new = self.run_dev(data)
        self.assertEqual((new.info["tokens"], len(new.info["nodes"])), ({}, 1))
        old_token = Client(new.info["http"], kept["tokens"][0]["token"])
        self.assertTrue(old_token.ok("receipt_verify", receipt_id=card["receipt_acquire"])["verified"], "tokens and receipts stay good")


class Operations(Case):
    def test_a_doctor_finds_nothing_in_a_healthy_cluster_and_names_what_is_wrong(self):
        code, found, text = self.deployment.verb("doctor")
        errors = [finding for finding in found["findings"] if finding["severity"] == "error"]
        self.assertEqual((code, len(found["nodes"])), (1 if errors else 0, 3), text)
        # The disk that the test runs on may be as it likes.
        self.assertEqual([finding for finding in errors if finding["code"] not in OF_THE_MACHINE], [])
        for node in found["nodes"]:
            self.assertTrue(node["reachable"] and node["disk_total_bytes"] > 0 and node["lineage"] == 0, node)
        os.chmod(self.deployment.data / "deployment.json", 0o644)
        victim = next(id for id in self.deployment.node_pids() if id != self.deployment.leader()[0])
        self.deployment.wipe(victim)
        code, found, text = self.deployment.verb("doctor")
        self.assertEqual((code, found["ok"]), (1, False), text)
        codes = {(finding["code"], finding.get("node")) for finding in found["findings"]}
        self.assertLessEqual({("secrets_readable", None), ("disk_lost", victim), ("node_unreachable", victim)}, codes)
        self.assertTrue(all(finding["advice"] for finding in found["findings"]))

    def test_a_scrub_under_load_agrees_and_names_a_node_whose_disk_is_damaged(self):
        with Writers(self.deployment) as writers:
            writers.more()
            found = self.must("scrub")
            self.assertEqual([node["state"] for node in found["nodes"]], ["same"] * 3)
            self.assertEqual(len({node["blake3"] for node in found["nodes"]}), 1)
        # One bit of the change events of a node that is down, which nothing reads at a start; what it wrote is on disk, since it
        # stopped in good order.
        self.deployment.halt()
        damaged = 0
        for table in (self.deployment.data / "node-2" / "state").rglob("*.sst"):
            content = bytearray(table.read_bytes())
            spot = content.find(b"fact.stored")
            if spot >= 0:
                content[spot] ^= 0x01
                table.write_bytes(content)
                damaged += 1
        self.assertTrue(damaged)
        self.deployment.go_on()
        words = []

        def scrubbed():
            code, found, text = self.deployment.verb("scrub")
            states = {node["id"]: node["state"] for node in found["nodes"]}
            self.assertEqual((states[1], states[3]), ("same", "same"), text)
            self.assertEqual((code == 0, found["ok"]), (states[2] == "same",) * 2, text)
            words.append(states[2])
            return states[2] == "same" and "the state was rebuilt from another member's" in self.deployment.log()
        until(scrubbed, 120, "the node has rebuilt its state")
        # Whoever reads it first: the scrub, or the node itself, which then serves nothing until it is whole.
        self.assertLessEqual(set(words), {"unreadable", "unreachable", "same"})
        self.assertIn("goes into quarantine", self.deployment.log())

    def test_a_scrub_ends_and_names_a_node_that_hangs(self):
        leader, _ = self.deployment.leader()
        node, pid = next((node, pid) for node, pid in self.deployment.node_pids().items() if node != leader)
        os.kill(pid, signal.SIGSTOP)
        try:
            code, found, text = self.deployment.verb("scrub")
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(code, 3, text)
        self.assertEqual([hung["id"] for hung in found["nodes"] if hung["state"] == "unreachable"], [node], text)

    def test_a_new_cluster_is_forced_from_the_one_survivor_and_only_with_the_words(self):
        self.a.ok("store_fact", entity="e", key="k", value="kept")
        card = self.punch(self.a, "file://a")
        code, _, text = self.deployment.verb("force-new-cluster", "--dry-run")
        self.assertNotEqual(code, 0, "dev runs")
        self.deployment.halt()
        words = "lose what only the lost nodes had"
        code, _, text = self.deployment.verb("force-new-cluster", "--force", words)
        self.assertEqual(code, 1, text)
        self.assertIn("a majority", text)
        for lost in (1, 3):
            shutil.rmtree(self.deployment.data / f"node-{lost}")
        before = digest(self.deployment.data / "node-2")
        dry = self.must("force-new-cluster", "--dry-run")
        self.assertEqual((dry["survivor"], dry["changed"]), (2, False))
        code, _, text = self.deployment.verb("force-new-cluster", "--force", "yes")
        self.assertEqual(code, 1, text)
        self.assertIn(words, text)
        made = self.must("force-new-cluster", "--force", words)
        self.assertEqual([node["id"] for node in made["nodes"]], [4, 5, 6])
        self.assertEqual(digest(self.deployment.data / "node-2"), before, "the survivor's folder is as it was")
        self.deployment.go_on()
        self.a, self.b = self.client("agent-a"), self.client("agent-b")
        rows = self.a.ok("query_facts", entity="e", key="k")["rows"]
        self.assertEqual([row["value"] for row in rows], ["kept"])
        answer = self.a.call("store_fact", {"entity": "e", "key": "k2", "value": "late", "fencing_token": card["fencing_token"]})
        self.assertFalse(answer.ok, "a token of the old lineage is taken")
        self.assertGreater(self.punch(self.a, "file://a")["fencing_token"], made["first_revision"])
        self.assertTrue(self.must("scrub")["ok"])


def digest(folder):
    """Names and contents of a folder's files; the lock is taken by whoever looks."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "LOCK"}


if __name__ == "__main__":
    main()
