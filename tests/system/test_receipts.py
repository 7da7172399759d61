"""Receipts as their readers have them: saved, checked with no server, and the same whoever serves them."""
import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable  # noqa: E402
from runner import main  # noqa: E402


def quorate(*words):
    """Exit code, standard output and standard error."""
    done = subprocess.run([executable(), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class Receipts(unittest.TestCase):
    def setUp(self):
        self.deployment = Deployment()
        self.addCleanup(self.deployment.stop)
        self.as_agent = ["--as", "agent-a", "--data", self.deployment.data]
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.home = pathlib.Path(home.name)

    def call(self, tool, **arguments):
        code, out, err = quorate("tool", "call", tool, "--args", json.dumps(arguments), "--json", *self.as_agent)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def get(self, path):
        request = urllib.request.Request(self.deployment.url(path), headers={"Authorization": f"Bearer {self.deployment.token('agent-a')}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def decide(self):
        return self.call("record_decision", action="step", rationale="why")["decision_id"]

    def verify(self, data, *words):
        path = self.home / "file"
        path.write_bytes(data)
        code, out, _ = quorate("verify", path, "--json", *words)
        return code, json.loads(out)

    def test_what_was_saved_verifies_without_the_cluster_and_shows_what_was_changed(self):
        ids = [self.decide() for _ in range(5)]
        saved = self.home / "receipt.json"
        code, _, err = quorate("receipt", "get", ids[1], "--out", saved, *self.as_agent)
        self.assertEqual(code, 0, err)
        before, (_, leader) = self.get("/v1/log/head"), self.deployment.leader()
        self.deployment.kill(leader)
        # Ed25519 is deterministic and the tree is replicated: whoever serves it, a head of a size is the same to the byte.
        self.assertEqual(self.get("/v1/log/head?size=5"), before)
        self.decide()
        heads = self.get("/v1/log/proof/consistency?from=5&to=6")
        bundle = pathlib.Path(self.call("audit_export_bundle", token_budget=10_000)["bytes_path"]).read_bytes()
        code, _, err = quorate("receipt", "get", "nothing", *self.as_agent)
        self.assertEqual((code, "no receipt `nothing`" in err), (1, True), err)
        key = json.loads(saved.read_text())["public_key"]
        code, out, err = quorate("key", "list", "--json", "--data", self.deployment.data)
        self.assertEqual((code, [known["public_key"] for known in json.loads(out)["keys"]]), (0, [key]), err)
        self.deployment.stop()

        for data in (saved.read_bytes(), before, heads, bundle):
            code, told = self.verify(data)
            self.assertEqual((code, told["valid"], told["key_pinned"]), (0, True, False), told)
            self.assertEqual(self.verify(data, "--key", key)[0], 0)
            code, told = self.verify(data, "--key", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
            self.assertEqual((code, told["readable"]), (1, True), told)
            self.assertEqual(self.verify(data[:10])[0], 2)
        code, told = self.verify(saved.read_bytes().replace(b'"seq":1', b'"seq":2'))
        self.assertEqual((code, told["at"]), (1, "link_hash"), told)
        self.assertEqual(quorate("verify", self.home / "nowhere")[0], 2)

    def test_an_attested_output_is_known_by_its_content(self):
        manifest = self.call("output_attest", receipt_id=self.decide(), content_bytes_base64="aGVsbG8=")["manifest"]
        saved, content = self.home / "manifest.json", self.home / "content"
        saved.write_bytes(base64.b64decode(manifest["manifest_jumbf_base64"]))
        content.write_text("hello")
        self.assertEqual(quorate("output-verify", saved, "--content", content)[0], 0)
        content.write_text("hallo")
        code, _, err = quorate("output-verify", saved, "--content", content)
        self.assertEqual((code, "it is not the one that was attested" in err), (1, True), err)


if __name__ == "__main__":
    main()
