"""Repositories: a scan on the developer's machine, what the team reads of it, and what a second scan costs."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402

FILES = {
    "Cargo.toml": "",
    "src/lib.rs": '//! Serves.\nfn router() { Router::new().route("/v1/projects", get(http::list).post(http::create)); }\n',
    "src/http.rs": "//! Answers requests.\npub fn list() { store::rows(1); store::rows(2); }\npub fn create() { check(); store::insert(); }\nfn check() {}\n",
    "src/store.rs": "//! Keeps projects. SECRET-IN-THE-SOURCE\npub fn rows(n: u8) { let key = \"SECRET-IN-THE-SOURCE\"; }\npub fn insert() {}\n",
}


class Repositories(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="quorate-scan-")
        cls.root = pathlib.Path(cls.home.name) / "Projects API"
        for name, text in FILES.items():
            path = cls.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        # The gateway of this deployment may read one folder itself.
        cls.own = cls.root.parent / "own"
        (cls.own / "app").mkdir(parents=True)
        (cls.own / "app/main.py").write_text('@app.get("/health")\ndef health():\n    return ok()\n')
        cls.deployment = Deployment(environment={"QUORATE_GATEWAY_SCAN_ROOTS": json.dumps([str(cls.own)])})

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()
        cls.home.cleanup()

    def client(self, who="agent-a"):
        return Client(self.deployment.info["http"], self.deployment.token(who))

    def scan(self, *words, who="agent-a"):
        """Runs `quorate scan`, and answers its JSON."""
        environment = {**os.environ, "XDG_CACHE_HOME": self.home.name}
        command = [str(executable()), "scan", str(self.root), "--as", who, "--data", str(self.deployment.data), "--json", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_what_a_scan_finds_is_read_by_the_whole_team_and_by_no_other(self):
        tried = self.scan("--dry-run")
        self.assertEqual((tried["files"], tried["routes"], "scan_id" in tried), (3, 2, False))
        first = self.scan()
        self.assertEqual((first["repo_id"], first["parts_sent"] > 0), ("projects-api", True))

        mate = self.client("agent-b")
        repos = mate.ok("list_repos", tenant_id="default")["repos"]
        self.assertEqual([(repo["repo_id"], repo["last_scan_id"]) for repo in repos if repo["repo_id"] == "projects-api"],
                         [("projects-api", first["scan_id"])])
        shown = mate.ok("get_workspace_storyline", endpoint="POST /v1/projects", repo_id="projects-api")
        self.assertEqual(shown["tree"], "POST /v1/projects  create\n"
                                        "src/http.rs::create - Answers requests.\n"
                                        "└── src/store.rs::insert - Keeps projects. SECRET-IN-THE-SOURCE\n"
                                        "2 files, 1 deep, 0 branches cut off\n\n")
        text = mate.call("get_workspace_storyline", {"endpoint": "POST /v1/projects", "repo_id": "projects-api"}).text
        self.assertEqual(text, shown["tree"])
        graph = mate.ok("get_workspace_storyline", format="json", repo_id="projects-api")
        self.assertEqual(sorted(file["p"] for file in graph["files"]), ["src/http.rs", "src/lib.rs", "src/store.rs"])
        paths = {file["i"]: file["p"] for file in graph["files"]}
        self.assertEqual([[paths[file] for file in route["chain"]] for route in graph["routes"]], [["src/http.rs", "src/store.rs"]] * 2)

        stranger = self.client("other-tenant")
        self.assertIn("no repository", stranger.call("get_workspace_storyline", {"repo_id": "projects-api"}).text)

        # What has not changed is neither parsed nor sent again; without documentation no line of the source is there.
        again = self.scan()
        self.assertEqual((again["unchanged"], again["parts_sent"]), (3, 0))
        (self.root / "src/store.rs").write_text(FILES["src/store.rs"] + "fn more() { check(); }\n")
        changed = self.scan("--no-docs")
        self.assertEqual(changed["unchanged"], 2)
        bare = mate.ok("get_workspace_storyline", format="json", repo_id="projects-api")
        self.assertNotIn("SECRET", json.dumps(bare))

    def test_another_folder_of_the_same_name_takes_no_repository_over_and_a_clone_of_the_same_remote_shares_it(self):
        home = pathlib.Path(self.home.name)
        one, two = home / "one/twin", home / "two/twin"
        for root in (one, two):
            root.mkdir(parents=True)
            (root / "main.py").write_text("def f():\n    return 1\n")

        def scan(root, *words):
            command = [str(executable()), "scan", str(root), "--as", "agent-a", "--data", str(self.deployment.data), "--json", *words]
            done = subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": self.home.name}, capture_output=True, text=True, timeout=120)
            return done.returncode, json.loads(done.stdout)

        def root():
            repos = self.client().ok("list_repos", tenant_id="default")["repos"]
            return next((repo["root_path"], repo["last_scan_id"]) for repo in repos if repo["repo_id"] == "twin")

        code, first = scan(one)
        self.assertEqual((code, root()), (0, (str(one), first["scan_id"])))
        code, refused = scan(two)
        self.assertEqual((code, refused["code"]), (1, -32602))
        self.assertTrue(all(word in refused["error"] for word in (str(one), str(two), "--repo NAME")), refused)
        self.assertEqual(root(), (str(one), first["scan_id"]))
        for place in (one, two):
            subprocess.run(["git", "init", "--quiet", str(place)], check=True)
            subprocess.run(["git", "-C", str(place), "remote", "add", "origin", "https://user:word@example.org/acme/twin.git"], check=True)
        self.assertEqual(scan(one)[0], 0)
        code, shared = scan(two)
        self.assertEqual((code, root()), (0, (str(two), shared["scan_id"])))

    def test_a_folder_that_the_gateway_may_read_is_scanned_when_it_is_registered(self):
        client = self.client()
        tenant = "default"
        made = client.ok("register_repo", tenant_id=tenant, root_path=str(self.own / "app"))
        self.assertEqual((made["repo_id"], made["last_scan_id"][:5]), ("app", "scan_"))
        self.assertIn("GET /health  health", client.ok("get_workspace_storyline", repo_id="app")["tree"])
        # Links out of it, and folders beside it, are not.
        (self.own / "out").symlink_to(self.root)
        for path in (self.own / "out", self.root, self.own / ".." / "own2"):
            other = client.ok("register_repo", tenant_id=tenant, root_path=str(path), repo_id="elsewhere")
            self.assertIn("quorate scan", other["not_scanned"])
            self.assertNotIn("last_scan_id", other)


if __name__ == "__main__":
    main()
