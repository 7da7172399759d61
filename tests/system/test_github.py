"""The corpus of GitHub: read once by one gateway, gone on with by another, and told as it is there."""
import hashlib
import hmac
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from github import GitHub  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

TOKEN, SECRET = "ghp_testtoken", "webhook-secret"
REPO = "acme/api"


class Corpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="quorate-github-")
        home = pathlib.Path(cls.home.name)
        (home / "token").write_text(TOKEN + "\n")
        (home / "secret").write_text(SECRET)
        cls.git = home / "tools.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(cls.git)], check=True)
        cls.github = GitHub(TOKEN)
        # Enough for many pages of each list.
        for n in range(23):
            cls.github.commit(f"Commit {n} mends the receipt", 4_000 - n)
        for n in range(12):
            cls.github.issue(f"Issue {n}", 3_000 - n, labels=["bug"] if n % 3 == 0 else [])
        # Seven that were changed in the same second: only page numbers lead on there.
        for n in range(7):
            cls.github.issue(f"Pull {n}", 2_000, pull=True)
        for n in range(11):
            cls.github.remark(1, f"Comment {n}", 1_000 - n)
        cls.github.remark(13, "On a line", 500, review=True)
        cls.settings = {
            "QUORATE_GATEWAY_GITHUB_REPOSITORIES": json.dumps([REPO]),
            "QUORATE_GATEWAY_GITHUB_URL": cls.github.url,
            "QUORATE_GATEWAY_GITHUB_TOKEN_FILE": str(home / "token"),
            "QUORATE_GATEWAY_GITHUB_WEBHOOK_SECRET_FILE": str(home / "secret"),
            "QUORATE_GATEWAY_GITHUB_POLL_MS": "3000",
            "QUORATE_GATEWAY_GIT_REPOSITORIES": json.dumps([f"acme/tools={cls.git}"]),
        }
        # The first deployment knows its tenant only once it runs, so its own gateway reads nothing.
        cls.deployment = Deployment()
        cls.tenant = "default"
        cls.settings["QUORATE_GATEWAY_GITHUB_TENANT"] = cls.tenant
        cls.deployment._environment |= cls.settings

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()
        cls.github.stop()
        cls.home.cleanup()

    def client(self, who="agent-a"):
        return Client(self.deployment.info["http"], self.deployment.token(who))

    def gateway(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process, log = self.deployment.spawn("gateway", "--data", self.deployment.data, "--listen", f"127.0.0.1:{port}")

        def ready():
            assert process.poll() is None, f"the gateway ended: {log.read_text()[-500:]}"
            try:
                return Client(f"http://127.0.0.1:{port}", None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(ready, 60, "the gateway is ready")
        return process, f"http://127.0.0.1:{port}", log

    def all(self, tool, **arguments):
        """All pages of a list: entities in order."""
        client, found, cursor = self.client(), [], {}
        while True:
            page = client.ok(tool, **arguments, **cursor)
            found += [fact["entity"] for fact in page["facts"]]
            if "next_cursor" not in page:
                return found
            cursor = {"cursor": page["next_cursor"]}

    def expected(self):
        with self.github.lock:
            newest = sorted(self.github.commits, key=lambda commit: commit["commit"]["committer"]["date"], reverse=True)
            is_open = [issue for issue in self.github.issues if issue["state"] == "open"]
            return {
                "github_recent_commits": {f"github::{REPO}::commit/{commit['sha']}" for commit in newest},
                "github_open_prs": {f"github::{REPO}::pr/{issue['number']}" for issue in is_open if "pull_request" in issue},
                "github_open_issues": {f"github::{REPO}::issue/{issue['number']}" for issue in is_open if "pull_request" not in issue},
            }

    def seen(self):
        return {tool: set(self.all(tool, repo=REPO)) for tool in self.expected()}

    def test_a_corpus_is_read_by_one_gateway_and_by_the_next_when_that_one_is_killed(self):
        # Nothing is read yet, and the answer says which setting it takes.
        empty = self.client().ok("github_search", query="receipt")
        self.assertEqual((empty["count"], "github_repositories" in empty["note"]), (0, True))

        # The first reader is killed in the middle of its first reading, between two pages of commits.
        reached, gone = threading.Event(), threading.Event()

        def hook(path):
            if "page=3" in path and "/commits" in path:
                reached.set()
                # No answer, so that it can't have gone on.
                gone.wait(60)
        self.github.hook = hook
        first, _, first_log = self.gateway()
        self.assertTrue(reached.wait(60), "the first gateway reads")
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        self.github.hook = lambda path: None
        gone.set()
        with self.github.lock:
            asked = len(self.github.requests)

        _, second_url, second_log = self.gateway()
        third, _, _ = self.gateway()
        until(lambda: self.seen() == self.expected(), 90, "all is read")
        # Remarks are read last.
        until(lambda: len(self.all("github_comments_since")) == 12, 90, "all remarks are read")
        with self.github.lock:
            after = self.github.requests[asked:]
        commits = [path for path in after if "/commits" in path]
        self.assertIn("&page=3", commits[0], "the next reader goes on where the first one was, not at the front")
        # Newest first, each once.
        times = {f"github::{REPO}::commit/{commit['sha']}": commit["commit"]["committer"]["date"] for commit in self.github.commits}
        listed = self.all("github_recent_commits", repo=REPO)
        self.assertEqual([times[entity] for entity in listed], sorted(times.values(), reverse=True))
        documented = {
            "commit": {"sha", "message", "author_name", "author_login", "committed_at", "parents", "html_url"},
            "pr": {"title", "state", "author_login", "head_sha", "base_branch", "body", "html_url"},
            "issue": {"title", "state", "labels", "body", "html_url"},
            "comment": {"author_login", "body", "posted_at", "parent_number", "html_url"},
        }
        lists = [("github_recent_commits", {"repo": REPO}), ("github_open_prs", {"repo": REPO}), ("github_open_issues", {"repo": REPO}),
                 ("github_comments_since", {}), ("github_search", {"query": "receipt"})]
        for tool, arguments in lists:
            for fact in self.client().ok(tool, **arguments)["facts"]:
                kind = fact["entity"].rsplit("::", 1)[1].split("/")[0]
                self.assertEqual(documented[kind] - set(json.loads(fact["value"])), set(), fact)
        comments = self.all("github_comments_since")
        self.assertEqual(comments[0], f"github::{REPO}::comment/review-1")
        self.assertEqual(sorted(comments[1:]), sorted(f"github::{REPO}::comment/{n}" for n in range(1, 12)))
        since = json.loads(self.client().ok("github_comments_since", limit=5)["facts"][4]["value"])["posted_at"]
        self.assertEqual(self.all("github_comments_since", since=since), comments[:5])
        self.assertEqual(len(self.all("github_open_issues", repo=REPO, label="bug")), 4)
        self.assertEqual(len(self.all("github_search", query="RECEIPT mends", repo=REPO)), 23)
        self.assertEqual(self.all("github_search", query="line"), [f"github::{REPO}::comment/review-1"])
        self.assertEqual(Client(self.deployment.info["http"], self.deployment.token("other-tenant")).ok("github_search", query="receipt")["count"], 0)

        # What has not changed is told by 304, and no entry of the log is made for it.
        def quiet():
            before = self.github.not_modified
            until(lambda: self.github.not_modified >= before + 10, 30, "nothing has changed")
            return True
        quiet()

        # A hint brings what is new at once; one that nobody signed does not.
        sha = self.github.commit("Late news", 0)
        self.github.change(1, state="closed", closed_at="2026-01-01T00:00:00Z")
        body = json.dumps({"repository": {"full_name": "Acme/API"}}).encode()
        signature = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        path = "/v1/integrations/github/webhook"
        there = Client(second_url, None)
        self.assertEqual(there.send("POST", path, body, {"X-Hub-Signature-256": signature[:-1] + "0"}).status, 401)
        self.assertEqual(there.send("POST", path, body).status, 401)
        self.assertEqual(there.send("POST", path, body, {"X-Hub-Signature-256": signature}).json, {"hinted": True})
        until(lambda: self.seen() == self.expected(), 30, "what is new is read")
        self.assertEqual(self.all("github_recent_commits", repo=REPO)[0], f"github::{REPO}::commit/{sha}")

        # A merge brings old commits, far behind the newest page.
        old = self.github.commit("Old work", 3_990, parents=[])
        self.github.commit("Merge old work", 0, parents=[sha, old])
        until(lambda: self.seen() == self.expected(), 30, "the merged commits are read")

        # Limits are waited for, faults go by.
        with self.github.lock:
            self.github.faults += [(500, {}), (429, {"Retry-After": "2"}),
                                   (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 3)})]
        self.github.issue("After the limits", 0)
        until(lambda: self.seen() == self.expected(), 60, "limits and faults are over")
        self.assertEqual(self.github.faults, [])

        # A repository on this machine is read too.
        work = pathlib.Path(self.home.name) / "work"
        subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
        for message in ("First tool", "Second tool"):
            subprocess.run(["git", "-C", str(work), "-c", "user.name=Jon", "-c", "user.email=jon@example.org", "commit", "-q",
                            "--allow-empty", "-m", message], check=True)
        subprocess.run(["git", "-C", str(work), "push", "-q", str(self.git), "main"], check=True)
        until(lambda: len(self.all("github_recent_commits", repo="acme/tools")) == 2, 30, "local commits are read")

        # A repository that nobody reads is no empty one, and operators see what is read.
        told = self.client().ok("github_recent_commits", repo="acme/typo")
        self.assertEqual((told["count"], "`acme/typo` is not among" in told["note"]), (0, True))
        self.assertNotIn("note", self.client().ok("github_recent_commits", repo="acme/tools"))
        sources = self.client().send("GET", "/v1/corpus/sources").json["sources"]
        self.assertEqual({source["repo"]: source.get("problem") for source in sources}, {REPO: None, "acme/tools": None})
        self.assertTrue(all(source["read_at_unix_ms"] > 0 for source in sources), sources)

        # One gateway reads at a time, and the token is in no log.
        held = [card for card in self.client().ok("list_punchcards", status="held")["punchcards"] if "github" in card["resource"]]
        self.assertEqual(len(held), 1)
        for log in (first_log, second_log):
            self.assertNotIn(TOKEN, log.read_text())
        third.terminate()
        third.wait()


if __name__ == "__main__":
    main()
