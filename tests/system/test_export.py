"""A tenant leaves one cluster as a file and comes into another one: all that tools show, and receipts that verify."""
import hashlib
import json
import pathlib
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
import threading
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

HOUR_MS = 3_600_000
TEAM = "team-x"
PEOPLE = ("mara", "jon")


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-export-"))
        cls.there, cls.here = Deployment(), Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.there.stop()
        cls.here.stop()
        shutil.rmtree(cls.home, ignore_errors=True)

    def must(self, deployment, *words):
        code, found, text = deployment.verb(*words)
        self.assertEqual(code, 0, f"quorate {words} failed: {text}")
        return found

    def client(self, deployment, who, tenant, via="mcp"):
        token = self.must(deployment, "token", "create", "--tenant", tenant, "--passport", who, "--tier", "verified")["token"]
        return Client(deployment.info["http"], token, via=via)

    def refused(self, deployment, *words):
        code, _, text = deployment.verb(*words)
        self.assertEqual(code, 1, text)
        return text


def work_of_a_day(mara, jon):
    """Something of most kinds; answers what only its makers know."""
    first = mara.ok("store_fact", entity="svc:api", key="owner", value="platform")
    mara.ok("store_fact", entity="svc:api", key="owner", value="payments")
    for n in range(40):
        jon.ok("store_fact", entity=f"svc:{n % 4}", key=f"k{n}", value=f"value {n} of a long day")
    mara.ok("store_fact", entity="note", key="mine", value="for mara alone", private=True)
    mara.ok("save_session", session_id="day", state={"step": 3})
    returned = mara.ok("punch_in", resource="file://src/returned.rs", holder_passport=mara.name(), ttl_ms=HOUR_MS)
    mara.ok("punch_out", resource="file://src/returned.rs", holder_passport=mara.name())
    held = mara.ok("punch_in", resource="file://src/held.rs", holder_passport=mara.name(), ttl_ms=HOUR_MS)
    asked = jon.ok("approval_request", action_summary="deploy it", risk_tier="low", scope="deploy", token_budget=0)
    parked = mara.ok("artefact_put", content_bytes_base64="aGVsbG8gcXVvcmF0ZQ==", mime_type="text/plain")
    return {"first": first, "returned": returned, "held": held, "asked": asked, "parked": parked}


def shown(client, made):
    """What tools show of the team, to be compared. Tokens and revisions of now are not in it."""
    facts = client.listed("query_facts", "rows", top_k=500)
    return {
        "facts": sorted((row["entity"], row["key"], row["value"], row["fact_id"]) for row in facts),
        "history": client.ok("fact_history", entity="svc:api", key="owner")["versions"],
        "session": {k: v for k, v in client.ok("get_session", session_id="day").items() if k in ("state", "updated_at", "actor")},
        "approvals": [(a["request_id"], a["action_summary"], a["status"]) for a in approvals(client)],
        "artefact": client.ok("artefact_get", artefact_id=made["parked"]["artefact_id"]),
        "entities": client.ok("list_entities")["entities"],
        "receipts": [proof_of(client, made[name]["receipt_acquire"]) for name in ("returned", "held")],
    }


def approvals(client):
    return client.send("GET", "/v1/approvals?status=all", headers=client.headers()).json["approvals"]


def proof_of(client, receipt):
    """What a receipt says, and its place in the team's log; the signature is each cluster's own."""
    told = client.ok("receipt_verify", receipt_id=receipt)
    assert told["verified"], told
    return {name: value for name, value in told["report"].items()
            if name in ("body_hash", "seq", "link_hash", "previous_link_hash", "made_at", "revision", "body_hex")}


