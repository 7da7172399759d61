#!/usr/bin/env python3
"""Puts bugs into a copy of the product, one at a time, and sees that `quorate-chaos run` finds each.

    chaos-tests/mutants.py [NAME...]

The copy is built once, into the same target folder, with every bug in it behind an environment variable; the workspace itself
is not touched, and its own executable is built again at the end. A place in the source that is not found any more is an error.
Needs ten minutes. Ends with `N passed, N failed`.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")

# What switches a bug on: one is chosen by its name.
SWITCH = ("domain/src/lib.rs", "pub mod approval;",
          'pub fn mutant(name: &str) -> bool {\n    std::env::var("QUORATE_MUTANT").is_ok_and(|set| set == name)\n}\npub mod approval;')

# Name: the fault under which it shows, a promise that has to be named, and the places in the source.
MUTANTS = {
    "answers are not remembered under their request id": ("lost-replies", "exactly once", [
        ("domain/src/machine.rs", "    if let Some(answer) = view.get::<Answer>",
         "    if crate::mutant(NAME) {\n        return Ok(None);\n    }\n    if let Some(answer) = view.get::<Answer>")]),
    "fencing tokens are not checked": ("none", "fenced writes in token order", [
        ("domain/src/machine.rs", "        Some(token) => punchcard::check_token",
         "        Some(_) if crate::mutant(NAME) => Ok(None),\n        Some(token) => punchcard::check_token")]),
    "leases end after half their time": ("none", "no early expiry", [
        ("domain/src/punchcard.rs", "deadline: at.lease_now.plus_ms(ask.ttl_ms())",
         "deadline: at.lease_now.plus_ms(ask.ttl_ms() / if crate::mutant(NAME) { 2 } else { 1 })"),
        ("domain/src/punchcard.rs", "card.deadline = at.lease_now.plus_ms(card.ttl_ms)",
         "card.deadline = at.lease_now.plus_ms(card.ttl_ms / if crate::mutant(NAME) { 2 } else { 1 })")]),
    "a session is saved over any revision": ("none", "linearizable: session", [
        ("domain/src/session.rs", "        let expected = self.expected_revision.filter",
         "        if crate::mutant(NAME) {\n            return None;\n        }\n        let expected = self.expected_revision.filter")]),
    "a decided approval is decided again": ("none", "nothing unexpected", [
        ("domain/src/approval.rs", "            decided @ (ApprovalStatus::Approved", "            _ if crate::mutant(NAME) => {}\n            decided @ (ApprovalStatus::Approved")]),
    "reads do not ask a quorum": ("partition-leader", "linearizable: fact", [
        ("raft/src/read.rs", "            Consistency::Linearizable => {",
         "            Consistency::Linearizable if quorate_domain::mutant(NAME) => self.view(Some(Duration::ZERO)),\n"
         "            Consistency::Linearizable => {")]),
}


def put(copy, file, old, new):
    text = (copy / file).read_text()
    if text.count(old) != 1:
        sys.exit(f"{file} has {text.count(old)} places that read {old!r}; the mutant has to be written anew")
    (copy / file).write_text(text.replace(old, new))


def build(folder):
    subprocess.run(["cargo", "build", "--workspace"], cwd=folder, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)}, check=True)


def found(name, nemesis, promise, chaos, mutant):
    """Whether a run with the bug switched on names the promise that it breaks."""
    command = [str(chaos), "run", "--nemesis", nemesis, "--seconds", "25", "--json"]
    done = subprocess.run(command, env={**os.environ, "QUORATE": str(mutant), "QUORATE_MUTANT": name}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=600)
    summary = json.loads(done.stdout or '{"properties": []}')
    broken = [prop["name"] for prop in summary["properties"] if prop["findings"]]
    ok = done.returncode == 1 and promise in broken
    print(f"{'ok    ' if ok else 'FAILED'} {name}: exit {done.returncode}, broken: {', '.join(broken) or 'nothing'}", flush=True)
    return ok


def main():
    chosen = {name: mutant for name, mutant in MUTANTS.items() if not sys.argv[1:] or any(word in name for word in sys.argv[1:])}
    with tempfile.TemporaryDirectory(prefix="quorate-mutants-") as home:
        # What runs keep of a cluster that broke goes with the folder.
        os.environ["TMPDIR"] = home
        copy = pathlib.Path(home) / "copy"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for file in filter(None, files):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, copy / file)
        put(copy, *SWITCH)
        for name, (_, _, places) in MUTANTS.items():
            for file, old, new in places:
                put(copy, file, old, new.replace("NAME", json.dumps(name)))
        try:
            build(copy)
            mutant, chaos = (shutil.copy2(TARGET / "debug" / name, home) for name in ("quorate", "quorate-chaos"))
        finally:
            # Cargo takes what it made of the copy for what it would make of these, as long as they are not newer.
            for file in {SWITCH[0], *(file for _, _, places in MUTANTS.values() for file, _, _ in places)}:
                (ROOT / file).touch()
            build(ROOT)
        passed = sum(found(name, nemesis, promise, chaos, mutant) for name, (nemesis, promise, _) in chosen.items())
    print(f"{passed} passed, {len(chosen) - passed} failed")
    sys.exit(0 if chosen and passed == len(chosen) else 1)


if __name__ == "__main__":
    main()
