"""Two clusters that exchange facts: pulls and pushes by several gateways, one killed in the middle, and the other cluster away."""
import os
import pathlib
import signal
import socket
import ssl
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

FACTS = 900


class Relay:
    """Stands between a gateway and the other cluster: passes requests on, and can hold one back or cut its answer off."""

    def __init__(self, base, context):
        self.base, self.context = base, context
        self.lock, self.requests = threading.Lock(), []
        # Called before a request is passed on, and with its answer; what it returns as false is never answered.
        self.before = lambda method, path: True
        self.after = lambda method, path: True
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_one(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                with relay.lock:
                    relay.requests.append((self.command, self.path, body, dict(self.headers)))
                if not relay.before(self.command, self.path):
                    self.close_connection = True
                    return
                headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection", "content-length")}
                request = urllib.request.Request(relay.base + self.path, data=body, method=self.command, headers=headers)
                try:
                    with urllib.request.urlopen(request, timeout=30, context=relay.context) as response:
                        status, content = response.status, response.read()
                except urllib.error.HTTPError as error:
                    status, content = error.code, error.read()
                if not relay.after(self.command, self.path):
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = handle_one

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def asked(self, method, path):
        with self.lock:
            return [request for request in self.requests if request[0] == method and request[1].startswith(path)]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Exchange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="quorate-sync-")
        # The other cluster serves over TLS, with an authority of its own.
        cls.there = Deployment(arguments=["--tls"])
        cls.ca = cls.there.data / "tls" / "ca.pem"
        cls.trust = ssl.create_default_context(cafile=str(cls.ca))
        token = pathlib.Path(cls.home.name) / "token"
        token.write_text(cls.there.token("agent-b") + "\n")
        cls.relay = Relay(cls.there.info["http"].rstrip("/"), cls.trust)
        cls.here = Deployment()
        cls.settings = {"QUORATE_GATEWAY_SYNC_TOKEN_FILE": str(token), "QUORATE_GATEWAY_SYNC_TENANT": "default",
                        "QUORATE_GATEWAY_SYNC_REMOTE_URL": cls.relay.url}

    @classmethod
    def tearDownClass(cls):
        cls.relay.stop()
        cls.here.stop()
        cls.there.stop()
        cls.home.cleanup()

    def setUp(self):
        self.relay.before = self.relay.after = lambda method, path: True

    def gateway(self, **settings):
        """A gateway of this cluster that exchanges facts; its process, and a client for somebody there."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.here._environment |= self.settings | settings
        process, log = self.here.spawn("gateway", "--data", self.here.data, "--listen", f"127.0.0.1:{port}")
        for name in settings:
            self.here._environment.pop(name)

        def ready():
            assert process.poll() is None, f"the gateway ended: {log.read_text()[-500:]}"
            try:
                return Client(f"http://127.0.0.1:{port}", None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(ready, 60, "the gateway is ready")
        self.logs = [*getattr(self, "logs", []), log]
        return process, lambda who="operator": Client(f"http://127.0.0.1:{port}", self.here.token(who))

    def end(self, process):
        process.terminate()
        process.wait()

    def theirs(self, who="agent-a"):
        return Client(self.there.info["http"], self.there.token(who), context=self.trust)

    def ours(self, who="agent-a"):
        return Client(self.here.info["http"], self.here.token(who))

    def store(self, client, prefix, count, value="1"):
        for n in range(count):
            client.ok("store_fact", entity=f"{prefix}:{n:04}", key="k", value=value)

    def versions(self, client, entity):
        return client.ok("fact_history", entity=entity, key="k")["versions"]

    def active(self, client, prefix):
        """Entity to value and actor of every active fact under a prefix."""
        rows, cursor = {}, {}
        while True:
            page = client.ok("query_facts", entity_prefix=prefix, top_k=100, **cursor)
            for row in page["rows"]:
                self.assertNotIn(row["entity"], rows)
                rows[row["entity"]] = row["value"], row.get("actor")
            if not page.get("next_cursor"):
                return rows
            cursor = {"cursor": page["next_cursor"]}

    def test_a_pull_goes_on_after_the_gateway_was_killed_in_its_middle_and_doubles_nothing(self):
        self.store(self.theirs(), "big", FACTS)
        self.theirs().ok("store_fact", entity="big:own", key="k", value="for me", private=True)
        self.theirs().ok("store_fact", entity="health:mara", key="k", value="nobody's business")
        self.ours().ok("store_fact", entity="big:own", key="k", value="mine alone", private=True)
        process, client = self.gateway()
        # Killed while the third page is on its way.
        reached, go_on = threading.Event(), threading.Event()

        def hold(method, path):
            if len(self.relay.asked("GET", "/v1/sync/facts")) == 3:
                reached.set()
                go_on.wait(60)
                return False
            return True
        self.relay.after = hold
        answers = []

        def call():
            try:
                answers.append(client().call("sync_pull", {}))
            except Unreachable as error:
                answers.append(error)
        caller = threading.Thread(target=call)
        caller.start()
        self.assertTrue(reached.wait(60), "the pull is at its third page")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        caller.join(60)
        self.assertIsInstance(answers[0], Unreachable)
        self.relay.after = lambda method, path: True
        go_on.set()
        until(lambda: 500 <= len(self.active(self.ours(), "big:")) < FACTS, 30, "two pages are here")
        asked = len(self.relay.asked("GET", "/v1/sync/facts"))

        process, client = self.gateway()
        pulled = client().ok("sync_pull")
        self.assertTrue(pulled["complete"], pulled)
        self.assertIn("cursor=walk.", self.relay.asked("GET", "/v1/sync/facts")[asked][1], "it goes on where the first one was")
        self.assertEqual((pulled["total_pull_count"], pulled["collection_cursor_count"], pulled["tenant_id"]), (1, 1, "default"))
        mirror = self.active(self.ours("agent-b"), "big:")
        self.assertEqual(mirror, {f"big:{n:04}": ("1", "sync:default/agent-a") for n in range(FACTS)})
        self.assertEqual(self.active(self.ours(), "health:"), {})
        self.assertIn("mine alone", [value for value, _ in self.active(self.ours(), "big:own").values()])
        # Once more: nothing is doubled, and nothing is told again.
        again = client().ok("sync_pull", tenant_id="default")
        self.assertEqual((again["facts_pulled"], again["complete"], again["total_pull_count"]), (0, True, 2))
        self.assertEqual([len(self.versions(self.ours(), f"big:{n:04}")) for n in (0, 300, FACTS - 1)], [1, 1, 1])
        # What follows is told alone, a deletion too.
        changed = self.theirs().ok("store_fact", entity="big:0001", key="k", value="2")
        gone = self.versions(self.theirs(), "big:0002")[0]["fact_id"]
        self.theirs().ok("delete_fact", fact_id=gone)
        last = client().ok("sync_pull")
        self.assertEqual((last["facts_pulled"], last["facts_removed"]), (1, 1), changed)
        self.assertEqual(self.active(self.ours(), "big:0001")["big:0001"][0], "2")
        self.assertNotIn("big:0002", self.active(self.ours(), "big:0002"))
        # What the contract says of its arguments.
        self.assertEqual(client().call("sync_pull", {"entity_prefix": "big:"}).error["code"], -32602)
        self.assertEqual(client().ok("sync_pull", entity_prefix="")["facts_pulled"], 0)
        other = client().call("sync_pull", {"tenant_id": "elsewhere"}).error
        self.assertEqual((other["code"], other["wrote"]), ("REMOTE_REFUSED", "no"))
        self.end(process)

    def test_a_push_is_shown_first_sends_own_facts_once_and_never_what_is_private(self):
        process, client = self.gateway()
        client().ok("sync_pull")
        ours = self.ours()
        self.store(ours, "own", 300)
        ours.ok("store_fact", entity="own:secret", key="k", value="for me", private=True)
        for entity in ("finance:q3", "Health:mara", "personal:jon", "__ops::x"):
            ours.ok("store_fact", entity=entity, key="k", value="stays")
        client().ok("store_fact", entity="own:operator", key="k", value="for the operator", private=True)
        asked = len(self.relay.requests)
        preview = client().ok("sync_push")
        self.assertEqual((preview["mode"], preview["would_promote_count"]), ("tenant_promotion_preview", 300))
        self.assertGreaterEqual(preview["skipped_private"], 5)
        self.assertEqual(preview["preview_hash"], client().ok("sync_push", confirm=False)["preview_hash"])
        self.assertEqual(len(self.relay.requests), asked, "a preview asks nobody")
        self.assertEqual(self.active(self.theirs(), "own:"), {})

        # The answer to the second page is lost, and its gateway dies; another one goes on.
        cut, posted = threading.Event(), len(self.relay.asked("POST", "/v1/sync/facts"))

        def lose(method, path):
            if method == "POST" and len(self.relay.asked("POST", "/v1/sync/facts")) == posted + 2:
                os.kill(process.pid, signal.SIGKILL)
                cut.set()
                return False
            return True
        self.relay.after = lose
        with self.assertRaises(Unreachable):
            client().call("sync_push", {"confirm": True})
        self.assertTrue(cut.is_set())
        process.wait()
        self.relay.after = lambda method, path: True
        second, client = self.gateway()
        third, other = self.gateway()
        # Two gateways at once.
        answers = []
        callers = [threading.Thread(target=lambda at=at: answers.append(at().ok("sync_push", confirm=True))) for at in (client, other)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(90)
        self.assertEqual([answer["mode"] for answer in answers], ["tenant_promotion"] * 2)
        posts = self.relay.asked("POST", "/v1/sync/facts")[posted:]
        keys = [{name.lower(): value for name, value in headers.items()}["idempotency-key"] for _, _, _, headers in posts]
        self.assertEqual(keys[1], keys[2], "the page whose answer was lost is sent again under its key")
        there = self.active(self.theirs(), "own:")
        self.assertEqual(there, {f"own:{n:04}": ("1", "agent-b") for n in range(300)})
        self.assertEqual([len(self.versions(self.theirs(), f"own:{n:04}")) for n in (0, 256, 299)], [1, 1, 1])
        sent = b"".join(body or b"" for _, _, body, _ in self.relay.requests)
        for secret in (b"for me", b"for the operator", b"stays"):
            self.assertNotIn(secret, sent)
        # Nothing is sent twice, and what was pulled is not sent back.
        again = client().ok("sync_push", confirm=True)
        self.assertEqual((again["facts_pushed"], again["facts_unchanged"]), (0, 0))
        self.assertEqual(client().ok("sync_pull")["facts_pulled"], 0)
        # A passport without the standing for it is told so, before anybody is asked.
        asked = len(self.relay.requests)
        self.assertEqual(client("agent-a").call("sync_push", {"confirm": True}).error["code"], -32003)
        self.assertEqual(len(self.relay.requests), asked)
        for gateway in (second, third):
            self.end(gateway)
        for log in self.logs:
            self.assertNotIn(self.there.token("agent-b"), log.read_text())

    def test_what_differs_stays_on_both_sides_until_somebody_decides(self):
        process, client = self.gateway()
        self.ours().ok("store_fact", entity="both:a", key="k", value="ours")
        self.theirs().ok("store_fact", entity="both:a", key="k", value="theirs")
        pulled = client().ok("sync_pull")
        found = next(conflict for conflict in pulled["conflicts"] if conflict["entity"] == "both:a")
        pushed = client().ok("sync_push", confirm=True, allowlist=["entity:both:a"])
        self.assertEqual((pushed["facts_pushed"], pushed["skipped_in_conflict"]), (0, 1))
        self.assertEqual(self.active(self.ours(), "both:")["both:a"][0], "ours")
        self.assertEqual(self.active(self.theirs(), "both:")["both:a"][0], "theirs")
        self.assertEqual(client().ok("sync_status")["conflict_count"], 1)
        self.ours().ok("delete_fact", fact_id=found["local_fact_id"])
        self.assertEqual(client().ok("sync_pull")["facts_pulled"], 1)
        self.assertEqual(self.active(self.ours(), "both:")["both:a"], ("theirs", "sync:default/agent-a"))
        self.end(process)

    def test_the_status_tells_the_mode_and_a_remote_that_is_away_is_degraded_and_a_typed_refusal(self):
        # Unset: what there is, and no error; the tools that need it say which setting it takes.
        local = self.ours().ok("sync_status")
        self.assertEqual((local["mode"], local["configured"], local["platform_online"]), ("local-only", False, None))
        self.assertEqual(local["degraded_reason"], "sync not configured: CORECRUXD_SYNC_REMOTE_URL is not set")
        for tool in ("sync_pull", "sync_push"):
            refused = self.ours().call(tool, {})
            self.assertEqual(refused.error["code"], "NOT_CONFIGURED")
            self.assertIn("sync not configured: CORECRUXD_SYNC_REMOTE_URL is not set", refused.text)
            self.assertIn("sync_remote_url", refused.text)
        process, client = self.gateway()
        status = client().ok("sync_status")
        self.assertEqual((status["mode"], status["degraded"], status["platform_online"]), ("cloud-mirror configured", False, True))
        self.assertEqual((status["background_sync_enabled"], status["remote_url"]), (False, self.relay.url))
        # The settings are one tenant's: to another nothing is set up.
        self.assertEqual(client("other-tenant").ok("sync_status")["mode"], "local-only")
        self.assertEqual(client("other-tenant").call("sync_pull", {}).error["code"], "NOT_CONFIGURED")

        self.relay.before = lambda method, path: False
        status = client().ok("sync_status")
        self.assertEqual((status["mode"], status["degraded"], status["platform_online"]), ("degraded", True, False))
        self.assertTrue(status["degraded_reason"])
        for tool, arguments in (("sync_pull", {}), ("sync_push", {"confirm": True})):
            refused = client().call(tool, arguments).error
            self.assertEqual((refused["code"], refused["retryable"], refused["wrote"]), ("REMOTE_UNAVAILABLE", True, "no"), tool)
        self.assertTrue(client().ok("sync_push")["would_promote_count"] >= 0, "a preview needs nobody")
        self.relay.before = lambda method, path: True
        self.assertEqual(client().ok("sync_status")["mode"], "cloud-mirror configured")
        self.end(process)

        # Straight to the other cluster, over TLS: with its authority, and without.
        direct = {"QUORATE_GATEWAY_SYNC_REMOTE_URL": self.there.info["http"]}
        process, client = self.gateway(**direct)
        self.assertEqual(client().ok("sync_status")["mode"], "degraded", "an authority that nobody named is not believed")
        self.end(process)
        process, client = self.gateway(**direct, QUORATE_GATEWAY_SYNC_CA=str(self.ca))
        self.assertEqual(client().ok("sync_status")["mode"], "cloud-mirror configured")
        self.end(process)
        # A token that is not known there.
        wrong = pathlib.Path(self.home.name) / "wrong"
        wrong.write_text("qt_" + "0" * 64)
        process, client = self.gateway(QUORATE_GATEWAY_SYNC_TOKEN_FILE=str(wrong))
        status = client().ok("sync_status")
        self.assertEqual((status["mode"], status["platform_online"]), ("degraded", True))
        self.assertEqual(client().call("sync_pull", {}).error["code"], "REMOTE_REFUSED")
        self.end(process)

    def test_in_the_background_one_gateway_pulls_and_another_goes_on_when_it_dies(self):
        settings = {"QUORATE_GATEWAY_SYNC_POLL_MS": "1000"}
        first, client = self.gateway(**settings)
        self.assertEqual((client().ok("sync_status")["mode"], client().ok("sync_status")["background_sync_enabled"]),
                         ("full background sync", True))
        second, other = self.gateway(**settings)
        self.theirs().ok("store_fact", entity="live:a", key="k", value="1")
        until(lambda: "live:a" in self.active(self.ours(), "live:"), 60, "it comes by itself")
        held = [card for card in self.ours().ok("list_punchcards", status="held")["punchcards"] if "sync" in card["resource"]]
        self.assertEqual(len(held), 1)
        # Whichever pulls.
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        self.theirs().ok("store_fact", entity="live:b", key="k", value="1")
        until(lambda: "live:b" in self.active(self.ours(), "live:"), 60, "the other gateway goes on")
        # Away for a while, and back.
        self.relay.before = lambda method, path: False
        until(lambda: other().ok("sync_status")["mode"] == "degraded", 30, "it is away")
        self.theirs().ok("store_fact", entity="live:c", key="k", value="1")
        self.relay.before = lambda method, path: True
        until(lambda: "live:c" in self.active(self.ours(), "live:"), 60, "it is back")
        self.assertEqual(len(self.versions(self.ours(), "live:a")), 1)
        self.end(second)


if __name__ == "__main__":
    main()