class Export(Case):
    def test_a_team_is_in_another_cluster_what_it_was_under_load_and_a_second_import_changes_nothing(self):
        mara, jon = (self.client(self.there, who, TEAM) for who in PEOPLE)
        made = work_of_a_day(mara, jon)
        before = shown(mara, made)
        saved = mara.ok("receipt_verify", receipt_id=made["returned"]["receipt_acquire"])
        self.assertTrue(saved["verified"])

        # Exported while another passport writes on; what was acknowledged before is in it.
        ending, acked, broken = threading.Event(), [], []

        def write():
            client = Client(self.there.info["http"], jon.token)
            try:
                while not ending.is_set():
                    key = uuid.uuid4().hex
                    client.ok("store_fact", entity="load", key=key, value="v", idempotency_key=key)
                    acked.append(key)
            except BaseException as error:
                broken.append(error)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        until(lambda: broken or len(acked) >= 30, 60, "writes under way")
        sure = list(acked)
        file = self.home / "team.tar"
        told = self.must(self.there, "export", TEAM, "--output", file)
        ending.set()
        writer.join(60)
        self.assertFalse(broken, broken)

        self.assertTrue(told["verified"])
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        with tarfile.open(file) as tar:
            names, manifest = tar.getnames(), json.load(tar.extractfile("manifest.json"))
            rows = [row for line in tar.extractfile("rows.jsonl") for row in json.loads(line)]
        blob = made["parked"]["artefact_id"].rsplit(":", 1)[-1]
        self.assertEqual(names, ["manifest.json", "manifest.sig", "rows.jsonl", *(f"blobs/{file['blake3']}" for file in manifest["files"][1:])])
        self.assertEqual((len(manifest["files"]), len(rows)), (2, told["rows"]), blob)
        left = {row["what"]: row["rows"] for row in told["left_out"]}
        self.assertGreater(left["leases that are held"], 0)
        self.assertGreater(left["bearer tokens"], 0)
        self.assertGreater(left["remembered answers"], 0)
        self.assertEqual(told["left_out"], manifest["left_out"])
        self.assertIn("is there already", self.there.verb("export", TEAM, "--output", file)[2])
        self.assertIn("there is no tenant", self.refused(self.there, "export", "nobody-of-that-name", "--output", self.home / "none.tar"))
        self.assertFalse((self.home / "none.tar").exists())

        # Checked by itself, and a byte that was changed is named.
        self.assertEqual(self.must(self.there, "export", "--verify", file)["id"], told["id"])
        flipped = bytearray(file.read_bytes())
        flipped[len(flipped) // 2] ^= 1
        (self.home / "flipped.tar").write_bytes(flipped)
        self.assertIn("damaged", self.refused(self.here, "import", self.home / "flipped.tar"))
        self.assertIn("signed by key", self.refused(self.here, "import", file, "--public-key", hashlib.sha256(b"another").hexdigest()))

        dry = self.must(self.here, "import", file, "--dry-run")
        self.assertEqual((dry["changed"], dry["dry_run"], dry["next_batch"]), (False, True, 0))
        taken = self.must(self.here, "import", file, "--public-key", told["public_key"])
        self.assertEqual((taken["changed"], taken["rows"], taken["next_batch"]), (True, told["rows"], told["batches"]))
        again = self.must(self.here, "import", file)
        self.assertEqual((again["changed"], again["next_batch"]), (False, told["batches"]))
        self.assertFalse(self.must(self.here, "import", file, "--dry-run")["changed"])

        # Not over a team that is there: neither here from another file, nor where it came from.
        other = self.home / "other.tar"
        self.must(self.there, "export", TEAM, "--output", other)
        self.assertIn("is here already", self.refused(self.here, "import", other))
        self.assertIn("is here already", self.refused(self.there, "import", file))
        self.assertIn("is here already", self.refused(self.there, "import", file, "--dry-run"))

        # The tokens of there open nothing here; new ones do, with the passports that came along.
        self.assertEqual(Client(self.here.info["http"], mara.token, via="http").call("list_entities", {}).status, 401)
        new_mara, new_jon = (self.client(self.here, who, TEAM) for who in PEOPLE)
        after = shown(new_mara, made)
        loaded = {row[1] for row in after["facts"] if row[0] == "load"}
        self.assertEqual(set(sure) - loaded, set(), "acknowledged before the export, and not in it")
        for part, value in before.items():
            found = after[part]
            if part == "facts":
                found = [row for row in found if row[0] != "load"]
            if part == "entities":
                found = [row for row in found if (row["entity"] if isinstance(row, dict) else row) != "load"]
            self.assertEqual(found, value, part)

        # Receipts verify, and the chain goes on.
        for receipt in (made["returned"]["receipt_acquire"], made["held"]["receipt_acquire"]):
            self.assertTrue(new_mara.ok("receipt_verify", receipt_id=receipt)["verified"], receipt)

        # What was held is free, and its token is good for nothing and comes never again.
        late = new_mara.call("store_fact", {"entity": "e", "key": "k", "value": "v", "fencing_token": made["held"]["fencing_token"]})
        self.assertFalse(late.ok, late)
        self.assertIn("fencing token", late.text)
        fresh = new_jon.ok("punch_in", resource="file://src/held.rs", holder_passport=new_jon.name(), ttl_ms=HOUR_MS)
        self.assertGreater(fresh["fencing_token"], made["held"]["fencing_token"] + 1_000_000)
        new_jon.ok("store_fact", entity="e", key="k", value="v", fencing_token=fresh["fencing_token"])
        self.assertTrue(new_jon.ok("receipt_verify", receipt_id=fresh["receipt_acquire"])["verified"])
        self.assertTrue(self.must(self.here, "scrub")["ok"], "every replica took the same in")

        # A word is found: the index followed.
        found = new_mara.call("query", {"tenant_id": TEAM, "query": "long day"})
        self.assertTrue(found.ok and "long day" in found.text, found)

    def test_an_import_that_is_killed_goes_on_with_the_same_file_through_a_change_of_the_leader(self):
        tenant = "team-" + uuid.uuid4().hex[:8]
        mara = self.client(self.there, "mara", tenant)
        for n in range(1_500):
            mara.ok("store_fact", entity=f"e{n % 50}", key=f"k{n}", value="x" * 600)
        file = self.home / f"{tenant}.tar"
        told = self.must(self.there, "export", tenant, "--output", file)
        self.assertGreater(told["batches"], 6)

        running = self.here.begin("import", file)
        part = lambda: self.here.verb("import", file, "--dry-run")[1].get("next_batch", 0)  # noqa: E731
        until(lambda: running.poll() is not None or part() >= 1, 60, "a first batch", pause=0)
        running.send_signal(signal.SIGKILL)
        running.wait(30)
        self.here.kill_leader()
        taken = self.must(self.here, "import", file)
        self.assertEqual((taken["next_batch"], taken["rows"]), (told["batches"], told["rows"]))
        new = self.client(self.here, "mara", tenant)
        rows = new.listed("query_facts", "rows", top_k=1_000, entity="e7")
        self.assertEqual({row["key"] for row in rows}, {f"k{n}" for n in range(1_500) if n % 50 == 7})


if __name__ == "__main__":
    main()
