"""Disks that fill up and disks that hang: what goes on, what is refused and how, and that it ends by itself.

As root it does so to real file systems of its own, mounted for one node. Where nothing can be mounted, it says so and what it
did instead.
"""
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

MIB = 1 << 20


def get(address, path):
    """Status and body of a page of a node or gateway; 0 while nobody listens."""
    parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError:
            return 0, ""


def ready(address):
    status, body = get(address, "/readyz?verbose")
    try:
        return status, json.loads(body)
    except ValueError:
        return status, {}


def fill(path, leave, at_most=None):
    """Takes the space of a file system, but for `leave` bytes."""
    stat = os.statvfs(path.parent)
    size = at_most or max(0, stat.f_bavail * stat.f_frsize - leave)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, size))


class Disk(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-disk-"))
        self.data, self.mounted, self.deployment = self.home / "data", [], None

    def tearDown(self):
        if self.deployment:
            self.deployment.stop()
        for path in self.mounted:
            subprocess.run(["umount", str(path)], check=False)
        shutil.rmtree(self.home, ignore_errors=True)

    def mount(self, node, *words):
        """A file system for the folder of one node alone; false if that is not possible here."""
        folder = self.data / f"node-{node}"
        folder.mkdir(parents=True)
        done = subprocess.run(["mount", *words, str(folder)], capture_output=True, text=True)
        if done.returncode:
            print(f"cannot mount here ({done.stderr.strip()})", flush=True)
            return False
        self.mounted.append(folder)
        if (folder / "lost+found").exists():
            (folder / "lost+found").rmdir()
        return True

    def start(self, **settings):
        environment = {f"QUORATE_NODE_{name.upper()}": str(value) for name, value in settings.items()}
        self.deployment = Deployment(environment=environment, data=self.data)
        return Client(self.deployment.info["http"], self.deployment.token("agent-a"))

    def http(self, node):
        return next(found["http"] for found in self.deployment.status()["nodes"] if found["id"] == node)

    @staticmethod
    def ready_with(address, reason):
        """What `/readyz` says, once it has this reason."""
        status, told = ready(address)
        return (status, told) if reason in told.get("reasons", []) else None

    def must(self, *words):
        code, found, text = self.deployment.verb(*words)
        self.assertEqual(code, 0, f"quorate {words} failed: {text}")
        return found

    def lead(self, node):
        """Makes a node the leader."""
        until(lambda: self.deployment.verb("transfer", node)[0] == 0 and self.deployment.leader()[0] == node, 60, f"node {node} leads")

    def serves_again(self, node):
        """It has everything, and says it is ready."""
        def seen():
            found = next((found for found in (self.deployment.status() or {"nodes": []})["nodes"] if found["id"] == node), None)
            return found and found["role"] in ("leader", "follower") and not found.get("not_ready") and found["lag"] == 0
        until(seen, 90, f"node {node} is back")
        self.assertTrue(self.must("scrub")["ok"])

    def test_over_quota_what_grows_is_refused_the_rest_goes_on_and_it_clears_itself(self):
        client = self.start(disk_quota_bytes=512 * MIB, disk_low_bytes=128 * MIB, disk_clear_bytes=192 * MIB)
        me = client.name()
        kept = client.ok("store_fact", entity="svc:a", key="k", value="v")
        client.ok("punch_in", resource="file://a", holder_passport=me, ttl_ms=60_000)
        nodes = [found["http"] for found in self.deployment.status()["nodes"]]
        for node in (1, 2, 3):
            fill(self.data / f"node-{node}" / "ballast", 0, at_most=480 * MIB)

        keys = iter(range(1_000_000))

        def store(entity):
            return client.call("store_fact", {"entity": entity, "key": f"k{next(keys)}", "value": "v"})

        def refusal():
            answer = store("svc:b")
            return None if answer.ok else answer
        refused = until(refusal, 60, "a refusal")
        self.assertEqual((refused.error["code"], refused.error["retryable"], refused.error["wrote"]), ("OUT_OF_SPACE", True, "no"), refused)
        over_http = Client(self.deployment.info["http"], self.deployment.token("agent-a"), via="http")
        self.assertEqual(over_http.call("store_fact", {"entity": "svc:b", "key": "http", "value": "v"}).status, 507)
        self.assertEqual(client.call("punch_in", {"resource": "file://b", "holder_passport": me, "ttl_ms": 60_000}).error["code"], "OUT_OF_SPACE")
        client.ok("punch_in", resource="file://a", holder_passport=me, ttl_ms=60_000)
        client.ok("punch_out", resource="file://a", holder_passport=me)
        client.ok("query_facts", entity="svc:a")
        client.ok("delete_fact", fact_id=kept["fact_id"])
        self.must("token", "create", "--passport", "ci", "--tenant", "default")
        for address in nodes:
            self.assertEqual(get(address, "/livez")[0], 200)
            until(lambda: "space_alarm" in ready(address)[1].get("alarms", []), 10, "readyz names the alarm")
            self.assertIn("quorate_space_alarm 1", get(address, "/metrics")[1])
        self.assertEqual(get(self.deployment.info["http"], "/readyz")[0], 200, "a gateway still has something to do")
        code, found, _ = self.deployment.verb("doctor")
        self.assertEqual(code, 1)
        self.assertIn("space_alarm", {finding["code"] for finding in found["findings"]})

        for node in (1, 2, 3):
            (self.data / f"node-{node}" / "ballast").unlink()
        until(lambda: store("svc:c").ok, 60, "writes go on")
        for address in nodes:
            until(lambda: ready(address)[1].get("alarms") == [], 10, "the alarm is over")
        self.assertTrue(self.must("scrub")["ok"])

    def test_one_nodes_full_disk_stops_nobody_and_it_comes_back_by_itself(self):
        mounted = self.mount(2, "-t", "tmpfs", "-o", "size=384m", "quorate-test")
        # Its reserve is a quarter of the first mark.
        client = self.start(**({"disk_low_bytes": 64 * MIB, "disk_clear_bytes": 96 * MIB} if mounted else
                               {"disk_quota_bytes": 512 * MIB, "disk_low_bytes": 128 * MIB, "disk_clear_bytes": 192 * MIB}))
        self.lead(2)
        address, ballast = self.http(2), self.data / "node-2" / "ballast"
        if mounted:
            # Below the reserve.
            fill(ballast, 8 * MIB)
        else:
            print("no file system of its own: node 2 gets a quota, and only hands over", flush=True)
            fill(ballast, 0, at_most=480 * MIB)
        until(lambda: self.deployment.leader()[0] != 2, 60, "another leads")
        for i in range(30):
            client.ok("store_fact", entity="svc:a", key=f"k{i}", value="v" * 1_000)
        self.assertEqual(get(address, "/livez")[0], 200)
        if mounted:
            status, told = until(lambda: self.ready_with(address, "disk_full"), 30, "its word")
            self.assertEqual((status, told["ready"]), (503, False))

            # Killed, and without a byte left, it waits for room in one process, and does not run in circles.
            with self.deployment.unsupervised():
                self.deployment.kill(next(found["pid"] for found in self.deployment.status()["nodes"] if found["id"] == 2))
                fill(self.data / "node-2" / "more", 0)
            told = until(lambda: self.ready_with(address, "disk_full"), 60, "it waits")[1]
            self.assertEqual(told["role"], "starting")
            self.assertEqual(get(address, "/livez")[0], 200)
            for i in range(30):
                client.ok("store_fact", entity="svc:b", key=f"k{i}", value="v" * 1_000)
            self.assertEqual(self.deployment.log().count("the disk is full: this node starts once there is room"), 1)
            (self.data / "node-2" / "more").unlink()
        ballast.unlink()
        self.serves_again(2)

    def test_a_leader_whose_disk_hangs_is_followed_within_two_election_timeouts(self):
        image = self.home / "disk"
        with open(image, "wb") as file:
            file.truncate(512 * MIB)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)], capture_output=True)
        if made.returncode or not shutil.which("fsfreeze") or not self.mount(1, "-o", "loop", str(image)):
            print("no disk to freeze: the process is stopped instead, which stops more than its disk", flush=True)
            shutil.rmtree(self.data, ignore_errors=True)
        # An election takes twice the upper mark at the most.
        client = self.start(election_timeout_min_ms=2_000, election_timeout_max_ms=3_000)
        client.ok("store_fact", entity="svc:a", key="before", value="v")
        # A file that the node keeps beside its databases, when it starts, hangs already: that must not hide what follows.
        hanging = self.data / "node-1" / "members.tmp"
        os.mkfifo(hanging)
        self.deployment.kill(self.deployment.node_pids()[1])
        self.serves_again(1)
        self.lead(1)
        pid, address = self.deployment.leader()[1], self.http(1)
        freeze = (["fsfreeze", "--freeze"], ["fsfreeze", "--unfreeze"]) if self.mounted else (["kill", "-STOP"], ["kill", "-CONT"])
        what = str(self.mounted[0]) if self.mounted else str(pid)
        # Whatever a new leader has to write was written: a leader at rest is the harder case.
        self.assertTrue(self.must("scrub")["ok"])
        subprocess.run([*freeze[0], what], check=True)
        try:
            # An idle disk shows nothing: only what has to be written can hang. The write itself is answered all the same, by
            # whoever leads then.
            begin = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                meanwhile = pool.submit(client.ok, "store_fact", entity="svc:a", key="meanwhile", value="v")
                until(lambda: self.deployment.leader()[0] != 1, 60, "another leads")
                took = time.monotonic() - begin
                print(f"another node led {took:.1f} s after the first write on a frozen disk", flush=True)
                self.assertLess(took, 2 * 6)
                meanwhile.result(60)
            for i in range(20):
                client.ok("store_fact", entity="svc:a", key=f"during-{i}", value="v")
            if self.mounted:
                self.assertEqual(get(address, "/livez")[0], 200)
                self.assertIn("disk_stalled", ready(address)[1]["reasons"])
        finally:
            subprocess.run([*freeze[1], what], check=True)
            reader = os.open(hanging, os.O_RDONLY | os.O_NONBLOCK)
            hanging.unlink()
        self.serves_again(1)
        until((hanging.parent / "members").exists, 30, "the members are kept")
        os.close(reader)
        rows = client.listed("query_facts", "rows", entity="svc:a", top_k=100)
        self.assertEqual({row["key"] for row in rows}, {"before", "meanwhile", *(f"during-{i}" for i in range(20))})


if __name__ == "__main__":
    main()
