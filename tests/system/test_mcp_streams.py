"""MCP beyond calls: what is watched, read, cancelled and ended, at two gateways, and a gateway that stops in order."""
import json
import pathlib
import queue
import signal
import socket
import sys
import threading
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from sse import Stream  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

STATELESS = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


class McpStreams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment(arguments=["--conformance"])
        cls.first = cls.deployment.info["http"]
        cls.process, cls.second = cls.gateway()

    @classmethod
    def gateway(cls):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process, log = cls.deployment.spawn("gateway", "--data", cls.deployment.data, "--listen", f"127.0.0.1:{port}", "--conformance")
        base = f"http://127.0.0.1:{port}"

        def ready():
            assert process.poll() is None, f"the gateway ended: {log.read_text()[-500:]}"
            try:
                return Client(base, None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(ready, 60, "another gateway is ready")
        return process, base

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def client(self, base=None, who="agent-a", session=True):
        client = Client(base or self.first, self.deployment.token(who))
        if session:
            client.initialize()
        return client

    def stream(self, client, base=None, last=None, path="/mcp/crux"):
        headers = client.headers()
        if last:
            headers["Last-Event-ID"] = last
        stream = Stream(base or self.first, path, headers)
        self.addCleanup(stream.close)
        return stream

    def listen(self, base, notifications, who="agent-a"):
        message = {"jsonrpc": "2.0", "id": "sub-1", "method": "subscriptions/listen",
                   "params": {"_meta": META, "notifications": notifications}}
        headers = {"Authorization": f"Bearer {self.deployment.token(who)}", "Content-Type": "application/json",
                   "MCP-Protocol-Version": STATELESS, "Mcp-Method": "subscriptions/listen"}
        stream = Stream(base, "/mcp", headers, method="POST", body=json.dumps(message))
        self.addCleanup(stream.close)
        return stream

    def work(self, client):
        return client.ok("create_work", project_id=client.ok("list_projects")["projects"][0]["id"], title=unique("work"), created_by_passport=client.name())

    # -------- resources

    def test_a_resource_is_read_with_the_rights_of_its_reader(self):
        client, entity = self.client(), unique("svc")
        client.ok("store_fact", entity=f"{entity}/a b", key="owner", value="platform")
        uri = f"quorate://facts/{entity}%2Fa%20b"
        contents = client.rpc("resources/read", {"uri": uri}).json["result"]["contents"]
        self.assertEqual([contents[0]["uri"], json.loads(contents[0]["text"])["rows"][0]["value"]], [uri, "platform"])
        theirs = self.client(who="other-tenant").rpc("resources/read", {"uri": uri}).json["result"]["contents"]
        self.assertEqual(json.loads(theirs[0]["text"])["rows"], [])
        work = self.work(client)["id"]
        self.assertIn(work, client.rpc("resources/read", {"uri": f"quorate://work/{work}"}).json["result"]["contents"][0]["text"])
        foreign = self.client(who="other-tenant").rpc("resources/read", {"uri": f"quorate://work/{work}"}).json["error"]
        self.assertEqual((foreign["code"], foreign["data"]["uri"]), (-32002, f"quorate://work/{work}"))
        page = client.rpc("resources/read", {"uri": "quorate://docs/tools/punch_in"}).json["result"]["contents"][0]
        self.assertTrue(page["text"].startswith("## punch_in"), page)
        for listed in client.rpc("resources/list", {}).json["result"]["resources"]:
            self.assertIn("result", client.rpc("resources/read", {"uri": listed["uri"]}).json, listed)
        self.assertEqual(len(client.rpc("resources/templates/list", {}).json["result"]["resourceTemplates"]), 4)

    def test_prompts_bring_what_they_are_about_and_arguments_are_completed(self):
        client, entity = self.client(), unique("svc")
        client.ok("store_fact", entity=entity, key="owner", value="platform")
        names = [prompt["name"] for prompt in client.rpc("prompts/list", {}).json["result"]["prompts"]]
        self.assertEqual(names, ["start_session", "hand_off", "review"])
        messages = client.rpc("prompts/get", {"name": "start_session", "arguments": {"task": "the migration", "entity": entity}}).json["result"]["messages"]
        self.assertIn("the migration", messages[0]["content"]["text"])
        self.assertIn("platform", messages[1]["content"]["resource"]["text"])
        work = self.work(client)["id"]
        review = client.rpc("prompts/get", {"name": "review", "arguments": {"work_id": work}}).json["result"]["messages"]
        self.assertIn(work, review[0]["content"]["resource"]["text"])
        self.assertIn("session `s-1`", client.rpc("prompts/get", {"name": "hand_off", "arguments": {"session_id": "s-1"}}).json["result"]["messages"][0]["content"]["text"])
        for arguments in [{}, {"task": "x", "colour": "red"}, {"task": 1}]:
            self.assertEqual(client.rpc("prompts/get", {"name": "start_session", "arguments": arguments}).json["error"]["code"], -32602)

        def completed(ref, argument, value):
            return client.rpc("completion/complete", {"ref": ref, "argument": {"name": argument, "value": value}}).json["result"]["completion"]["values"]
        self.assertEqual(completed({"type": "ref/prompt", "name": "start_session"}, "entity", entity[:-3]), [entity])
        self.assertEqual(completed({"type": "ref/resource", "uri": "quorate://docs/tools/{name}"}, "name", "punch_"), ["punch_in", "punch_out"])
        self.assertEqual(completed({"type": "ref/resource", "uri": "quorate://work/{work_id}"}, "work_id", work), [work])

    # -------- subscriptions

    def test_a_session_that_watches_at_one_gateway_is_told_at_the_other_and_after_it_lost_its_stream(self):
        client = self.client()
        work, quiet = self.work(client)["id"], self.work(client)["id"]
        uri = f"quorate://work/{work}"
        stream = self.stream(client, self.second)
        self.assertEqual((stream.status, stream.kind), (200, "text/event-stream"))
        first = stream.next()
        self.assertEqual((first.text, first.id[:2]), ("", "e."))
        self.assertEqual(client.rpc("resources/subscribe", {"uri": uri}).json["result"], {})
        for item in (quiet, work):
            client.ok("comment_on_work", work_id=item, body="seen", author_passport=client.name())
        told = stream.next()
        self.assertEqual((told.json["method"], told.json["params"]), ("notifications/resources/updated", {"uri": uri}))
        stream.close()
        client.ok("comment_on_work", work_id=work, body="while nobody listened", author_passport=client.name())
        again = self.stream(client, self.first, last=told.id)
        self.assertEqual(again.until(lambda event: event.json is not None).json["params"], {"uri": uri})
        self.assertEqual(client.rpc("resources/unsubscribe", {"uri": uri}).json["result"], {})
        client.ok("comment_on_work", work_id=work, body="not watched any more", author_passport=client.name())
        self.assertEqual(client.rpc("resources/subscribe", {"uri": f"quorate://work/{quiet}"}).json["result"], {})
        client.ok("comment_on_work", work_id=quiet, body="watched", author_passport=client.name())
        self.assertEqual(again.until(lambda event: event.json is not None).json["params"], {"uri": f"quorate://work/{quiet}"})

    def test_listen_acknowledges_what_it_tells_and_tells_only_that(self):
        client, entity = self.client(), unique("svc")
        uri, strange = f"quorate://facts/{entity}", "quorate://nothing/at-all"
        stream = self.listen(self.first, {"resourceSubscriptions": [uri, strange], "toolsListChanged": True})
        tag = {"io.modelcontextprotocol/subscriptionId": "sub-1"}
        first = stream.next().json
        self.assertEqual(first["method"], "notifications/subscriptions/acknowledged")
        self.assertEqual(first["params"], {"_meta": tag, "notifications": {"resourceSubscriptions": [uri]}})
        client.ok("store_fact", entity=unique("svc"), key="k", value="v")
        client.ok("store_fact", entity=entity, key="k", value="v")
        told = stream.next().json
        self.assertEqual((told["method"], told["params"]), ("notifications/resources/updated", {"uri": uri, "_meta": tag}))

    # -------- sessions and calls

    def test_a_session_that_was_ended_is_over_at_every_gateway(self):
        client = self.client()
        there = Client(self.second, client.token)
        there.continue_as(client)
        self.assertTrue(there.rpc("ping", {}).ok)
        stranger = Client(self.first, self.deployment.token("agent-b"))
        stranger.continue_as(client)
        self.assertEqual(stranger.send("DELETE", "/mcp").status, 404, "another caller's")
        self.assertEqual(client.send("DELETE", "/mcp").status, 204)
        self.assertEqual(client.rpc("ping", {}).status, 404)
        until(lambda: there.rpc("ping", {}).status == 404, 10, "the other gateway knows")
        self.assertEqual(client.send("DELETE", "/mcp").status, 404, "ended before")

    def test_a_cancelled_call_leaves_the_queue(self):
        holder, waiter = self.client(), self.client(who="agent-b")
        resource = f"file://{unique('src')}/lib.rs"
        card = holder.ok("punch_in", resource=resource, holder_passport=holder.name(), ttl_ms=60_000)
        events = Stream(self.first, "/v1/events?kinds=punchcard.", {"Authorization": f"Bearer {holder.token}"})
        self.addCleanup(events.close)
        call = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "punch_in", "arguments": {
            "resource": resource, "holder_passport": waiter.name(), "ttl_ms": 60_000, "wait_ms": 60_000}}}
        caller = Client(self.first, waiter.token)
        caller.continue_as(waiter)
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(caller.send("POST", "/mcp/crux", json.dumps(call).encode())), daemon=True).start()
        events.until(lambda event: event.json.get("kind") == "punchcard.queued")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
        self.assertEqual(waiter.send("POST", "/mcp/crux", json.dumps(cancel).encode()).status, 202)
        self.assertEqual(answers.get(timeout=20).status, 202)
        events.until(lambda event: event.json.get("kind") == "punchcard.wait_ended")
        holder.ok("punch_out", resource=resource, holder_passport=holder.name(), fencing_token=card["fencing_token"])
        holder.ok("punch_in", resource=resource, holder_passport=holder.name(), ttl_ms=60_000)

    def test_a_call_whose_stream_is_at_another_gateway_is_answered_and_not_waited_for(self):
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
        client = Client(self.first, None)
        client.send("POST", "/mcp/conformance", json.dumps(hello).encode())
        headers = {"Content-Type": "application/json", "MCP-Protocol-Version": "2025-11-25",
                   "Mcp-Session-Id": client.answer_headers["Mcp-Session-Id"]}
        call = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "test_reconnection", "arguments": {}}}
        stream = Stream(self.first, "/mcp/conformance", headers, method="POST", body=json.dumps(call))
        first = stream.next()
        self.assertIsNone(stream.next(), "it hangs up")
        here = Stream(self.first, "/mcp/conformance", {**headers, "Last-Event-ID": first.id})
        self.assertIn("Answered after", here.next().json["result"]["content"][0]["text"])
        there = Stream(self.second, "/mcp/conformance", {**headers, "Last-Event-ID": first.id})
        lost = there.next().json
        self.assertEqual((lost["id"], lost["error"]["data"]["code"]), (9, "OUTCOME_UNKNOWN"))
        self.assertIsNone(there.next(), "and is over")

    def test_the_oldest_transport_answers_on_its_stream(self):
        token = {"Authorization": f"Bearer {self.deployment.token('agent-a')}"}
        stream = Stream(self.first, "/sse", token)
        self.addCleanup(stream.close)
        endpoint = stream.next().text
        self.assertTrue(endpoint.startswith("/sse/message?session="), endpoint)
        client = Client(self.first, self.deployment.token("agent-a"))

        def ask(method, params, client=client):
            message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            return client.send("POST", endpoint, json.dumps(message).encode()).status
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        self.assertEqual(ask("initialize", hello), 202)
        self.assertEqual(stream.next().json["result"]["protocolVersion"], "2024-11-05")
        entity = unique("svc")
        self.assertEqual(ask("tools/call", {"name": "store_fact", "arguments": {"entity": entity, "key": "k", "value": "v"}}), 202)
        self.assertEqual(stream.next().json["result"]["structuredContent"]["entity"], entity)
        self.assertEqual(ask("ping", {}, Client(self.first, self.deployment.token("agent-b"))), 404, "another caller's")
        self.assertEqual(ask("ping", {}, Client(self.second, self.deployment.token("agent-a"))), 404, "another gateway's")
        self.assertEqual(Stream(self.first, "/sse").status, 401)

    # -------- stopping

    def test_a_gateway_that_stops_finishes_its_calls_and_tells_its_streams_where_to_go_on(self):
        process, base = self.gateway()
        holder, waiter = self.client(), self.client(base, "agent-b")
        resource = f"file://{unique('src')}/lib.rs"
        card = holder.ok("punch_in", resource=resource, holder_passport=holder.name(), ttl_ms=60_000)
        token = {"Authorization": f"Bearer {holder.token}"}
        events, listening = Stream(base, "/v1/events", token), self.listen(base, {"resourceSubscriptions": ["quorate://work/w"]})
        session = self.client(base)
        stream = self.stream(session, base)
        self.assertEqual([listening.next().json["method"], stream.next().text], ["notifications/subscriptions/acknowledged", ""])
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(waiter.call("punch_in", {
            "resource": resource, "holder_passport": waiter.name(), "ttl_ms": 60_000, "wait_ms": 60_000})), daemon=True).start()
        events.until(lambda event: event.json.get("kind") == "punchcard.queued")
        process.send_signal(signal.SIGTERM)
        stopping = events.until(lambda event: event.kind == "stopping")
        self.assertIsNone(events.next(), "and is over")
        self.assertEqual(listening.next().json, {"jsonrpc": "2.0", "id": "sub-1", "result": {
            "resultType": "complete", "_meta": {"io.modelcontextprotocol/subscriptionId": "sub-1"}}})
        self.assertIsNone(stream.next(), "and is over")
        # The call in flight goes on, and is answered.
        holder.ok("punch_out", resource=resource, holder_passport=holder.name(), fencing_token=card["fencing_token"])
        granted = answers.get(timeout=20)
        self.assertTrue(granted.ok, granted)
        self.assertEqual(process.wait(30), 0)
        # What happened meanwhile is told at another gateway.
        again = Stream(self.first, f"/v1/events?since={stopping.json['resume']}&kinds=punchcard.", token)
        self.addCleanup(again.close)
        self.assertEqual(again.until(lambda event: event.kind == "change").json["kind"].split(".")[0], "punchcard")
        moved = self.stream(session, self.first, last=stream.last_id)
        self.assertEqual(moved.status, 200)


if __name__ == "__main__":
    main()
