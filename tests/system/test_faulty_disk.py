"""The library that makes disks and clocks fail under a process: each fault does what it is named after, and spares everything else."""
import errno
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import executable  # noqa: E402
from runner import main  # noqa: E402

# The places of `Switch` and `Counter` in the page.
SYNC_DELAY_US, SYNC_FAILS_WITH, NO_SPACE, WALL_AHEAD_MS = 0, 2, 3, 4
SYNCS_FAILED, WRITES_REFUSED = 18, 19
PAGE_BYTES = 4096


class FaultyDisk(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory(prefix="quorate-test-")
        self.addCleanup(home.cleanup)
        self.faults, self.data, self.elsewhere = (pathlib.Path(home.name, name) for name in ("faults", "data", "elsewhere"))
        for folder in (self.faults, self.data, self.elsewhere):
            folder.mkdir()
        (self.faults / "control").write_bytes(bytes(PAGE_BYTES))

    def switch(self, place, value):
        with open(self.faults / "control", "r+b") as page:
            page.seek(place * 8)
            page.write(struct.pack("=q", value))

    def count(self, place):
        return struct.unpack_from("=q", (self.faults / "control").read_bytes(), place * 8)[0]

    def run_under_faults(self, program):
        """What the program prints; `data` and `elsewhere` are its folders."""
        library = executable().with_name("libquorate_chaos_preload.so")
        environment = {**os.environ, "LD_PRELOAD": str(library), "QUORATE_CHAOS_FAULTS": str(self.faults), "QUORATE_CHAOS_DATA": str(self.data)}
        begin = f"import errno, os, time\ndata, elsewhere = {str(self.data)!r}, {str(self.elsewhere)!r}\n"
        begin += "def create(folder): return os.open(folder + '/file', os.O_WRONLY | os.O_CREAT)\n"
        done = subprocess.run([sys.executable, "-c", begin + program], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.strip()

    def test_the_ledger_tells_what_was_synced(self):
        self.run_under_faults("file = create(data)\nos.write(file, b'x' * 10)\nos.fsync(file)\nos.write(file, b'y' * 5)\n"
                              "other = create(elsewhere)\nos.write(other, b'z')\nos.fsync(other)\n")
        ledger = (self.faults / "ledger").read_bytes()
        records = [struct.unpack_from("=QQQ", ledger, at) for at in range(0, len(ledger), 24)]
        file = (self.data / "file").stat()
        self.assertEqual(file.st_size, 15)
        self.assertEqual(records, [(file.st_dev, file.st_ino, 0), (file.st_dev, file.st_ino, 10)])

    def test_no_space_is_for_the_data_alone(self):
        self.switch(NO_SPACE, 1)
        told = self.run_under_faults("file, other = create(data), create(elsewhere)\nos.write(other, b'x')\n"
                                     "try: os.write(file, b'x')\nexcept OSError as error: print(error.errno)\n")
        self.assertEqual(told, str(errno.ENOSPC))
        self.assertEqual(self.count(WRITES_REFUSED), 1)

    def test_a_sync_fails_with_the_error_that_was_chosen(self):
        self.switch(SYNC_FAILS_WITH, errno.EIO)
        told = self.run_under_faults("file = create(data)\nos.write(file, b'x')\n"
                                     "try: os.fdatasync(file)\nexcept OSError as error: print(error.errno)\n")
        self.assertEqual(told, str(errno.EIO))
        self.assertEqual(self.count(SYNCS_FAILED), 1)

    def test_a_sync_takes_longer(self):
        self.switch(SYNC_DELAY_US, 80_000)
        told = self.run_under_faults("file = create(data)\nbegun = time.monotonic()\nos.fsync(file)\nprint(time.monotonic() - begun)\n")
        self.assertGreaterEqual(float(told), 0.08)

    def test_the_wall_clock_is_off_and_the_other_one_is_not(self):
        self.switch(WALL_AHEAD_MS, -3_600_500)
        told = self.run_under_faults("create(data)\nprint(time.time(), time.monotonic())\n")
        wall, monotonic = (float(word) for word in told.split())
        self.assertAlmostEqual(time.time() - 3_600.5, wall, delta=20)
        self.assertAlmostEqual(time.monotonic(), monotonic, delta=20)


if __name__ == "__main__":
    main()
