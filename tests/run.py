#!/usr/bin/env python3
"""Runs the test suites one after the other, whatever becomes of those before, and ends with `N passed, N failed`.

    tests/run.py [behaviours] [rust] [clients] [system]

`make test` sets up what this needs. Each suite has a deadline; one that does not end in time, or ends without a word on what
it did, counts as a failure.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
SETUP = TARGET / "setup"
# Between the polite end of a suite and the other one: time to stop a deployment.
GRACE_SECONDS = 40

NEXTEST = re.compile(r"Summary \[.*?\] .*?tests? run: (.*)")
CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;")
OURS = re.compile(r"^(\d+) passed, (\d+) failed$")
BEHAVIOURS = re.compile(r"^(\d+) behaviours of \d+ tools, (\d+) gaps$")
NODE = re.compile(r"^\W*(pass|fail|cancelled) (\d+)$")


def of_nextest(line):
    found = NEXTEST.search(line)
    words = re.findall(r"(\d+) (passed|failed|timed out|exec failed)", found.group(1)) if found else []
    return sum(int(n) for n, word in words if word == "passed"), sum(int(n) for n, word in words if word != "passed")


def of_cargo(line):
    found = CARGO.match(line)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def of_ours(line):
    found = OURS.match(line)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def of_behaviours(line):
    found = BEHAVIOURS.match(line)
    return (max(0, int(found.group(1)) - int(found.group(2))), int(found.group(2))) if found else (0, 0)


def of_node(line):
    found = NODE.match(line)
    return (int(found.group(2)), 0) if found and found.group(1) == "pass" else (0, int(found.group(2)) if found else 0)


def run(name, command, count, seconds, cwd=ROOT, may_be_empty=False):
    """Runs a suite and shows what it prints: how many passed, how many failed."""
    print(f"\n== {name}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    RUNNING.append(process)
    timer = threading.Timer(seconds, end, [process])
    timer.daemon = True
    timer.start()
    passed = failed = 0
    for line in process.stdout:
        print(line, end="", flush=True)
        more_passed, more_failed = count(line.strip())
        passed, failed = passed + more_passed, failed + more_failed
    code = process.wait()
    timer.cancel()
    RUNNING.remove(process)
    if code and not failed:
        print(f"{name} ended with {code} after {time.monotonic() - start:.0f} s and told of no failure")
        failed = 1
    if not code and not passed and not may_be_empty:
        print(f"{name} ran nothing")
        failed = 1
    print(f"== {name}: {passed} passed, {failed} failed in {time.monotonic() - start:.0f} s", flush=True)
    return passed, failed


RUNNING = []


def end(process):
    """Asks a suite and what it started to end, and makes it after a while."""
    for word in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, word)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


def behaviours():
    """Whether every promised behaviour of every tool names a test that is there."""
    return [run("Behaviours", [sys.executable, ROOT / "tests" / "behaviours" / "table.py", "--gaps"], of_behaviours, 60)]


def rust():
    """Unit, property and integration tests of every crate, and the examples in their documentation."""
    # The executable first: tests of several crates start it.
    built = subprocess.run(["cargo", "build", "--workspace", "--bins"], cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    if built:
        print("the workspace does not build")
        return [(0, 1)]
    if shutil.which("cargo-nextest"):
        return [run("Rust", ["cargo", "nextest", "run", "--workspace", "--no-fail-fast", "--no-tests=pass"], of_nextest, 3600),
                run("Rust, documentation", ["cargo", "test", "--workspace", "--doc", "--no-fail-fast"], of_cargo, 1200, may_be_empty=True)]
    return [run("Rust", ["cargo", "test", "--workspace", "--no-fail-fast"], of_cargo, 3600)]


def clients():
    """The official SDKs and conformance suite, schemathesis and a browser against deployments, and the published vectors through a verifier of their own."""
    folder = ROOT / "tests" / "clients"
    done = [run(f"Python SDK {major}", [SETUP / f"python-{major}" / "bin" / "python", folder / "python" / "test_python.py"], of_ours, 900)
            for major in (1, 2)]
    done.append(run("Published vectors", [SETUP / "python-2" / "bin" / "python", ROOT / "tests" / "vectors" / "test_vectors.py"], of_ours, 300))
    done.append(run("HTTP API", [SETUP / "python-http" / "bin" / "python", folder / "http" / "test_http.py"], of_ours, 900))
    done.append(run("TypeScript SDK", ["node", "--test", "client.test.mjs"], of_node, 900, cwd=folder / "node"))
    done.append(run("Console in a browser", ["node", "--test", "console.test.mjs"], of_node, 600, cwd=folder / "console"))
    return [*done, run("Conformance", [sys.executable, folder / "conformance" / "test_conformance.py"], of_ours, 900)]


def system():
    """Whole deployments, hurt and fed with nonsense."""
    files = sorted((ROOT / "tests" / "system").glob("test_*.py"))
    return [run(file.stem.removeprefix("test_").replace("_", " "), [sys.executable, file], of_ours, 900) for file in files]


SUITES = {"behaviours": behaviours, "rust": rust, "clients": clients, "system": system}


def main():
    names = sys.argv[1:] or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        sys.exit(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")

    def stop(number, _):
        for process in RUNNING:
            end(process)
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    done = [counts for name in names for counts in SUITES[name]()]
    passed, failed = (sum(column) for column in zip(*done))
    print(f"\n{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
