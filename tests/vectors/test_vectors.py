"""The published vectors through a verifier that shares nothing with the product, and what it says of changed ones."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from runner import main  # noqa: E402

FOLDER = ROOT / "docs" / "vectors"
FILES = sorted([*FOLDER.glob("*.json"), *FOLDER.glob("*.zst")])


def verify(*paths):
    done = subprocess.run([sys.executable, FOLDER / "verify.py", *paths], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Vectors(unittest.TestCase):
    def test_every_published_vector_verifies_independently(self):
        code, said = verify()
        self.assertEqual(code, 0, said)
        self.assertEqual(len(said.splitlines()), len(FILES), said)
        self.assertGreaterEqual(len(FILES), 14)

    def test_a_vector_with_a_changed_digit_does_not(self):
        with tempfile.TemporaryDirectory() as home:
            for path in FILES:
                data = path.read_bytes()
                # A digit of some hash or signature, or a byte in the middle of the archive.
                at = len(data) // 2 if path.suffix == ".zst" else data.rindex(b'"', 0, data.rindex(b'"public_key"')) - 9
                changed = pathlib.Path(home) / path.name
                changed.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
                code, said = verify(changed)
                self.assertNotEqual(code, 0, f"{path.name}, byte {at}: {said}")


if __name__ == "__main__":
    main()
