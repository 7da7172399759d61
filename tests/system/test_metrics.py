"""What operators watch: every metric is documented, and moves with what it counts."""
import pathlib
import re
import sys
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import ROOT, Deployment  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def page(self, base):
        """Every sample of a page by its name and labels, and the names of the metrics."""
        text = urllib.request.urlopen(base + "/metrics", timeout=10).read().decode()
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples.items()}, set(re.findall(r"^# TYPE (\S+)", text, re.M))

    def total(self, name):
        return sum(self.page(node["http"])[0][name] for node in self.deployment.info["nodes"])

    def test_every_metric_is_documented(self):
        documented = (ROOT / "docs" / "metrics.md").read_text()
        for base in (self.deployment.info["http"], self.deployment.info["nodes"][0]["http"]):
            for name in self.page(base)[1]:
                self.assertRegex(documented, rf"`{name}[`{{]", name)

    def test_counters_move_with_what_they_count(self):
        client = Client(self.deployment.info["http"], self.deployment.token("agent-a"))
        names = ["quorate_propose_decide_seconds_count", "quorate_propose_queue_seconds_count", "quorate_requests_replayed_total", "quorate_reads_total"]
        before = {name: self.total(name) for name in names}
        entity = f"svc-{uuid.uuid4().hex[:8]}"
        for number in range(10):
            client.ok("store_fact", entity=entity, key=f"k{number}", value="v", idempotency_key=f"{entity}-{number}")
        client.ok("store_fact", entity=entity, key="k0", value="v", idempotency_key=f"{entity}-0")
        client.ok("query_facts", entity=entity)
        after = {name: self.total(name) - before[name] for name in names}
        self.assertGreaterEqual(after["quorate_propose_decide_seconds_count"], 11)
        self.assertGreaterEqual(after["quorate_propose_queue_seconds_count"], 11)
        self.assertEqual(after["quorate_requests_replayed_total"], 1)
        self.assertGreaterEqual(after["quorate_reads_total"], 1)
        for node in self.deployment.info["nodes"]:
            samples, _ = self.page(node["http"])
            for count in ("quorate_log_write_seconds_count", "quorate_log_group_entries_count", "quorate_apply_seconds_count", "quorate_apply_entries_count"):
                self.assertGreater(samples[count], 0, count)
            self.assertEqual(samples['quorate_log_write_seconds_bucket{le="+Inf"}'], samples["quorate_log_write_seconds_count"])


if __name__ == "__main__":
    main()
