"""A small share of the fuzz: every listed tool, arguments of all kinds, and no answer that breaks a promise."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable  # noqa: E402
from runner import main  # noqa: E402


class Fuzz(unittest.TestCase):
    def test_no_tool_answers_made_up_arguments_with_a_fault_and_refused_calls_change_nothing(self):
        deployment = Deployment()
        try:
            pids = deployment.node_pids()
            tokens = ",".join(deployment.token(who) for who in ("agent-a", "agent-b", "operator", "other-tenant"))
            calls, seed = os.environ.get("QUORATE_FUZZ_CALLS", "2000"), os.environ.get("QUORATE_FUZZ_SEED", "1")
            command = [str(executable().parent / "quorate-chaos"), "fuzz", "--url", deployment.info["http"], "--token", tokens,
                       "--calls", calls, "--seed", seed, "--refused", "200", "--json"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3_600)
            found = json.loads(done.stdout or "{}")
            self.assertEqual((done.returncode, found.get("faults")), (0, 0), f"{json.dumps(found, indent=1)[:6000]} {done.stderr[-2000:]}")
            self.assertEqual(found["tools_not_called"], 0)
            self.assertEqual(found["refused_and_unchanged"], 200)
            self.assertGreater(found["outcomes"]["ok"], int(calls) // 20, "hardly any call got through to a rule")
            self.assertEqual(deployment.node_pids(), pids, "a node died")
            self.assertNotIn("panicked at", deployment.log())
        finally:
            deployment.stop()


if __name__ == "__main__":
    main()
