"""The executable as people and their scripts use it: what it says when something is wrong, and whether the codes are true."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable  # noqa: E402
from runner import main  # noqa: E402


def quorate(*words, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QUORATE_")}
    return subprocess.run([str(executable()), *map(str, words)], env={**clean, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


class Shell(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        cls.data = cls.deployment.data

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def test_a_value_that_looks_like_a_number_is_text_where_the_tool_wants_text(self):
        entity = f"svc-{uuid.uuid4().hex[:8]}"
        done = quorate("tool", "call", "store_fact", f"entity={entity}", "key=port", "value=8080", "--as", "agent-a", "--data", self.data)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = quorate("tool", "call", "query_facts", f"entity={entity}", "top_k=1", "--as", "agent-a", "--data", self.data, "--json")
        self.assertEqual(json.loads(done.stdout)["rows"][0]["value"], "8080")

    def test_a_refusal_in_json_has_its_code_and_whether_to_try_again(self):
        resource = f"resource=file://{uuid.uuid4().hex}"
        for who, code in (("agent-a", 0), ("agent-b", 1)):
            done = quorate("tool", "call", "punch_in", resource, f"holder_passport={who}", "--as", who, "--data", self.data, "--json")
            self.assertEqual(done.returncode, code, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["ok"], said["code"], said["retryable"], said["wrote"]), (False, "HELD", True, "no"))
        self.assertEqual(said["data"]["holder"], "agent-a")

    def test_wrong_usage_is_json_too_when_json_is_asked_for(self):
        done = quorate("transfer", "--json")
        self.assertEqual(done.returncode, 2)
        said = json.loads(done.stdout)
        self.assertEqual((said["ok"], said["exit_code"]), (False, 2))
        self.assertTrue(said["error"])

    def test_a_wrong_cluster_secret_is_called_that(self):
        nodes = ",".join(node["grpc"] for node in self.deployment.info["nodes"])
        for words in (("status",), ("transfer", 1), ("remove", 3, "--dry-run"), ("token", "create", "--passport", "x")):
            done = quorate(*words, "--nodes", nodes, "--cluster-secret", "wrong", "--json")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("secret", json.loads(done.stdout)["error"])
            self.assertNotIn("none of the nodes", done.stderr)

    def test_dev_stops_with_the_words_when_the_gateway_s_address_is_taken(self):
        other = Deployment()
        self.addCleanup(other.stop)
        other.halt()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            file = other.data / "deployment.json"
            deployment = json.loads(file.read_text())
            deployment["gateway"] = f"127.0.0.1:{taken.getsockname()[1]}"
            file.write_text(json.dumps(deployment))
            done = quorate("dev", "--json", "--data", other.data)
        self.assertIn("address in use", done.stderr)
        self.assertEqual((done.returncode, json.loads(done.stdout)["exit_code"]), (78, 78), done.stderr)

    def test_who_asked_for_an_approval_can_see_from_the_shell_what_became_of_it(self):
        def approve(verb, *words, who="agent-a"):
            done = quorate("approve", verb, *words, "--as", who, "--data", self.data, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        asked = quorate("tool", "call", "approval_request", "action_summary=drop it", "risk_tier=high", "scope=default", "token_budget=500",
                        "--as", "agent-a", "--data", self.data, "--json")
        request = json.loads(asked.stdout)["request_id"]
        self.assertIn(request, [row["request_id"] for row in approve("list")["approvals"]])
        self.assertEqual(approve("show", request)["status"], "pending")
        approve("decide", request, "reject", "--notes", "not today", who="operator")
        shown = approve("show", request)
        self.assertEqual((shown["status"], shown["reviewer"], shown["reviewer_notes"]), ("rejected", "operator", "not today"))
        self.assertNotIn(request, [row["request_id"] for row in approve("list")["approvals"]])
        missing = quorate("approve", "show", "no-such", "--as", "agent-a", "--data", self.data, "--json")
        self.assertEqual((missing.returncode, json.loads(missing.stdout)["ok"]), (1, False))

    def test_every_shell_gets_its_completions(self):
        for shell in ("bash", "zsh", "fish"):
            done = quorate("completions", shell)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("connect", done.stdout)

    def test_connect_writes_into_a_project_once(self):
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as home:
            words = ("connect", "claude-code", "--project", home, "--write", "--json")
            refused = quorate(*words)
            self.assertEqual(refused.returncode, 2, "it wrote without being allowed to")
            self.assertEqual(list(pathlib.Path(home).iterdir()), [])
            for state in ("new", "unchanged"):
                done = quorate(*words, "--yes", "--url", self.deployment.info["mcp"])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual({file["state"] for file in json.loads(done.stdout)["files"]}, {state})
            written = json.loads((pathlib.Path(home) / ".mcp.json").read_text())
            self.assertEqual(written["mcpServers"]["quorate"]["url"], self.deployment.info["mcp"])


if __name__ == "__main__":
    main()
