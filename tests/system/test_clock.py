"""A wall clock that is wrong: its node does not lead and says so, and nothing carries its time.

One node of three is given a wrong clock by a library that stands between it and the C library; the product has nothing of it.
"""
import datetime
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

HOUR_MS = 3_600_000
# Adds what the file SKEW_FILE says, in ms, to the wall clock of the process in whose command line SKEW_OF stands.
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_meant(void) {
    static int known = -1;
    if (known < 0) {
        char line[4096];
        const char *name = getenv("SKEW_OF");
        int file = open("/proc/self/cmdline", O_RDONLY);
        ssize_t length = file < 0 ? 0 : read(file, line, sizeof line);
        if (file >= 0) close(file);
        known = name && length > 0 && memmem(line, length, name, strlen(name)) != NULL;
    }
    return known;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, at);
    const char *path = getenv("SKEW_FILE");
    if (result || which != CLOCK_REALTIME || !path || !is_meant()) return result;
    char text[32] = {0};
    int file = open(path, O_RDONLY);
    if (file < 0) return result;
    if (read(file, text, sizeof text - 1) > 0) at->tv_sec += atoll(text) / 1000;
    close(file);
    return result;
}
"""


class Clock(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-clock-"))
        (self.home / "skew.c").write_text(LIBRARY)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.home / "skew.so", self.home / "skew.c", "-ldl"], check=True)
        self.skew(0)
        self.deployment = Deployment(environment={"LD_PRELOAD": str(self.home / "skew.so"), "SKEW_OF": "node-3.toml",
                                                  "SKEW_FILE": str(self.home / "ms")})

    def tearDown(self):
        self.deployment.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def skew(self, ms):
        draft = self.home / "ms.new"
        draft.write_text(str(ms))
        draft.rename(self.home / "ms")

    def reasons(self, node):
        found = next((found for found in (self.deployment.status() or {"nodes": []})["nodes"] if found["id"] == node), {})
        return found.get("not_ready", [])

    def lead(self, node):
        until(lambda: self.deployment.verb("transfer", node)[0] == 0 and self.deployment.leader()[0] == node, 60, f"node {node} leads")

    def test_a_node_whose_clock_is_wrong_does_not_lead_and_says_so(self):
        client = Client(self.deployment.info["http"], self.deployment.token("agent-a"))
        self.lead(3)
        self.skew(HOUR_MS)
        until(lambda: self.deployment.leader()[0] != 3, 60, "another leads")
        until(lambda: "clock_off" in self.reasons(3), 30, "it says so")
        self.assertIn("clock_off", self.deployment.log())
        client.ok("store_fact", entity="svc:a", key="k", value="v")
        # Made the leader by hand it gives way again, and until then nothing is decided under its clock.
        self.deployment.verb("transfer", 3)
        until(lambda: self.deployment.leader()[0] != 3, 60, "it gives way")
        stored = client.ok("store_fact", entity="svc:a", key="k2", value="v")
        shown = client.ok("fact_history", entity="svc:a", key="k2")
        self.assertLess(abs(newest(shown) - time.time() * 1_000), 10 * 60_000, (stored, shown))
        # The way back is to correct it.
        self.skew(0)
        until(lambda: "clock_off" not in self.reasons(3), 30, "its clock is right")
        self.lead(3)
        client.ok("store_fact", entity="svc:a", key="k3", value="v")


def newest(value):
    """The latest time that stands anywhere in an answer, in ms."""
    if isinstance(value, dict):
        return max((newest(part) for part in value.values()), default=0)
    if isinstance(value, list):
        return max((newest(part) for part in value), default=0)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if value > 1e12 else 0
    if isinstance(value, str) and len(value) >= 20 and value[4] == "-" and value.endswith("Z"):
        return datetime.datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp() * 1_000
    return 0


if __name__ == "__main__":
    main()
