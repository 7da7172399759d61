#!/usr/bin/env python3
"""The HTTP API as its OpenAPI document tells it, asked by schemathesis: what it says of arguments, statuses, types and headers is true of
every operation. The requests are the same each time.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
from deployment import Deployment  # noqa: E402
from runner import main  # noqa: E402

SCHEMATHESIS = pathlib.Path(sys.executable).parent / "schemathesis"
SECONDS = 400

# They end the passport that asks, after which every answer would be 401: they are asked last, by another one.
ENDING = ["revoke_passport", "passport_merge"]
# A stream does not end; tests/system/test_events.py reads it.
STREAMS = ["follow_events"]


def begin(deployment, folder, who, *arguments):
    """Begins to run all checks over some operations. What it remembers of a run goes into the folder, so that no run knows of others."""
    command = [SCHEMATHESIS, "--config-file", HERE / "schemathesis.toml", "run", deployment.url("/v1/openapi.json"),
               "--header", f"Authorization: Bearer {deployment.token(who)}", "--checks", "all", "--phases", "coverage,fuzzing,stateful",
               "--max-examples", "2", "--workers", "1", "--continue-on-failure", "--no-color", "--warnings", "off", *arguments]
    # A file takes what is said, so that one that nobody reads yet does not wait.
    output = tempfile.TemporaryFile("w+")
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                               env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)}, cwd=folder)
    return process, output


def end(process, output):
    """What it said, once it is done and found nothing; and how many operations it asked."""
    try:
        code = process.wait(SECONDS)
    finally:
        process.kill()
    output.seek(0)
    said = output.read()
    assert code == 0, said[-12_000:]
    return int(re.search(r"Tested: (\d+)", said).group(1))


def options(what, operations):
    return [word for name in operations for word in (f"--{what}-operation-id", name)]


class HttpApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        cls.folders = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()
        cls.folders.cleanup()

    def begin(self, who, *arguments):
        return begin(self.deployment, tempfile.mkdtemp(dir=self.folders.name), who, *arguments)

    def test_schemathesis_finds_nothing(self):
        # Two at once, each with an order of its own: one asks all tools, one everything else.
        others = options("exclude", ENDING + STREAMS)
        asking = [self.begin("operator", f"--{what}-path-regex", "^/v1/tools/", *others) for what in ("include", "exclude")]
        tools, rest = [end(*asked) for asked in asking]
        assert tools > 100 and rest > 100, (tools, rest)
        self.assertEqual(end(*self.begin("agent-a", *options("include", ENDING))), len(ENDING))


if __name__ == "__main__":
    main()
