"""The agents that people use, as they come from npm, against a deployment: connected as `quorate connect` writes it, and driven
by a scripted model. They list, call and hear of conflicts, go on when a gateway and the leader die, and edit nothing that another holds.
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from balancer import Balancer  # noqa: E402
from deployment import Deployment, executable, family, until  # noqa: E402
from model import PROMPT, Call, Model, Say  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

PROGRAMS = HERE / "node_modules" / ".bin"
# One newer than the distributions have, which comes with the conformance suite.
NODE = sorted((HERE.parent / "conformance" / "node_modules").glob("node-*/bin"))[:1]
# Nothing takes a tenth of it; an agent that hangs should not take the whole suite with it.
AGENT_SECONDS = 120


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


def setUpModule():
    global DEPLOYMENT
    DEPLOYMENT = Deployment()


def tearDownModule():
    DEPLOYMENT.stop()


def gateway():
    """One more gateway, which nobody starts again: its process and where it is."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    process, log = DEPLOYMENT.spawn("gateway", "--data", DEPLOYMENT.data, "--listen", url.removeprefix("http://"))

    def ready():
        assert process.poll() is None, f"the gateway ended: {log.read_text()[-500:]}"
        try:
            return Client(url, None).send("GET", "/readyz").status == 200
        except Unreachable:
            return False
    until(ready, 60, "the gateway is ready")
    return process, url


