"""Bad input, over every tool and both ways in: each is refused in clear words, and changes nothing.

The table is driven by `tools/list`: a new tool is in it from its first day. What every tool has to refuse stands in `spoilt`;
what it may accept, and must not break on, in `test_odd_but_possible_values_never_break_a_call`.
"""
import json
import pathlib
import sys
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment  # noqa: E402
from runner import main  # noqa: E402
from wire import NOTHING, Client, Unreachable  # noqa: E402

MIB = 1 << 20
# The facts of a reply, counted twice in MCP: as text and as structured content.
REPLY_BYTES_MAX = 80 * 1024
# Longer than any argument may be, and shorter than a body may be.
HUGE = "x" * 200_000
WAYS = ("mcp", "http")


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


def wrong_types(schema):
    """Values that are not of the type that a schema names."""
    of = {"string": 7, "integer": "seven", "number": "seven", "boolean": "yes", "array": "a, b", "object": "{}"}
    kind = schema.get("type")
    wrong = [of[kind], None] if kind in of else []
    if kind in ("string", "integer", "number", "boolean"):
        wrong += [[], {}]
    if kind == "integer":
        wrong += [1.5, 1e300]
    if kind == "array":
        wrong += [[{"a": 1}]] if schema.get("items", {}).get("type") == "string" else []
    return wrong


# A text of each form that a schema asks for.
OF_PATTERN = {"^[0-9a-f]{64}$": "0" * 64}


def sample(name, schema):
    """A value that the schema accepts, and that names nothing which exists."""
    if "enum" in schema:
        return schema["enum"][0]
    if "pattern" in schema:
        return OF_PATTERN[schema["pattern"]]
    if name == "resource":
        return f"file://{unique('bad')}/a.rs"
    integer = min(max(1_000, schema.get("minimum", 0)), schema.get("maximum", 1_000))
    return {"string": unique("bad"), "integer": integer, "number": schema.get("minimum", 0.5), "boolean": False,
            "array": [unique("bad")] * schema.get("minItems", 0), "object": {}}[schema["type"]]


def spoilt(tool):
    """Arguments that have to be refused: what is wrong, the word that the refusal has to hold, all of them."""
    schema = tool["inputSchema"]
    properties, required = schema.get("properties", {}), schema.get("required", [])
    good = {name: sample(name, properties[name]) for name in required}
    yield "an unknown argument", "colour", {**good, "colour": "red"}
    # The same name in other letters is another name.
    if required:
        yield "a misspelt argument", required[0].upper(), {**good, required[0].upper(): good[required[0]]}
    for name in required:
        yield "a missing argument", name, {other: value for other, value in good.items() if other != name}
    for name, property_schema in properties.items():
        for value in wrong_types(property_schema):
            yield f"the wrong type {json.dumps(value)}", name, {**good, name: value}
        if "enum" in property_schema:
            yield "an unlisted word", name, {**good, name: "no such word"}
        elif property_schema.get("type") == "string" and name not in LARGE:
            yield f"a huge string as {name}", None, {**good, name: HUGE}
        if name in required and names_something(name, property_schema):
            yield f"an empty name as {name}", None, {**good, name: ""}
            yield f"a name of blanks as {name}", None, {**good, name: "   "}
            yield f"a name with a NUL as {name}", None, {**good, name: "a\0b"}
        if "minimum" in property_schema and (tool["name"], name) not in ZERO_IS_NONE:
            yield "a number below its minimum", name, {**good, name: property_schema["minimum"] - 1}
        if "maximum" in property_schema:
            yield "a number above its maximum", name, {**good, name: property_schema["maximum"] + 1}


# Numbers of which a 0 is documented to be taken for none, below the minimum that the schema documents.
ZERO_IS_NONE = {("autonomy_contract", "token_budget")}
# What may be as large as a request.
LARGE = {"content_bytes_base64"}
# Required strings that are content and not names: they may be empty.
CONTENT = {"value", "query", "action_summary", "reason", "body", "text", "note", "notes", "summary", "rationale"}


