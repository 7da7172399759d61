"""MCP and HTTP as they go over the wire, for tests that send what no client library would. Standard library only."""
import contextlib
import http.client
import json
import time
import urllib.parse

PROTOCOL = "2025-11-25"
# Stands for "leave this header out".
NOTHING = object()


class Unreachable(Exception):
    """A request without an answer; whether it had an effect is unknown."""


class Answer:
    """One HTTP answer, and what it says of a tool call."""

    def __init__(self, status, kind, body, via):
        self.status, self.kind, self.body = status, kind, body
        text = body.decode("utf-8", "replace")
        try:
            self.json = json.loads(text) if text else None
        except ValueError:
            self.json = None
        message = self.json if isinstance(self.json, dict) else {}
        result = message.get("result") if isinstance(message.get("result"), dict) else {}
        self.error = None
        if via == "mcp" and status < 300:
            self.text = "\n".join(part.get("text", "") for part in result.get("content", []))
            self.data = result.get("structuredContent")
            if "error" in message:
                self.error, self.text = message["error"], message["error"].get("message", "")
            elif result.get("isError"):
                self.error = (result.get("_meta") or {}).get("io.quorate/error") or {}
        elif status < 300:
            self.text, self.data = text, self.json
        else:
            # A protocol error of MCP or a problem of HTTP.
            self.data, self.error = None, message.get("error") if isinstance(message.get("error"), dict) else message
            self.text = self.error.get("message") or self.error.get("detail") or self.error.get("title") or text

    @property
    def ok(self):
        return self.status < 300 and self.error is None

    def __repr__(self):
        return f"HTTP {self.status} {self.body[:400]!r}"


class Client:
    """One connection, for one thread. Through `/mcp/crux` (`via="mcp"`) or `/v1/tools/crux/...` (`via="http"`)."""

    def __init__(self, base, token, via="mcp", timeout=60.0, context=None):
        """`context` says whom to trust, for a base of `https`."""
        parts = urllib.parse.urlsplit(base)
        self._host, self._port, self._timeout = parts.hostname, parts.port, timeout
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._options = {"context": context} if parts.scheme == "https" else {}
        self.token, self.via = token, via
        self.session = None
        self._connection, self._ready, self._id = None, False, 0
        self._used = time.monotonic()

    def close(self):
        if self._connection:
            self._connection.close()
            self._connection = None

    def headers(self):
        found = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.token:
            found["Authorization"] = f"Bearer {self.token}"
        if self._ready:
            found["MCP-Protocol-Version"] = PROTOCOL
        if self.session:
            found["Mcp-Session-Id"] = self.session
        return found

    def send(self, method, path, body=b"", headers=None, via="http"):
        """Sends bytes as they are. Headers given as NOTHING are left out."""
        merged = {name: value for name, value in {**self.headers(), **(headers or {})}.items() if value is not NOTHING}
        # A gateway closes what is silent for two minutes; nobody should learn that from a call that is lost.
        if time.monotonic() - self._used > 60:
            self.close()
        self._used = time.monotonic()
        fresh = self._connection is None
        if fresh:
            self._connection = self._kind(self._host, self._port, timeout=self._timeout, **self._options)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a body refused early still has an answer
                self._connection.request(method, path, body=body, headers=merged)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"{method} {path}: {error!r}") from error
        if response.will_close:
            self.close()
        self.answer_headers = response.headers
        return Answer(response.status, (response.getheader("Content-Type") or "").split(";")[0], content, via)

    def rpc(self, method, params, raw=None):
        """One JSON-RPC exchange; `raw` is the text of the message in place of the one made of method and params."""
        if not self._ready and method != "initialize":
            self.initialize()
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        body = raw if raw is not None else json.dumps(message).encode()
        return self.send("POST", "/mcp/crux", body, via="mcp")

    def initialize(self):
        hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "quorate-wire", "version": "1"}}
        answer = self.rpc("initialize", hello)
        assert answer.ok, f"initialize was refused: {answer}"
        self.session, self._ready = self.answer_headers.get("Mcp-Session-Id"), True
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self.send("POST", "/mcp/crux", json.dumps(note).encode())

    def continue_as(self, other):
        """Goes on with the session that another client began, without a handshake."""
        self.session, self._ready = other.session, True

    def tools(self):
        """The listed tools by name, over all pages."""
        found, cursor = {}, None
        while True:
            result = self.rpc("tools/list", {"cursor": cursor} if cursor else {}).json["result"]
            found.update((tool["name"], tool) for tool in result["tools"])
            cursor = result.get("nextCursor")
            if not cursor:
                return found

    def call(self, tool, arguments):
        if self.via == "mcp":
            return self.rpc("tools/call", {"name": tool, "arguments": arguments})
        return self.send("POST", f"/v1/tools/crux/{tool}", json.dumps(arguments).encode())

    def ok(self, tool, **arguments):
        """The data of a call that has to succeed."""
        answer = self.call(tool, arguments)
        assert answer.ok, f"{tool} {arguments!r:.200} was refused: {answer}"
        return answer.data

    def listed(self, tool, field, **arguments):
        """Every row of a list, page by page."""
        found, cursor = [], {}
        while True:
            page = self.ok(tool, **arguments, **cursor)
            found += page[field]
            if not page.get("next_cursor"):
                return found
            assert {"cursor": page["next_cursor"]} != cursor, f"{tool} gives the cursor {cursor} again"
            cursor = {"cursor": page["next_cursor"]}

    def name(self):
        """The caller's name, as the product knows it."""
        return self.ok("get_agent_identity")["agent_name"]