class Agent:
    """What every agent has to do. A class for each says what it is called with, and how it names things."""

    # As `quorate connect` knows it, and its executable.
    word = program = None
    # Where hooks and bridges find our executable.
    installed = [executable().resolve().parent]
    # Whether the guard can say something at the start of a session.
    hears_at_start = True

    def arguments(self):
        """After the executable: one prompt, no questions to a person."""
        raise NotImplementedError

    def environment(self):
        """Where its model is, and that it should speak to nobody else."""
        return {}

    def settle(self):
        """What a person sets up before `quorate connect`: the model, and that the project is trusted."""

    def accept(self, environment):
        """What a person accepts after `quorate connect`."""

    def quorate(self, tool, **arguments):
        """A call of a tool of Quorate."""
        return Call(self.prefix + tool, **arguments)

    def look(self, tools):
        """The calls by which the model comes to know these tools, when they are not told from the start."""
        return []

    def edit(self, path, text):
        """The calls that write a line into a file which is there; the last of them does it."""
        raise NotImplementedError

    def shell(self, command):
        """The call that runs a line in the shell."""
        raise NotImplementedError

    # -------- set-up

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quorate-test-")
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name).resolve() / "home"
        self.repo = self.home / "work"
        self.repo.mkdir(parents=True)
        self.git("init", "-q")
        self.model = self.enter(Model())
        self.a, self.b = (Client(DEPLOYMENT.info["http"], DEPLOYMENT.token(who)) for who in ("agent-a", "agent-b"))
        self.settle()

    def enter(self, context):
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def git(self, *words):
        subprocess.run(["git", "-C", str(self.repo), *words], check=True, capture_output=True, timeout=60,
                       env={"PATH": os.environ["PATH"], "HOME": str(self.home)})

    def surroundings(self, url):
        """The whole environment: nothing of the machine's, and the model's API as the proxy, which refuses and notes."""
        path = [*self.installed, *NODE, os.environ["PATH"]]
        return {"HOME": str(self.home), "PATH": ":".join(map(str, path)), "LANG": "C.UTF-8", "TERM": "dumb",
                "HTTP_PROXY": self.model.url, "HTTPS_PROXY": self.model.url, "NO_PROXY": "127.0.0.1",
                "QUORATE_URL": url, "QUORATE_TOKEN": DEPLOYMENT.token("agent-b"), **self.environment()}

    def write(self, path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    def work(self, *script, gateways=(), connect=()):
        """Connects as the program writes it, runs the agent through a script, and gives what the model saw of each call.
        `connect` are more words for `quorate connect`."""
        environment = self.surroundings(",".join(f"{gateway}/mcp" for gateway in gateways or [DEPLOYMENT.info["http"]]))
        words = ["--write", "--yes", "--json", "--project", self.repo, *connect]
        written = self.run_to_its_end([executable(), "connect", self.word, *words], environment)
        self.assertEqual(written.returncode, 0, written.stderr)
        self.accept(environment)
        self.model.play(*script)
        done = self.run_to_its_end([PROGRAMS / self.program, *self.arguments()], environment)
        told = f"{self.program} ended with {done.returncode}: {done.stdout[-3000:]} {done.stderr[-3000:]}"
        if self.model.fault:
            raise self.model.fault
        self.assertEqual(done.returncode, 0, told)
        self.assertGreaterEqual(len(self.model.taken), len(script), f"steps not reached; results {self.model.results}, {told}")
        self.assertEqual(self.model.strangers, [], "asked of other machines")
        return self.model.results

    def run_to_its_end(self, command, environment):
        command = [str(word) for word in command]
        process = subprocess.Popen(command, cwd=self.repo, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace")
        try:
            out, err = process.communicate(timeout=AGENT_SECONDS)
        except subprocess.TimeoutExpired:
            # Some are a script that starts the agent.
            for pid in family(process.pid):
                os.kill(pid, signal.SIGKILL)
            out, err = process.communicate()
            self.fail(f"{command[0]} did not end; results {self.model.results}: {out[-3000:]} {err[-3000:]}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def waiters(self, resource):
        """Who queues for it."""
        # With a connection of its own: it is asked from a thread.
        client = Client(DEPLOYMENT.info["http"], DEPLOYMENT.token("operator"))
        return client.send("GET", f"/v1/punchcards/waiters?resource={resource}").json["waiters"]

    # -------- cases

    def test_it_lists_calls_and_hears_who_holds_what_it_wants(self):
        answer = self.b.send("POST", "/mcp", b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
        everyday = [tool["name"] for tool in answer.json["result"]["tools"]]
        self.assertIn("punch_in", everyday)
        entity, resource = unique("svc"), f"file://{unique('src')}/lib.rs"
        card = self.a.ok("punch_in", resource=resource, holder_passport="agent-a", ttl_ms=60_000)
        punch_in = self.quorate("punch_in", resource=resource, holder_passport="agent-b", ttl_ms=60_000)

        def released(_):
            self.a.ok("punch_out", resource=resource, holder_passport="agent-a", fencing_token=card["fencing_token"])
            return punch_in
        look = self.look(everyday)
        results = self.work(
            *look,
            self.quorate("store_fact", entity=entity, key="owner", value="platform"),
            self.quorate("query_facts", entity=entity),
            punch_in,
            released,
        )
        missing = [name for name in everyday if self.quorate(name).tool not in self.model.tools]
        self.assertEqual(missing, [], f"offered: {sorted(self.model.tools)}")
        stored, queried, refused, granted = results[len(look):]
        self.assertIn("fact_id", stored)
        self.assertIn("platform", queried)
        self.assertIn("agent-a", refused)
        self.assertRegex(refused, r"for another \d+ s\b")
        self.assertIn("`wait_ms`", refused)
        self.assertIn("fencing_token", granted)
        self.assertEqual([row["value"] for row in self.b.ok("query_facts", entity=entity)["rows"]], ["platform"])

    def test_it_goes_on_when_its_gateways_and_the_leader_are_killed(self):
        (first, first_url), (second, second_url) = gateway(), gateway()
        balancer = self.enter(Balancer(first_url, second_url, DEPLOYMENT.info["http"]))
        entity, resource = unique("svc"), f"file://{unique('src')}/lib.rs"
        card = self.a.ok("punch_in", resource=resource, holder_passport="agent-a", ttl_ms=600_000)

        def store(key):
            return self.quorate("store_fact", entity=entity, key=key, value=f"value of {key}")

        def punch_in(**more):
            return self.quorate("punch_in", resource=resource, holder_passport="agent-b", ttl_ms=60_000, **more)

        def first_killed(_):
            self.assertGreater(balancer.open[0], 0, "the agent did not speak to this gateway")
            first.kill()
            first.wait()
            until(lambda: balancer.open[0] == 0, 10, "its connections end")
            return store("after the first gateway")

        def second_killed_meanwhile(_):
            def kill():
                until(lambda: self.waiters(resource), 30, "the call waits")
                second.kill()
                second.wait()
            self.killer = threading.Thread(target=kill, daemon=True)
            self.killer.start()
            return punch_in(wait_ms=60_000)

        def released(_):
            self.killer.join()
            self.assertIsNotNone(second.poll(), "the call ended before its gateway did")
            self.a.ok("punch_out", resource=resource, holder_passport="agent-a", fencing_token=card["fencing_token"])
            return punch_in()

        def leader_killed(_):
            DEPLOYMENT.kill_leader()
            return store("after the leader")
        look = self.look(["store_fact", "query_facts", "punch_in"])
        results = self.work(*look, store("before"), first_killed, second_killed_meanwhile, released, leader_killed,
                            self.quorate("query_facts", entity=entity), gateways=[balancer.url])
        before, after_first, cut, granted, after_leader, queried = results[len(look):]
        for stored in (before, after_first, after_leader):
            self.assertIn("fact_id", stored)
        # Nobody can answer a call whose connection is gone: each agent tells its model so in its own words, and takes the next one on.
        self.assertNotIn("fencing_token", cut)
        self.assertIn("fencing_token", granted)
        rows = {row["key"]: row["value"] for row in self.b.ok("query_facts", entity=entity)["rows"]}
        self.assertEqual(rows, {key: f"value of {key}" for key in ("before", "after the first gateway", "after the leader")})
        for value in rows.values():
            self.assertIn(value, queried)
        # The next case begins with all three.
        DEPLOYMENT.node_pids()

    def test_it_is_not_told_of_a_gateway_that_dies_in_the_middle_of_a_call_when_it_knows_another(self):
        process, url = gateway()
        resource = f"file://{unique('src')}/lib.rs"
        card = self.a.ok("punch_in", resource=resource, holder_passport="agent-a", ttl_ms=600_000)
        ends = []

        def killed_and_then_released():
            until(lambda: self.waiters(resource), 30, "the call waits")
            process.kill()
            ends.append(process.wait())
            self.a.ok("punch_out", resource=resource, holder_passport="agent-a", fencing_token=card["fencing_token"])

        def waiting(_):
            threading.Thread(target=killed_and_then_released, daemon=True).start()
            return self.quorate("punch_in", resource=resource, holder_passport="agent-b", ttl_ms=60_000, wait_ms=60_000)
        *_, granted = self.work(*self.look(["punch_in"]), waiting, gateways=[url, DEPLOYMENT.info["http"]])
        self.assertEqual(ends, [-signal.SIGKILL], "the call ended before its gateway did")
        self.assertIn("fencing_token", granted)
        held = self.b.ok("list_punchcards", resource=resource, status="held")["punchcards"]
        self.assertEqual([card["holder_passport"] for card in held], ["agent-b"])

    def test_it_is_kept_from_a_file_that_another_holds_until_it_is_released(self):
        self.keep_off()
        if self.hears_at_start:
            self.assertIn("you are `agent-b`", self.model.heard)

    def keep_off(self, **more):
        path = self.repo / unique("src") / "plan.md"
        self.write(path, "first\n")
        resource = f"file://{path.relative_to(self.repo)}"
        card = self.a.ok("punch_in", resource=resource, holder_passport="agent-a", ttl_ms=600_000)
        *before, edit = self.edit(path, "second")
        shell = self.shell(f"echo third >> {path.relative_to(self.repo)}")

        def released(_):
            self.assertEqual(path.read_text(), "first\n")
            self.a.ok("punch_out", resource=resource, holder_passport="agent-a", fencing_token=card["fencing_token"])
            return edit

        def leased(_):
            held = self.a.ok("list_punchcards", resource=resource, status="held")["punchcards"]
            self.assertEqual([card["holder_passport"] for card in held], ["agent-b"], "the edit that was let through took no lease")
            return Say("Done.")
        *_, denied, denied_in_shell, allowed = self.work(*before, edit, shell, released, leased, **more)
        for reason in (denied, denied_in_shell):
            self.assertIn("agent-a", reason)
            self.assertRegex(reason, r"\d+ min|\d+ s\b")
        self.assertNotIn("agent-a", allowed)
        self.assertIn("second", path.read_text())


class Codex(Agent, unittest.TestCase):
    word, program, prefix = "codex", "codex", "mcp__quorate."

    def arguments(self):
        # Its sandbox needs more than containers allow.
        return ["exec", "--sandbox", "danger-full-access", PROMPT]

    def environment(self):
        return {"MODEL_KEY": "none"}

    def settle(self):
        self.write(self.home / ".codex" / "config.toml", f"""
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false

[model_providers.scripted]
name = "scripted"
base_url = "{self.model.url}/v1"
wire_api = "responses"
env_key = "MODEL_KEY"

[analytics]
enabled = false

[features]
apps = false
plugins = false
remote_plugin = false
""")

    def accept(self, environment):
        # What `/hooks` does, by the server that its own front ends speak to.
        server = subprocess.Popen([str(PROGRAMS / self.program), "app-server"], cwd=self.repo, env=environment, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # It ends with its input; the lines end with it.
        watch = threading.Timer(AGENT_SECONDS, server.stdin.close)
        watch.daemon = True
        watch.start()

        def ask(number, method, **params):
            print(json.dumps({"id": number, "method": method, "params": params}), file=server.stdin, flush=True)
            answer = next((message for message in map(json.loads, server.stdout) if message.get("id") == number), None)
            self.assertIn("result", answer or {}, f"{method}: {answer}")
            return answer["result"]
        with server:
            ask(1, "initialize", clientInfo={"name": "quorate-test", "version": "1"})
            hooks = ask(2, "hooks/list", cwds=[str(self.repo)])["data"][0]["hooks"]
            trusted = {hook["key"]: {"trusted_hash": hook["currentHash"]} for hook in hooks}
            ask(3, "config/batchWrite", edits=[{"keyPath": "hooks.state", "value": trusted, "mergeStrategy": "upsert"}])
            server.stdin.close()
            watch.cancel()

    def look(self, tools):
        # It ranks by words, and shows as many as are asked for.
        return [Call("tool_search", query="quorate", limit=100)]

    def edit(self, path, text):
        name = path.relative_to(self.repo)
        return [Call("apply_patch", input=f"*** Begin Patch\n*** Update File: {name}\n@@\n first\n+{text}\n*** End Patch")]

    def shell(self, command):
        return Call("exec_command", cmd=command)


class GeminiCli(Agent, unittest.TestCase):
    word, program, prefix = "gemini", "gemini", "mcp_quorate_"

    def arguments(self):
        return ["-p", PROMPT, "--model", "gemini-2.5-flash", "--approval-mode", "yolo"]

    def environment(self):
        return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": self.model.url}

    def settle(self):
        self.write(self.home / ".gemini" / "settings.json", {
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        })

    def edit(self, path, text):
        return [Call("replace", file_path=str(path), instruction="Add a line.", old_string="first\n", new_string=f"first\n{text}\n")]

    def shell(self, command):
        return Call("run_shell_command", command=command)


class OpenCode(Agent, unittest.TestCase):
    word, program, prefix = "opencode", "opencode", "quorate_"
    hears_at_start = False

    def arguments(self):
        return ["run", PROMPT]

    def environment(self):
        # It gets the types of its plugins from npm otherwise.
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "npm_config_offline": "true"}

    def settle(self):
        provider = {"anthropic": {"options": {"baseURL": f"{self.model.url}/v1", "apiKey": "none"}}}
        self.write(self.home / ".config" / "opencode" / "opencode.json", {"provider": provider, "model": "anthropic/claude-sonnet-4-5"})

    def edit(self, path, text):
        return [Call("read", filePath=str(path)), Call("edit", filePath=str(path), oldString="first\n", newString=f"first\n{text}\n")]

    def shell(self, command):
        return Call("bash", command=command, description="Adds a line")


class ClaudeCode(Agent, unittest.TestCase):
    word, program, prefix = "claude-code", "claude", "mcp__quorate__"

    def arguments(self):
        return ["-p", PROMPT, "--model", "claude-sonnet-4-5", "--permission-mode", "acceptEdits", "--allowedTools", "mcp__quorate"]

    def environment(self):
        return {"ANTHROPIC_BASE_URL": self.model.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

    def settle(self):
        # What the question at the first start would do.
        self.write(self.home / ".claude" / "settings.json", {"enableAllProjectMcpServers": True})

    def look(self, tools):
        return [Call("ToolSearch", query="select:" + ",".join(self.prefix + tool for tool in tools), max_results=len(tools))]

    def edit(self, path, text):
        return [Call("Read", file_path=str(path)), Call("Edit", file_path=str(path), old_string="first\n", new_string=f"first\n{text}\n")]

    def shell(self, command):
        return Call("Bash", command=command)

    def test_the_hook_that_needs_no_executable_keeps_it_off_too(self):
        page = (HERE.parents[2] / "docs" / "clients" / "hooks.md").read_text()
        hooks = json.loads(re.search(r"## Without the executable.*?```json\n(.*?)```", page, re.DOTALL).group(1))
        hooks["hooks"]["PreToolUse"][0]["hooks"][0]["url"] = DEPLOYMENT.url("/v1/hook/claude-code")
        self.write(self.repo / ".claude" / "settings.json", hooks)
        self.keep_off(connect=["--no-guard"])

    def test_nothing_is_edited_when_the_hook_is_not_there(self):
        self.installed = []
        path = self.repo / "plan.md"
        self.write(path, "first\n")
        *_, denied = self.work(*self.edit(path, "second"))
        self.assertIn("not found", denied)
        self.assertEqual(path.read_text(), "first\n")


if __name__ == "__main__":
    main()
