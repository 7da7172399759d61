"""Server-sent events as they come over the wire. Standard library only."""
import contextlib
import http.client
import json
import queue
import socket
import threading
import urllib.parse


class Event:
    def __init__(self, kind, id, data):
        self.kind, self.id, self.text = kind, id, data
        # One event of the oldest transport is an address and no JSON.
        self.json = json.loads(data) if data[:1] in "{[" and data else None

    def __repr__(self):
        return f"{self.kind} {self.id} {self.text[:200]}"


class Stream:
    """An open stream. Its events wait in `events`; `None` comes last, once it is over. A `paused` one reads nothing."""

    def __init__(self, base, path, headers=None, method="GET", body=None, paused=False):
        parts = urllib.parse.urlsplit(base)
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        self._connection.request(method, path, body=body, headers={"Accept": "text/event-stream, application/json", **(headers or {})})
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        self.status, self.kind = self._response.status, (self._response.getheader("Content-Type") or "").split(";")[0]
        self.events, self.last_id = queue.Queue(), None
        self._go = threading.Event()
        if self.kind == "text/event-stream":
            if not paused:
                self._go.set()
            threading.Thread(target=self._read, daemon=True).start()
        else:
            self.body = self._response.read().decode()

    def resume_reading(self):
        self._go.set()

    def _read(self):
        self._go.wait()
        fields = {}
        try:
            for line in self._response:
                line = line.decode().rstrip("\r\n")
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.removeprefix(" ")
                    continue
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields:
                    self.events.put(Event(fields.get("event", "message"), fields.get("id"), fields["data"]))
                fields = {}
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            pass  # cut off, which the test sees by its end
        self.events.put(None)

    def next(self, seconds=60):
        """The next event, or None at the end."""
        return self.events.get(timeout=seconds)

    def until(self, wanted, seconds=60):
        """The next event that `wanted` says yes to; those before it are dropped."""
        while True:
            event = self.next(seconds)
            assert event is not None, "the stream is over"
            if wanted(event):
                return event

    def close(self):
        # The thread that reads would hold up a plain close until something comes.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
