"""A team that has stored as much as it may is told so; it goes on deleting, renewing and releasing, and others notice nothing."""
import pathlib
import sys
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

HOUR_MS = 3_600_000


class Quotas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def must(self, *words):
        code, found, text = self.deployment.verb(*words)
        self.assertEqual(code, 0, f"quorate {words} failed: {text}")
        return found

    def client(self, tenant, via="mcp"):
        token = self.must("token", "create", "--tenant", tenant, "--passport", "mara")["token"]
        return Client(self.deployment.info["http"], token, via=via)

    def used(self, tenant):
        return next(row for row in self.must("quota", "list")["quotas"] if row["tenant"] == tenant)

    def counted(self, tenant):
        return until(lambda: self.used(tenant)["is_counted"] and self.used(tenant), 30, "all is counted")

    def test_at_its_quota_a_team_grows_no_more_and_all_else_goes_on(self):
        mara, neighbour = self.client("full"), self.client("roomy")
        stored = [mara.ok("store_fact", entity="e", key=f"k{n}", value="v" * 200) for n in range(30)]
        card = mara.ok("punch_in", resource="file://held", holder_passport="mara", ttl_ms=HOUR_MS)
        dry = self.must("quota", "set", "full", "--bytes", "1000000", "--dry-run")
        self.assertEqual((dry["changed"], dry["would_change"]), (False, True))
        self.assertNotIn("full", [row["tenant"] for row in self.must("quota", "list")["quotas"]])
        self.assertTrue(self.must("quota", "set", "full", "--bytes", "1000000")["changed"])
        before = self.counted("full")
        self.assertGreater(before["bytes"], 30 * 200)
        self.assertGreater(before["records"], 30)
        mara.ok("store_fact", entity="e", key="more", value="v" * 5_000)
        self.assertGreaterEqual(self.used("full")["bytes"], before["bytes"] + 5_000)
        parked = mara.ok("artefact_put", content_bytes_base64="QUJD" * 2_000, mime_type="text/plain")
        self.assertGreaterEqual(self.used("full")["bytes"], before["bytes"] + 5_000 + 6_000, "the content of artefacts counts")
        self.assertTrue(parked["artefact_id"])

        limit = self.used("full")["bytes"]
        self.assertTrue(self.must("quota", "set", "full", "--bytes", limit)["changed"])
        self.assertFalse(self.must("quota", "set", "full", "--bytes", limit)["changed"])
        for via in ("mcp", "http"):
            refused = Client(self.deployment.info["http"], mara.token, via=via).call("store_fact", {"entity": "e", "key": "no", "value": "v"})
            self.assertFalse(refused.ok, refused)
            self.assertEqual(refused.error["code"], "OVER_QUOTA")
            data = refused.error["data"]
            self.assertEqual((data["tenant"], data["what"], data["limit"]), ("full", "bytes", limit))
            self.assertGreaterEqual(data["used"], limit)
            self.assertIn(str(limit), refused.text)
        self.assertEqual(refused.status, 507)
        self.assertEqual(mara.call("punch_in", {"resource": "file://new", "holder_passport": "mara"}).error["code"], "OVER_QUOTA")
        renewed = mara.ok("punch_in", resource="file://held", holder_passport="mara", ttl_ms=HOUR_MS)
        self.assertEqual(renewed["fencing_token"], card["fencing_token"])
        mara.ok("punch_out", resource="file://held", holder_passport="mara")
        mara.ok("delete_fact", fact_id=stored[0]["fact_id"])
        self.assertEqual(len(mara.listed("query_facts", "rows", entity="e", top_k=100)), 30)
        neighbour.ok("store_fact", entity="e", key="k", value="v")

        page = urllib.request.urlopen(self.deployment.info["nodes"][0]["http"] + "/metrics", timeout=10).read().decode()
        self.assertIn(f'quorate_tenant_quota_bytes{{tenant="full"}} {limit}', page)
        self.assertIn('quorate_tenant_stored_bytes{tenant="full"} ', page)

        # Every replica counts the same, and a new leader goes on with it.
        self.assertTrue(self.must("scrub")["ok"])
        self.deployment.kill_leader()
        refused = until(lambda: (answer := mara.call("store_fact", {"entity": "e", "key": "no", "value": "v"})).error["code"] == "OVER_QUOTA"
                        and answer, 60, "the quota holds")
        self.assertFalse(refused.ok)
        self.assertTrue(self.must("quota", "clear", "full")["changed"])
        mara.ok("store_fact", entity="e", key="yes", value="v")

    def test_a_number_of_records_is_a_quota_too(self):
        mara = self.client("few")
        mara.ok("store_fact", entity="e", key="k", value="v")
        self.must("quota", "set", "few", "--records", 1)
        self.counted("few")
        refused = mara.call("store_fact", {"entity": "e", "key": "k2", "value": "v"})
        self.assertEqual((refused.error["code"], refused.error["data"]["what"]), ("OVER_QUOTA", "records"))
        code, _, text = self.deployment.verb("quota", "set", "few")
        self.assertEqual(code, 2, text)
        self.assertIn("--records", text)


if __name__ == "__main__":
    main()
