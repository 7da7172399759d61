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

    def test_another_key_signs_from_now_on_and_what_was_saved_goes_on_to_verify(self):
        data = ["--data", self.deployment.data]
        self.decide()
        before = self.get("/v1/log/head")
        old = json.loads(before)["public_key"]
        code, out, err = quorate("key", "rotate", "--dry-run", "--json", *data)
        self.assertEqual((code, json.loads(out)["changed"]), (0, False), err)
        code, out, err = quorate("key", "rotate", "--json", *data)
        self.assertEqual((code, json.loads(out)["changed"]), (0, True), err)
        new = json.loads(out)["key"]["public_key"]
        after = self.get("/v1/log/head")
        self.assertEqual(json.loads(after)["public_key"], new)
        code, out, _ = quorate("key", "rotate", "--json", new, *data)
        self.assertEqual((code, json.loads(out)["changed"]), (0, False))
        receipt = self.decide()
        told = self.call("receipt_verify", receipt_id=receipt)
        self.assertEqual((told["verified"], told["report"]["public_key"]), (True, new), told)
        ring = self.home / "ring"
        ring.write_bytes(self.get("/v1/log/keys"))
        # Every process anew: whatever was only remembered is gone.
        self.deployment.restart()
        self.assertEqual(json.loads(self.get("/v1/log/head?size=1"))["public_key"], new)
        self.deployment.stop()
        for saved in (before, after):
            self.assertEqual(self.verify(saved, "--key", old, "--ring", ring)[0], 0)
            self.assertEqual(self.verify(saved, "--key", new, "--ring", ring)[0], 0)
        self.assertEqual((self.verify(before, "--key", old)[0], self.verify(after, "--key", old)[0]), (0, 1))
        stranger = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        self.assertEqual(self.verify(after, "--key", stranger, "--ring", ring)[0], 1)

    def test_heads_come_with_the_cosignatures_of_the_nodes_and_two_histories_are_found(self):
        self.decide()
        first = self.get("/v1/log/cosigned?cosigners=3")
        self.decide()
        _, leader = self.deployment.leader()
        self.deployment.kill(leader)
        second = self.get("/v1/log/cosigned")
        proof = self.get("/v1/log/proof/consistency?from=1&to=2")
        checkpoint = self.get("/v1/log/checkpoint?cosigners=2").decode()
        self.assertEqual(checkpoint.splitlines()[1], "2")
        ring = self.home / "ring"
        ring.write_bytes(self.get("/v1/log/keys"))
        code, out, err = quorate("key", "enroll", "--json", "--data", self.deployment.data)
        self.assertEqual((code, {row["state"] for row in json.loads(out)["nodes"]}), (0, {"enrolled before"}), err)
        self.deployment.stop()
        code, told = self.verify(first, "--ring", ring, "--cosigners", 3)
        self.assertEqual((code, len(told["report"]["cosigned_by"])), (0, 3), told)
        self.assertEqual(self.verify(second, "--ring", ring, "--cosigners", 2)[0], 0)
        paths = [self.home / name for name in ("first", "second", "proof")]
        for path, data in zip(paths, (first, second, proof)):
            path.write_bytes(data)
        self.assertEqual(quorate("verify", *paths)[0], 0)
        code, _, err = quorate("verify", *paths[:2])
        self.assertEqual((code, "proof/consistency?from=1&to=2" in err), (1, True), err)

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