def names_something(name, schema):
    return schema.get("type") == "string" and "enum" not in schema and name not in CONTENT


RESOURCES = ("", "file://", "file://../x", "file://a/../../x", "file://%2e%2e/x", "file:///../x", "tree://..", "tree://a/../..", "file://a\\..\\..\\x",
             "ftp://a", "src/lib.rs", "://a", "service://", "deploy://", "file://a\0b", "file://" + "a" * 5_000)


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        cls.a = cls.client("agent-a")
        cls.tools = cls.a.tools()
        # Something of each kind, so that a change would be seen.
        cls.tenant = cls.a.ok("resolve_principal")["principal"]["tenant_id"]
        cls.fact = cls.a.ok("store_fact", entity=unique("kept"), key="k", value="v")
        cls.card = cls.a.ok("punch_in", resource=f"file://{unique('kept')}/a.rs", holder_passport=cls.a.name(), ttl_ms=3_600_000)
        cls.session = unique("kept")
        if "save_session" in cls.tools:
            cls.a.ok("save_session", session_id=cls.session, state={"title": "kept"})
        cls.request = cls.a.ok("approval_request", action_summary="drop the table", risk_tier="high", scope=cls.tenant, token_budget=500)["request_id"]

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    @classmethod
    def client(cls, who, via="mcp"):
        return Client(cls.deployment.info["http"], cls.deployment.token(who) if who else None, via)

    def state(self):
        """What a change by any tool would show in."""
        lists = {"list_entities": "entities", "list_punchcards": "punchcards", "list_sessions": "sessions"}
        found = {tool: self.a.listed(tool, field) for tool, field in lists.items() if tool in self.tools}
        if "list_work" in self.tools:
            found["list_work"] = self.a.ok("list_work", state="pending_approval")
        found["fact"] = self.a.ok("fact_history", entity=self.fact["entity"], key="k")["versions"]
        # Ages pass by themselves.
        return json.loads(json.dumps(found), object_hook=lambda row: {name: value for name, value in row.items() if "age" not in name and "left" not in name})

    def refused(self, answer, via, says=None):
        """A refusal in clear words: no fault, nothing written, and the culprit is named."""
        self.assertLess(answer.status, 500, f"a fault: {answer}")
        if answer.ok and isinstance(answer.data, dict) and answer.data.get("verified") is False and answer.data.get("errors"):
            # `receipt_verify` says no in its report, by its contract; what it was asked is in there, and has a limit too.
            self.assertLess(len(answer.body), REPLY_BYTES_MAX, "the report is longer than any reply may be")
            return
        self.assertFalse(answer.ok, f"it was accepted: {answer}")
        self.assertTrue(answer.text.strip(), f"no words: {answer}")
        if via == "mcp" and answer.status < 300:
            self.assertNotIn(answer.error.get("code"), (-32603, "-32603", "INTERNAL_ERROR"), f"a fault: {answer}")
            self.assertNotIn("structuredContent", answer.json.get("result", {}), f"a refusal with structured content: {answer}")
        if via == "http":
            self.assertEqual(answer.kind, "application/problem+json", f"{answer}")
        if "wrote" in (answer.error or {}):
            self.assertEqual(answer.error["wrote"], "no", f"{answer}")
        if says:
            self.assertIn(says, answer.text, f"{says!r} is not named")

    def unchanged(self, before):
        self.assertEqual(self.state(), before, "bad input changed something")

    def test_spoilt_arguments_are_refused_and_name_the_culprit(self):
        before, count = self.state(), 0
        for via in WAYS:
            client = self.client("agent-a", via)
            for name, tool in self.tools.items():
                for what, says, arguments in spoilt(tool):
                    with self.subTest(via=via, tool=name, what=what, says=says):
                        self.refused(client.call(name, arguments), via, says)
                    count += 1
        print(f"       {len(self.tools)} tools, {count} calls", flush=True)
        self.unchanged(before)

    def test_impossible_resources_are_refused(self):
        before = self.state()
        for via in WAYS:
            client = self.client("agent-a", via)
            for tool in ("punch_in", "punch_out", "check_punchcard"):
                holder = {"holder_passport": self.a.name()} if tool != "check_punchcard" else {}
                for resource in RESOURCES:
                    with self.subTest(via=via, tool=tool, resource=resource[:40]):
                        self.refused(client.call(tool, {"resource": resource, **holder}), via)
        self.unchanged(before)

    def test_odd_but_possible_values_never_break_a_call(self):
        odd = ("", "\0", "\u202e\u0000", "'; drop table facts; --", "🦀" * 100, "a" * 513, "..", "%00", "{}", "-1")
        for via in WAYS:
            client = self.client("agent-b", via)
            for name, tool in self.tools.items():
                properties = tool["inputSchema"].get("properties", {})
                good = {field: sample(field, properties[field]) for field in tool["inputSchema"].get("required", [])}
                for field, schema in properties.items():
                    values = odd if schema.get("type") == "string" and "enum" not in schema else ()
                    if schema.get("type") in ("integer", "number"):
                        values = (0, -1, 2**31, 2**53, 2**63, 2**64, -(2**63))
                    for value in values:
                        with self.subTest(via=via, tool=name, field=field, value=str(value)[:20]):
                            answer = client.call(name, {**good, field: value})
                            self.assertLess(answer.status, 500, f"a fault: {answer}")
                            if not answer.ok:
                                self.refused(answer, via)

    def test_bodies_that_are_no_calls(self):
        before = self.state()
        deep = b"[" * 100_000 + b"]" * 100_000
        call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}'
        for what, body in {
            "nothing": b"", "no JSON": b"{", "no UTF-8": b'{"a":"\xff\xfe"}', "a list": b"[]", "a number": b"7", "null": b"null",
            "no method": b'{"jsonrpc":"2.0","id":1}', "an unknown method": b'{"jsonrpc":"2.0","id":1,"method":"no/such"}',
            "deep JSON": deep, "a deep argument": call % (b'{"name":"store_fact","arguments":{"entity":' + deep + b'}}'),
            "no params": b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', "params of another kind": call % b'"store_fact"',
            "no tool": call % b"{}", "a tool of another kind": call % b'{"name":7}', "an unknown tool": call % b'{"name":"no_such_tool","arguments":{}}',
            "arguments of another kind": call % b'{"name":"list_entities","arguments":[1]}',
            "a NUL in the tool's name": call % b'{"name":"store\\u0000fact","arguments":{}}',
            "twice the same argument": call % b'{"name":"store_fact","arguments":{"entity":"a","entity":"b"}}',
        }.items():
            client = self.client("agent-a")
            client.initialize()
            with self.subTest(via="mcp", what=what):
                self.refused(client.rpc(None, None, raw=body), "mcp")
        for what, body in {"nothing": b"", "no JSON": b"{", "no UTF-8": b'{"entity":"\xff"}', "a list": b"[]", "a number": b"7", "null": b"null",
                           "deep JSON": deep, "a deep argument": b'{"entity":' + deep + b'}'}.items():
            with self.subTest(via="http", what=what):
                self.refused(self.client("agent-a", "http").send("POST", "/v1/tools/crux/store_fact", body), "http")
        for path in ("/v1/tools/crux/no_such_tool", "/v1/tools/no-such-catalog/store_fact", "/v1/tools/crux/", "/v1/tools/crux/..%2fstore_fact", "/no/such/page"):
            with self.subTest(path=path):
                answer = self.client("agent-a", "http").send("POST", path, b"{}")
                self.assertIn(answer.status, (400, 404, 405), f"{answer}")
        self.unchanged(before)

    def test_oversized_bodies_are_refused(self):
        before = self.state()
        for size in (MIB + 1, 8 * MIB):
            arguments = {"entity": "a", "key": "k", "value": "x" * size}
            for via in WAYS:
                client = self.client("agent-a", via)
                with self.subTest(via=via, size=size):
                    try:
                        answer = client.call("store_fact", arguments)
                    except Unreachable:
                        # The connection may be closed while the body is still on its way; then a second look must serve.
                        self.assertTrue(self.client("agent-a", via).call("list_entities", {}).ok)
                        continue
                    self.refused(answer, via)
                    self.assertIn(answer.status, (200, 400, 413), f"{answer}")
        self.unchanged(before)

    def test_wrong_tokens_learn_nothing(self):
        before, good = self.state(), self.deployment.token("agent-a")
        wrong = {"none": NOTHING, "empty": "", "another scheme": f"Basic {good}", "no scheme": good, "cut": f"Bearer {good[:-1]}", "longer": f"Bearer {good}x",
                 "other letters": f"Bearer {good.swapcase()}", "nonsense": "Bearer nonsense", "long": "Bearer " + "x" * 6_000}
        ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()
        call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_entities", "arguments": {}}}).encode()
        for what, header in wrong.items():
            for path, body in (("/mcp/crux", ping), ("/mcp/crux", call), ("/v1/tools/crux/list_entities", b"{}"), ("/v1/tools/crux/store_fact", b'{"entity":"a","key":"k","value":"v"}')):
                if what == "none" and body == ping:
                    continue  # anybody may see which tools there are
                with self.subTest(token=what, path=path):
                    answer = self.client(None).send("POST", path, body, {"Authorization": header})
                    self.assertIn(answer.status, (400, 401, 431), f"{answer}")
                    self.assertNotIn(self.fact["entity"], answer.body.decode("utf-8", "replace"))
        self.unchanged(before)

    def test_ids_of_another_tenant_look_like_none_at_all(self):
        before = self.state()
        ids = {("delete_fact", "fact_id"): self.fact["fact_id"], ("get_session", "session_id"): self.session,
               ("delete_session", "session_id"): self.session, ("archive_session", "session_id"): self.session,
               ("receipt_verify", "receipt_id"): self.card.get("receipt_acquire"), ("approval_decide", "request_id"): self.request,
               ("force_release", "punchcard_id"): self.card["id"]}
        rest = {"approval_decide": {"decision": "approve"}, "force_release": {"confirm": True, "reason": "test"}}
        for via in WAYS:
            stranger = self.client("other-tenant", via)
            for (tool, field), ident in ids.items():
                if tool not in self.tools or not isinstance(ident, str):
                    continue
                # The same shape, and nobody's.
                nobody = ident[:-8] + ("0" * 8 if not ident.endswith("0" * 8) else "1" * 8)
                with self.subTest(via=via, tool=tool):
                    theirs, none = (stranger.call(tool, {field: value, **rest.get(tool, {})}) for value in (ident, nobody))
                    seen = (theirs.status, theirs.text.replace(ident, "ID"))
                    self.assertEqual(seen, (none.status, none.text.replace(nobody, "ID")), "it is told apart from an id that does not exist")
                    self.assertFalse(theirs.ok and tool != "receipt_verify", f"{theirs}")
            with self.subTest(via=via, what="lists and claims"):
                self.assertNotIn(self.fact["entity"], stranger.call("list_entities", {}).body.decode())
                self.assertFalse((stranger.call("fact_history", {"entity": self.fact["entity"], "key": "k"}).data or {}).get("versions"))
                self.assertNotIn(self.card["id"], stranger.call("list_punchcards", {"tenant_id": self.tenant}).body.decode())
                claim = {"resource": f"file://{unique('claim')}/a.rs", "holder_passport": "agent-a", "tenant_id": self.tenant}
                self.refused(stranger.call("punch_in", claim), via)
        self.unchanged(before)


if __name__ == "__main__":
    main()
