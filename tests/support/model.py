"""A model API on loopback whose model does what a script says, so that a real agent can be driven without a model.

It speaks the APIs that the agents call: Anthropic's Messages, OpenAI's Responses and Gemini's generateContent, streamed or whole.
A script is a list of steps; which one comes next is told by the conversation itself, so that a request sent again is answered
as before. It is the proxy of the agents too: what they ask of any other machine is refused and noted. Standard library only.
"""
import contextlib
import http.server
import json
import threading
import urllib.parse

PROMPT = "Do what the script says."


class Call:
    """The model calls a tool by the name that `Model.tools` has for it."""

    def __init__(self, tool, **arguments):
        self.tool, self.arguments = tool, arguments


class Say:
    """The model says something and is done."""

    def __init__(self, text):
        self.text = text


def text_of(content):
    """The words in a message's content, whichever way it is nested."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content["text"]) if "text" in content else json.dumps(content)
    return ""


class Anthropic:
    """https://docs.anthropic.com/en/api/messages"""

    @staticmethod
    def read(body):
        """The tools offered by name, and what the calls so far came to."""
        blocks = [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]
        tools = {tool["name"]: tool for tool in body.get("tools") or []}
        return tools, [text_of(block.get("content")) for block in blocks if block["type"] == "tool_result"]

    @staticmethod
    def events(step, number, body):
        call = isinstance(step, Call)
        kind = {"type": "tool_use", "id": f"toolu_{number}", "name": step.tool, "input": {}} if call else {"type": "text", "text": ""}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)} if call else {"type": "text_delta", "text": step.text}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body.get("model", ""), "content": [],
                   "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
        return [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": kind},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]

    @staticmethod
    def whole(events):
        message, block, delta = events[0]["message"], events[1]["content_block"], events[2]["delta"]
        block = {**block, "input": json.loads(delta["partial_json"])} if "partial_json" in delta else {**block, "text": delta["text"]}
        return {**message, "content": [block], **events[4]["delta"]}


class Responses:
    """https://platform.openai.com/docs/api-reference/responses"""

    @staticmethod
    def read(body):
        # What a search found is offered from then on, without being listed again.
        found = [tool for item in body["input"] for tool in item.get("tools") or []]
        tools = {}
        for tool in (body.get("tools") or []) + found:
            # The tools of an MCP server come in a namespace, and some of OpenAI's have no name but a type.
            name = tool.get("name", tool["type"])
            tools.update({f"{name}.{one['name']}": one for one in tool["tools"]} if "tools" in tool else {name: tool})
        results = [item for item in body["input"] if item.get("type", "").endswith("_output")]
        return tools, [text_of(item.get("output") or item.get("tools")) for item in results]

    @classmethod
    def item(cls, step, number, body):
        if isinstance(step, Say):
            return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": step.text, "annotations": []}]}
        call = {"call_id": f"call_{number}", "status": "completed"}
        kind = cls.read(body)[0].get(step.tool, {}).get("type")
        if kind == "tool_search":
            return {**call, "type": "tool_search_call", "execution": "client", "arguments": step.arguments}
        if kind == "custom":
            return {**call, "type": "custom_tool_call", "name": step.tool, "input": step.arguments["input"]}
        namespace, _, name = step.tool.rpartition(".")
        return {**call, "type": "function_call", "name": name, **({"namespace": namespace} if namespace else {}),
                "arguments": json.dumps(step.arguments)}

    @classmethod
    def events(cls, step, number, body):
        response = {"id": f"resp_{number}", "object": "response", "model": body.get("model", ""), "output": []}
        item = cls.item(step, number, body)
        usage = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
                 "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2}
        return [
            {"type": "response.created", "response": {**response, "status": "in_progress"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {**response, "status": "completed", "output": [item], "usage": usage}},
        ]

    @staticmethod
    def whole(events):
        return events[-1]["response"]


class Gemini:
    """https://ai.google.dev/api/generate-content"""

    @staticmethod
    def read(body):
        tools = {one["name"]: one for tool in body.get("tools") or [] for one in tool.get("functionDeclarations", [])}
        parts = [part for content in body["contents"] for part in content.get("parts", [])]
        return tools, [text_of(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part]

    @staticmethod
    def events(step, number, body):
        part = {"functionCall": {"name": step.tool, "args": step.arguments}} if isinstance(step, Call) else {"text": step.text}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return [{"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}], "usageMetadata": usage}]

    @staticmethod
    def whole(events):
        return events[0]


def dialect(path):
    if path.endswith("/messages"):
        return Anthropic
    if path.endswith("/responses"):
        return Responses
    return Gemini if path.endswith((":streamGenerateContent", ":generateContent")) else None


class Model:
    """Serves while the block runs. `play` gives it a script, and what the agent sent meanwhile is there to be looked at."""

    def __enter__(self):
        self._lock = threading.Lock()
        self.play()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"model": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def play(self, *script):
        """A step is a `Call`, a `Say`, or a function that makes one of the results so far when its turn comes."""
        with self._lock:
            self.script, self.taken = script, {}
            # Requests by path; names of tools as the agent offers them; what its calls came to, as the model sees it.
            self.requests, self.tools, self.results = [], {}, []
            # The conversation as it was last sent, as JSON. Steps by number, once their turn came, are in `taken`.
            self.heard = ""
            # Hosts that were asked for, though nobody should; and what went wrong in a step.
            self.strangers, self.fault = [], None

    def reply(self, path, body):
        """The next step of a conversation, and its number in it."""
        kind = dialect(path)
        with self._lock:
            self.requests.append(path)
            tools, results = kind.read(body)
            # Titles, summaries and the like are asked for beside the conversation.
            if not tools or PROMPT not in json.dumps(body):
                return kind, Say("Nothing."), 0
            if len(results) >= len(self.results):
                self.tools, self.results, self.heard = tools, results, json.dumps(body)
            number = len(results)
            if number not in self.taken:
                self.taken[number] = self._step(number, results)
            return kind, self.taken[number], number

    def _step(self, number, results):
        if number >= len(self.script) or self.fault:
            return Say("Done.")
        step = self.script[number]
        try:
            return step if isinstance(step, (Call, Say)) else step(results)
        except Exception as fault:  # noqa: BLE001: it is the test's, which looks for it
            self.fault = fault
            return Say("The script failed.")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    model = None

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):  # an agent that ends doesn't wait
            self.wfile.write(body)

    def refuse(self):
        """What goes to another machine comes here as to a proxy."""
        host = urllib.parse.urlsplit(self.path).netloc if "://" in self.path else self.path
        self.model.strangers.append(host)
        self.close_connection = True
        self.answer(403, b"{}")

    do_CONNECT = refuse

    def do_GET(self):
        if "://" in self.path:
            return self.refuse()
        self.model.requests.append(self.path)
        self.answer(404, b'{"error": {"type": "not_found_error", "message": "no such thing here"}}')

    do_HEAD = do_GET

    def do_POST(self):
        if "://" in self.path:
            return self.refuse()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.urlsplit(self.path).path
        if not dialect(path):
            self.model.requests.append(path)
            return self.answer(404, b'{"error": {"type": "not_found_error", "message": "no such thing here"}}')
        body = json.loads(body)
        kind, step, number = self.model.reply(path, body)
        events = kind.events(step, number, body)
        if not (body.get("stream") or path.endswith(":streamGenerateContent")):
            return self.answer(200, json.dumps(kind.whole(events)).encode())
        lines = ((f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n" for event in events)
        self.answer(200, "".join(lines).encode(), "text/event-stream")
