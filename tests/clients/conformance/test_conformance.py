"""The official MCP conformance suite: every requirement of both eras, against the fixtures of `quorate dev --conformance`.

The suite asks for a Node.js newer than the distributions have; npm brings one along.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

SUITE = HERE / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
SCENARIO = re.compile(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", re.MULTILINE)
# The specification leaves extensions to the server, and this one declares none.
OPTIONAL = re.compile(r"^\s+[✓✗] ([\w-]+) \(extension\)$", re.MULTILINE)


def node():
    brought = sorted((HERE / "node_modules").glob("node-*/bin/node"))
    return brought[0] if brought else shutil.which("node")


class Conformance(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment(arguments=["--conformance"])

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def check(self, revision, scenarios):
        url = self.deployment.url("/mcp/conformance")
        with tempfile.TemporaryDirectory(prefix="quorate-conformance-") as folder:
            done = subprocess.run([node(), SUITE, "server", "--url", url, "--requirements", revision], cwd=folder,
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
        told = done.stdout + done.stderr
        found = {name: int(failed) for _, name, _, failed in SCENARIO.findall(told)}
        optional = set(OPTIONAL.findall(told))
        failed = sorted(name for name, count in found.items() if count and name not in optional)
        self.assertEqual(failed, [], told[-6000:])
        self.assertEqual(done.returncode, 0, told[-6000:])
        # A suite that found nothing to run has shown nothing.
        self.assertGreaterEqual(len(found) - len(optional), scenarios, told[-2000:])

    def test_the_era_of_sessions(self):
        self.check("2025-11-25", 33)

    def test_the_stateless_era(self):
        self.check("2026-07-28", 40)

    def test_the_stateless_era_at_a_gateway_that_took_over(self):
        self.deployment.kill(self.deployment.info["gateway"]["pid"])

        def back():
            try:
                return Client(self.deployment.info["http"], None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(back, 60, "the killed gateway serves again")
        self.check("2026-07-28", 40)

    def test_the_fixtures_are_there_with_the_flag_alone(self):
        plain = Deployment()
        try:
            body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
            answer = Client(plain.info["http"], plain.token("operator")).send("POST", "/mcp/conformance", body)
            self.assertEqual(answer.status, 404, answer)
        finally:
            plain.stop()


if __name__ == "__main__":
    main()
