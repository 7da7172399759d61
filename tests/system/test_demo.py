"""The scripted day: it ends as its script says, with and without faults in the same state, and leaves nothing running."""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import executable, family, processes  # noqa: E402
from runner import main  # noqa: E402


class Demo(unittest.TestCase):
    def test_a_day_ends_the_same_with_two_nodes_and_a_gateway_killed_as_with_none(self):
        before = set(processes())
        command = [str(executable()), "demo", "--json", "--compare", "--seed", "5", "--within", "300"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        try:
            out, err = process.communicate(timeout=700)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
        found = json.loads(out)
        self.assertEqual((process.returncode, found["ok"], found["same_end"]), (0, True, True), f"{out} {err}")
        hurt, calm = found["days"]
        self.assertEqual(len([what for what in hurt["faults"] if what.startswith("node")]), 2)
        self.assertIn("gateway 1", hurt["faults"])
        self.assertEqual((calm["faults"], hurt["broken"], calm["broken"]), ([], [], []))
        self.assertGreater(hurt["resent"], 0, "no call met a process that was gone")
        self.assertEqual(sum(hurt["states"].values()), 90)
        self.assertGreaterEqual(set(hurt["feed"]), {"CLAIMED", "BLOCKED", "HUMAN_HOLD", "RESUMED", "DONE"})
        ours = {pid for pid in set(processes()) - before if pid in family(process.pid)}
        self.assertEqual(ours, set(), "processes are left")


if __name__ == "__main__":
    main()
