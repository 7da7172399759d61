"""The published vectors through a verifier that shares nothing with the product, and what it says of changed ones."""
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import c2pa

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from runner import main  # noqa: E402

FOLDER = ROOT / "docs" / "vectors"
FILES = sorted([*FOLDER.glob("*.json"), *FOLDER.glob("*.zst"), *FOLDER.glob("*.c2pa")])


def verify(*paths):
    done = subprocess.run([sys.executable, FOLDER / "verify.py", *paths], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Vectors(unittest.TestCase):
    def test_every_published_vector_verifies_independently(self):
        code, said = verify()
        self.assertEqual(code, 0, said)
        self.assertEqual(len(said.splitlines()), len(FILES), said)
        self.assertGreaterEqual(len(FILES), 30)

    def test_a_vector_with_a_changed_digit_does_not(self):
        with tempfile.TemporaryDirectory() as home:
            for path in FILES:
                data = path.read_bytes()
                # A digit of some hash or signature, or a byte in the middle of the archive.
                field = b'"by_successor"' if path.name == "key-ring.json" else b'"public_key"'
                at = len(data) // 2 if path.suffix in (".zst", ".c2pa") else data.rindex(b'"', 0, data.rindex(field)) - 9
                changed = pathlib.Path(home) / path.name
                changed.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
                code, said = verify(changed)
                self.assertNotEqual(code, 0, f"{path.name}, byte {at}: {said}")

    def test_the_reader_of_the_c2pa_project_finds_the_manifest_valid_trusted_and_bound_to_its_content(self):
        store, root = (FOLDER / "c2pa-manifest.c2pa").read_bytes(), (FOLDER / "c2pa-root.pem").read_text()

        def read(content, anchors):
            settings = {"verify": {"verify_trust": True}, "trust": {"trust_anchors": anchors} if anchors else {}}
            with c2pa.Context(settings=c2pa.Settings.from_dict(settings)) as context:
                with c2pa.Reader("text/plain", io.BytesIO(content), manifest_data=store, context=context) as reader:
                    return json.loads(reader.json())

        told = read(b"hello", root)
        self.assertEqual(told["validation_state"], "Trusted", told)
        manifest = told["manifests"][told["active_manifest"]]
        receipt, = (row["data"] for row in manifest["assertions"] if row["label"] == "org.quorate.receipt")
        self.assertEqual(receipt["signer_passport"], "mara")
        self.assertEqual(read(b"hello", None)["validation_state"], "Valid")
        changed = read(b"hallo", root)
        self.assertEqual(changed["validation_state"], "Invalid", changed)
        failures = [row["code"] for row in changed["validation_results"]["activeManifest"]["failure"]]
        self.assertIn("assertion.dataHash.mismatch", failures)


if __name__ == "__main__":
    main()
