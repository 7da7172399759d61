"""The edit guard as hosts and git run it: `quorate hook`, `quorate guard`, and the gateway's HTTP hook, against true cards."""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402


class EditGuard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        cls.home = tempfile.TemporaryDirectory(prefix="quorate-guard-")

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()
        cls.home.cleanup()

    def setUp(self):
        self.folder = f"src-{uuid.uuid4().hex[:8]}"
        self.repo = pathlib.Path(self.home.name).resolve() / self.folder.replace("src", "repo")
        (self.repo / self.folder).mkdir(parents=True)
        for name in ("a.rs", "b.rs"):
            (self.repo / self.folder / name).write_text("x\n")
        self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")

    # -------- the one place that knows how things are called

    def client(self, who):
        return Client(self.deployment.url("").rstrip("/"), self.deployment.token(who))

    def environment(self, who, **more):
        state = pathlib.Path(self.home.name) / "state"
        # Nothing of the machine's own git, and our executable first in PATH.
        return {**os.environ, "QUORATE_URL": self.deployment.info["mcp"], "QUORATE_TOKEN": self.deployment.token(who),
                "QUORATE_HOOK_JOURNAL": str(state / "journal"), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
                "PATH": f"{executable().resolve().parent}:{os.environ['PATH']}", **more}

    def git(self, *words, who="agent-b", ok=True, **more):
        done = subprocess.run(["git", "-C", str(self.repo), "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
                              env=self.environment(who, **more), capture_output=True, text=True, timeout=60)
        if ok:
            self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def hook(self, event, payload, *words, who="agent-b", **more):
        start = time.monotonic()
        done = subprocess.run([str(executable()), "hook", event, *words], input=json.dumps(payload), env=self.environment(who, **more),
                              capture_output=True, text=True, timeout=60)
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return done, time.monotonic() - start

    def edit(self, name="a.rs", session="s1"):
        return {"session_id": session, "cwd": str(self.repo), "hook_event_name": "PreToolUse", "tool_name": "Edit",
                "tool_input": {"file_path": str(self.repo / self.folder / name)}}

    def hold(self, name="a.rs"):
        self.client("agent-a").ok("punch_in", resource=f"file://{self.folder}/{name}", holder_passport="agent-a", ttl_ms=1_800_000)

    def holder(self, name):
        found = self.client("operator").ok("list_punchcards", resource=f"file://{self.folder}/{name}", status="held")
        return [card["holder_passport"] for card in found["punchcards"]]

    # -------- cases

    def test_an_edit_leases_its_file_and_the_end_of_the_session_gives_back_that_alone(self):
        self.client("agent-b").ok("punch_in", resource=f"file://{self.folder}/own.rs", holder_passport="agent-b")
        for name in ("a.rs", "own.rs"):
            done, _ = self.hook("pre-tool-use", self.edit(name))
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            self.assertEqual(self.holder(name), ["agent-b"])
        denied, _ = self.hook("pre-tool-use", self.edit(), who="agent-a")
        self.assertEqual(denied.returncode, 2)
        self.assertIn("agent-b", denied.stderr)
        self.hook("session-end", {**self.edit(session="another"), "hook_event_name": "SessionEnd"})
        self.assertEqual(self.holder("a.rs"), ["agent-b"], "another session's end gave it back")
        self.hook("session-end", {**self.edit(), "hook_event_name": "SessionEnd"})
        self.assertEqual((self.holder("a.rs"), self.holder("own.rs")), ([], ["agent-b"]))

    def test_a_denied_patch_leases_none_of_its_files(self):
        self.hold("a.rs")
        patch = f"*** Begin Patch\n*** Update File: {self.folder}/b.rs\n*** Update File: {self.folder}/a.rs\n*** End Patch"
        for tool, command in (("apply_patch", patch), ("Bash", f"apply_patch <<'EOF'\n{patch}\nEOF")):
            payload = {**self.edit(), "turn_id": "1", "tool_name": tool, "tool_input": {"command": command}}
            done, _ = self.hook("pre-tool-use", payload, "--host", "codex")
            self.assertEqual(done.returncode, 2)
            self.assertIn("agent-a", done.stderr)
            self.assertEqual(self.holder("b.rs"), [])

    def test_a_name_that_nobody_can_lease_hides_no_held_file(self):
        self.hold("a.rs")
        patch = f"*** Begin Patch\n*** Add File: {'x' * 600}\n*** Update File: {self.folder}/{{}}\n*** End Patch"
        for name, policy, code in (("a.rs", "open", 2), ("b.rs", "open", 0), ("b.rs", "closed", 2)):
            payload = {**self.edit(), "tool_name": "apply_patch", "tool_input": {"command": patch.format(name)}}
            done, _ = self.hook("pre-tool-use", payload, QUORATE_HOOK_POLICY=policy)
            self.assertEqual(done.returncode, code, (name, policy, done.stderr))

    def test_an_edit_that_is_done_on_another_s_file_is_told(self):
        self.hold()
        done, _ = self.hook("post-tool-use", {**self.edit(), "hook_event_name": "PostToolUse"})
        self.assertEqual(done.returncode, 0)
        self.assertIn("agent-a", json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"])

    def test_a_session_hears_at_its_start_what_others_hold(self):
        self.hold()
        done, _ = self.hook("session-start", {"session_id": "s", "cwd": str(self.repo), "hook_event_name": "SessionStart"})
        self.assertIn("you are `agent-b`", json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"])

    def test_a_session_hears_at_its_start_which_configuration_nobody_has_audited(self):
        for name, text in (("CLAUDE.md", self.folder), (".mcp.json", "{}"), (".claude/settings.json", f"// {self.folder}")):
            (self.repo / name).parent.mkdir(exist_ok=True)
            (self.repo / name).write_text(text)
        start = {"session_id": "s", "cwd": str(self.repo / self.folder), "hook_event_name": "SessionStart"}

        def told(**more):
            done, seconds = self.hook("session-start", start, HOME=self.home.name, **more)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"], seconds

        said, _ = told()
        digests = {name: hashlib.sha256((self.repo / name).read_bytes()).hexdigest()
                   for name in ("CLAUDE.md", ".mcp.json", ".claude/settings.json")}
        for name, digest in digests.items():
            self.assertIn(f"`{name}` (SHA-256 {digest})", said)
        for name, digest in digests.items():
            self.client("operator").ok("audit_config", path=name, sha256=digest, auditor="ops")
        said, _ = told()
        self.assertIn("you are `agent-b`", said)
        self.assertNotIn("audited", said)
        (self.repo / ".mcp.json").write_text("{ }")
        said, _ = told()
        self.assertIn("`.mcp.json`", said)
        self.assertNotIn("CLAUDE.md", said)
        said, seconds = told(QUORATE_URL="http://127.0.0.1:1")
        self.assertIn("could not be asked", said)
        self.assertLess(seconds, 2.0)

    def test_the_http_hook_decides_the_same(self):
        self.hold()
        def ask(name, who):
            client = self.client(who)
            reply = client.send("POST", "/v1/hook/claude-code", json.dumps(self.edit(name)).encode(), headers={"Quorate-Root": str(self.repo)})
            self.assertEqual(reply.status, 200, reply.text)
            return reply.json
        said = ask("a.rs", "agent-b")["hookSpecificOutput"]
        self.assertEqual((said["hookEventName"], said["permissionDecision"]), ("PreToolUse", "deny"))
        self.assertIn("agent-a", said["permissionDecisionReason"])
        self.assertEqual(ask("a.rs", "agent-a"), {})
        self.assertEqual(ask("b.rs", "agent-b"), {})
        self.assertEqual(self.holder("b.rs"), ["agent-b"])

    def test_what_went_unguarded_is_noted_and_sent_once_a_gateway_answers(self):
        journal = pathlib.Path(self.home.name) / f"journal-{self.folder}"
        kept = {"QUORATE_HOOK_JOURNAL": str(journal)}
        done, _ = self.hook("pre-tool-use", self.edit(), QUORATE_URL="http://127.0.0.1:1", **kept)
        self.assertEqual(done.returncode, 0)
        self.assertIn("unguarded", json.loads(done.stdout)["systemMessage"])
        note = json.loads(journal.read_text())
        self.hook("pre-tool-use", self.edit(), **kept)
        until(lambda: journal.read_text() == "", 30, "the journal is sent")
        history = self.client("agent-b").ok("fact_history", entity="__ops::edit-guard", key=f"unguarded/{note['id']}")
        self.assertEqual(len(history["versions"]), 1)

    def test_a_closed_path_is_denied_when_nobody_can_be_asked_and_others_are_not(self):
        (self.repo / ".quorate.toml").write_text(f'[guard]\nclosed = ["{self.folder}/a.rs"]\n')
        down = {"QUORATE_URL": "http://127.0.0.1:1"}
        self.assertEqual(self.hook("pre-tool-use", self.edit("a.rs"), **down)[0].returncode, 2)
        self.assertEqual(self.hook("pre-tool-use", self.edit("b.rs"), **down)[0].returncode, 0)

    def test_a_commit_and_a_push_of_what_another_holds_are_refused(self):
        installed = subprocess.run([str(executable()), "guard", "install", "--json"], cwd=self.repo, env=self.environment("agent-b"),
                                   capture_output=True, text=True, timeout=60)
        self.assertEqual(json.loads(installed.stdout)["hooks"], {"pre-commit": "installed", "pre-push": "installed"}, installed.stderr)
        (self.repo / self.folder / "a.rs").write_text("changed\n")
        self.hold()
        refused = self.git("commit", "-q", "-am", "second", ok=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("agent-a", refused.stderr)
        self.git("commit", "-q", "-am", "second", who="agent-a")
        bare = pathlib.Path(self.home.name) / f"bare-{self.folder}"
        subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True, capture_output=True)
        self.git("remote", "add", "origin", str(bare))
        self.assertIn("agent-a", self.git("push", "-q", "origin", "HEAD:main", ok=False).stderr)
        self.git("push", "-q", "origin", "HEAD:main", who="agent-a")

        def ci(*words):
            return subprocess.run([str(executable()), "guard", "ci", "HEAD~1..HEAD", *words, "--json"], cwd=self.repo,
                                  env=self.environment("agent-b"), capture_output=True, text=True, timeout=60)
        self.assertEqual(ci().returncode, 1)
        allowed = ci("--passport", "agent-a")
        self.assertEqual((allowed.returncode, json.loads(allowed.stdout)["files"]), (0, 1), allowed.stderr)

    def test_the_hook_path_of_the_repository_and_its_hooks_are_honoured(self):
        hooks = self.repo / "my-hooks"
        hooks.mkdir()
        self.git("config", "core.hooksPath", "my-hooks")
        (hooks / "pre-commit").write_text("#!/bin/sh\necho from-before >&2\n")
        (hooks / "pre-commit").chmod(0o755)
        def guard(verb):
            return subprocess.run([str(executable()), "guard", verb], cwd=self.repo, env=self.environment("agent-b"), check=True,
                                  capture_output=True, text=True, timeout=60).stdout
        guard("install")
        (self.repo / self.folder / "b.rs").write_text("changed\n")
        self.assertIn("from-before", self.git("commit", "-qam", "second").stderr)
        self.assertIn("the hook from before is back", guard("uninstall"))
        self.assertEqual((hooks / "pre-commit").read_text(), "#!/bin/sh\necho from-before >&2\n")

    def test_an_answer_comes_within_300_ms(self):
        self.hold()
        for name, code in (("a.rs", 2), ("b.rs", 0)):
            runs = [self.hook("pre-tool-use", self.edit(name)) for _ in range(5)]
            self.assertEqual({done.returncode for done, _ in runs}, {code})
            # The best of five: the machine that runs the tests has other work too.
            self.assertLess(min(seconds for _, seconds in runs), 0.3)


if __name__ == "__main__":
    main()
