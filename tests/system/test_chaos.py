"""Leader killed, leader cut off, replies lost: a short run of `quorate-chaos`, and its verdict has to be a pass."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import executable  # noqa: E402
from runner import main  # noqa: E402

SECONDS = 25
# Starting, the last look at everything, and a machine that is busy with other things.
ENDS_WITHIN_SECONDS = 300


def chaos(*words):
    command = [str(executable().with_name("quorate-chaos")), *words]
    environment = {**os.environ, "QUORATE": str(executable())}
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ENDS_WITHIN_SECONDS, env=environment)


class Chaos(unittest.TestCase):
    def test_every_promise_holds_while_leaders_die_and_links_break(self):
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as home:
            history, report = pathlib.Path(home, "history.jsonl"), pathlib.Path(home, "report.html")
            done = chaos("run", "--nemesis", "kill-leader,partition-leader,lost-replies", "--seconds", str(SECONDS), "--json",
                         "--history", str(history), "--report", str(report))
            told = done.stderr[-1500:]
            summary = json.loads(done.stdout or "{}")
            broken = [prop for prop in summary.get("properties", []) if prop["findings"]]
            untried = [point for point in summary.get("coverage", []) if not point["bit"]]
            self.assertEqual((done.returncode, summary.get("verdict")), (0, "pass"), f"{broken} {untried} {told}"[:3500])
            self.assertIn("Fault ledger", report.read_text())
            kinds = {json.loads(line)["kind"] for line in history.read_text().splitlines()}
            self.assertEqual(kinds, {"run", "operation", "fault", "leader"})
            self.assertEqual(chaos("check", str(history)).returncode, 0)

            # The same history with one acknowledged write gone from every read.
            forged = [json.loads(line) for line in history.read_text().splitlines()]
            operations = [line for line in forged if line["kind"] == "operation"]
            acknowledged = {line["operation"]["store"]["value"] for line in operations
                            if "store" in line["operation"] and "stored" in line["outcome"]}
            reads = [line["outcome"]["versions"] for line in operations if "versions" in line["outcome"]]
            gone = next(value for versions in reads for value in versions if value in acknowledged)
            for versions in reads:
                versions[:] = [value for value in versions if value != gone]
            history.write_text("".join(json.dumps(line) + "\n" for line in forged))
            judged = chaos("check", str(history))
            self.assertEqual(judged.returncode, 1, judged.stdout)
            self.assertIn("BROKEN     no lost writes", judged.stdout)

    def test_each_planted_bug_finds_its_place_in_the_source(self):
        mutants = pathlib.Path(__file__).resolve().parents[2] / "chaos-tests" / "mutants.py"
        done = subprocess.run([sys.executable, str(mutants), "--places"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
