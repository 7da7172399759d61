#!/usr/bin/env python3
"""Puts bugs into a copy of the product, one at a time, and sees that the simulation finds each.

    chaos-tests/mutants.py [--table] [NAME...]
    chaos-tests/mutants.py --places

The copy is built once, into the same target folder, with every bug in it behind an environment variable; the workspace itself
is not touched, and its own executables are built again at the end, so that what ships can't have one. Together with the bugs that
`quorate-chaos sim --plants` puts in at seams (its disk, its clocks), these are the proof of the checks. A place in the source that is
not found any more is an error. Each bug has a number of seeds within which it has to be found, by what names it. `--table` prints the
table of both kinds as it stands in docs/chaos.md. `--places` builds nothing, and looks only whether every place is found. Ends with
`N passed, N failed`.
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

# Name: the workload that shows it, the seeds that may be needed, what the finding has to begin with (one of these), and the places in
# the source.
MUTANTS = {
    "answers are not remembered under their request id": ("facts: requests sent again late", 10, ["not exactly once"], [
        ("domain/src/machine.rs", "    if let Some(answer) = view.get::<Answer>",
         "    if crate::mutant(NAME) {\n        return Ok(None);\n    }\n    if let Some(answer) = view.get::<Answer>")]),
    "a retry goes out under a new request id": ("facts: replies lost behind cuts and crashes", 20, ["not exactly once"], [
        ("gateway/src/cluster.rs", "            let attempt = async { node.client.clone().propose(request.clone()).await };",
         "            let mut request = request.clone();\n            if asked > 1 && quorate_domain::mutant(NAME) {\n"
         "                request.request_id = format!(\"{}-{asked}\", request.request_id);\n            }\n"
         "            let attempt = async { node.client.clone().propose(request.clone()).await };")]),
    "fencing tokens are not checked": ("leases: writes under a lost card", 10, ["an old token passes"], [
        ("domain/src/machine.rs", "        Some(token) => punchcard::check_token",
         "        Some(_) if crate::mutant(NAME) => Ok(None),\n        Some(token) => punchcard::check_token")]),
    "leases end after half their time": ("leases: rivals that try again and again", 10, ["two holders", "a card for"], [
        ("domain/src/punchcard.rs", "deadline: at.lease_now.plus_ms(lasts_ms),",
         "deadline: at.lease_now.plus_ms(lasts_ms / if crate::mutant(NAME) { 2 } else { 1 }),")]),
    "a new leader lets all leases begin anew": ("leases: one let go while leadership moves", 10, ["a card for"], [
        ("raft/src/clock.rs", "            self.counted = Some((term, now));\n            return 0;",
         "            let late = if quorate_domain::mutant(NAME) { 10 } else { 0 };\n"
         "            self.counted = Some((term, now + Duration::from_secs(late)));\n            return 0;")]),
    "one replica in three does not end leases": ("leases let go; states compared at each commit", 10, ["at revision", "two holders", "the nodes", "revision"], [
        ("domain/src/punchcard.rs", "    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::PunchcardByDeadline, at.lease_now)? {",
         "    static SWEEPS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);\n"
         "    if crate::mutant(NAME) && SWEEPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3 == 0 {\n        return Ok(());\n    }\n"
         "    for Lapsed { tenant, id } in deadline::lapsed(tx, Kind::PunchcardByDeadline, at.lease_now)? {")]),
    "a session is saved over any revision": ("sessions: saved over what was read", 10, ["not linearizable: session"], [
        ("domain/src/session.rs", "        let expected = self.expected_revision.filter",
         "        if crate::mutant(NAME) {\n            return None;\n        }\n        let expected = self.expected_revision.filter")]),
    "a decided approval is decided again": ("approvals: two operators at once", 10, ["not linearizable: approval", "not decided once"], [
        ("domain/src/approval.rs", "            decided @ (ApprovalStatus::Approved", "            _ if crate::mutant(NAME) => {}\n            decided @ (ApprovalStatus::Approved"),
        # A second receipt of one id would stop the node, which is another finding.
        ("domain/src/approval.rs", "    let receipt_id = format!(\"ad_{}\", approval.request_id);",
         "    let again = if crate::mutant(NAME) { at.revision.0.to_string() } else { String::new() };\n"
         "    let receipt_id = format!(\"ad_{}{again}\", approval.request_id);")]),
    "a decision gets two receipts": ("receipts: counted against what watchers were told", 10, ["the log of receipts"], [
        ("domain/src/approval.rs", "    approval.receipt_body_hash = Some(prove(",
         "    if crate::mutant(NAME) {\n        let again = format!(\"{receipt_id}-again\");\n"
         "        prove(tx, at, approval, &again, decision, &reviewer, notes.as_deref())?;\n    }\n"
         "    approval.receipt_body_hash = Some(prove(")]),
    "one event in seven is not told": ("watches: compared with each other and with every write", 10, ["watcher"], [
        ("domain/src/event.rs", "    let event = Event { revision: at.entry,",
         "    if at.entry.0 % 7 == 0 && crate::mutant(NAME) {\n        return Ok(());\n    }\n    let event = Event { revision: at.entry,")]),
    "a watch goes on one revision too late": ("watches that move from node to node", 20, ["watcher"], [
        ("gateway/src/events.rs", "                self.stream = self.cluster.watch(&self.caller, self.through).await;",
         "                let late = u64::from(self.through.0 > 0 && quorate_domain::mutant(NAME));\n"
         "                self.stream = self.cluster.watch(&self.caller, Revision(self.through.0 + late)).await;")]),
    "reads do not ask a quorum": ("facts, sessions: reads behind a cut", 20, ["revisions do not rise", "not linearizable"], [
        ("raft/src/read.rs", "            Consistency::Linearizable => {",
         "            Consistency::Linearizable if quorate_domain::mutant(NAME) => self.view(Some(Duration::ZERO)),\n"
         "            Consistency::Linearizable => {")]),
    "a minority answers when nobody confirms the leader": ("facts, sessions: reads behind a cut", 20, ["revisions do not rise", "not linearizable"], [
        ("raft/src/read.rs", "                let index = self.index(deadline).await?;",
         "                let index = match self.index(Instant::now() + Duration::from_millis(300)).await {\n"
         "                    Ok(index) => index,\n                    Err(_) if quorate_domain::mutant(NAME) => self.applied.index(),\n"
         "                    Err(_) => self.index(deadline).await?,\n                };")]),
    "a follower does not wait until it has applied what it reads": ("facts, sessions: reads through any node", 20, ["revisions do not rise", "not linearizable"], [
        ("raft/src/read.rs", "                self.wait_applied(index, deadline).await?;",
         "                if !quorate_domain::mutant(NAME) {\n                    self.wait_applied(index, deadline).await?;\n                }")]),
}


def put(copy, file, old, new):
    text = (copy / file).read_text()
    if text.count(old) != 1:
        sys.exit(f"{file} has {text.count(old)} places that read {old!r}; the mutant has to be written anew")
    (copy / file).write_text(text.replace(old, new))


def build(folder):
    subprocess.run(["cargo", "build", "--workspace"], cwd=folder, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)}, check=True)


def found(name, seeds, words, chaos):
    """How many seeds it took to find the bug, and what it was found as; or None."""
    for seed in range(1, seeds + 1):
        command = [str(chaos), "sim", "--seed", str(seed), "--seeds", "1", "--json"]
        done = subprocess.run(command, env={**os.environ, "RUST_LOG": "off", "QUORATE_MUTANT": name}, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=600)
        violations = json.loads(done.stdout or '{"violations": []}')["violations"]
        named = [line for line in violations if any(line.startswith(word) or f" {word}" in line for word in words)]
        if done.returncode == 1 and named:
            return seed, named[0]
        if violations:
            print(f"       {name}: seed {seed} shows something else: {violations[0]}", flush=True)
    return None


def tell(row):
    word = "ok    " if row["took"] else "FAILED"
    print(f"{word} {row['bug']}: {row['took'] or '-'} of {row['may_take']} seeds: {row['found_as'][:120]}", flush=True)


def look_for_places():
    """Whether each place in the source is there, once."""
    everywhere = [SWITCH, *(place for _, _, _, places in MUTANTS.values() for place in places)]
    lost = [f"{file}: {old!r}" for file, old, _ in everywhere if (ROOT / file).read_text().count(old) != 1]
    for place in lost:
        print(f"FAILED not found once: {place}")
    print(f"{len(everywhere) - len(lost)} passed, {len(lost)} failed")
    sys.exit(1 if lost else 0)


def main():
    if "--places" in sys.argv:
        look_for_places()
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    chosen = {name: mutant for name, mutant in MUTANTS.items() if not words or any(word in name for word in words)}
    rows = []
    with tempfile.TemporaryDirectory(prefix="quorate-mutants-") as home:
        copy = pathlib.Path(home) / "copy"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for file in filter(None, files):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, copy / file)
        put(copy, *SWITCH)
        for name, (_, _, _, places) in MUTANTS.items():
            for file, old, new in places:
                put(copy, file, old, new.replace("NAME", json.dumps(name)))
        try:
            build(copy)
            chaos = shutil.copy2(TARGET / "debug" / "quorate-chaos", home)
        finally:
            # Cargo takes what it made of the copy for what it would make of these, as long as they are not newer.
            for file in {SWITCH[0], *(file for _, _, _, places in MUTANTS.values() for file, _, _ in places)}:
                (ROOT / file).touch()
            build(ROOT)
        for name, (workload, seeds, words, _) in chosen.items():
            what = found(name, seeds, words, chaos)
            row = {"bug": name, "workload": workload, "took": what and what[0], "may_take": seeds, "found_as": what[1] if what else "NOT FOUND"}
            rows.append(row)
            tell(row)
        if "--table" in sys.argv:
            # The others need no change of the product.
            planted = subprocess.run([str(chaos), "sim", "--plants", "--json"], env={**os.environ, "RUST_LOG": "off"},
                                     stdin=subprocess.DEVNULL, capture_output=True, text=True)
            for row in json.loads(planted.stdout):
                rows.append(row)
                tell(row)
            print("\n| bug | workload that shows it | seeds taken | may take | found as |\n|---|---|--:|--:|---|")
            for row in rows:
                words = row["found_as"][:70].replace("|", "/")
                print(f"| {row['bug']} | {row['workload']} | {row['took'] or '-'} | {row['may_take']} | {words} |")
    passed = sum(row["took"] is not None for row in rows)
    print(f"{passed} passed, {len(rows) - passed} failed")
    sys.exit(0 if rows and passed == len(rows) else 1)


if __name__ == "__main__":
    main()
