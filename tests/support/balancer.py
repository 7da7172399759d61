"""A plain TCP balancer, as stands before gateways: each connection goes to the first of them that takes it. Standard library only."""
import contextlib
import socket
import threading


class Balancer:
    """Serves while the block runs. It knows nothing of HTTP: a connection ends when either side does."""

    def __init__(self, *bases):
        self._targets = [(host, int(port)) for host, port in (base.rpartition("/")[2].rsplit(":", 1) for base in bases)]
        self._lock = threading.Lock()
        # How many connections each has now.
        self.open = [0] * len(bases)

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        # A thread that waits in accept() is woken by a shutdown, and not by a close.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        with near:
            for number, target in enumerate(self._targets):
                with contextlib.suppress(OSError), socket.create_connection(target, timeout=5) as far:
                    self._count(number, 1)
                    try:
                        self._join(near, far)
                    finally:
                        self._count(number, -1)
                    return

    def _count(self, number, more):
        with self._lock:
            self.open[number] += more

    def _join(self, near, far):
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
        back.start()
        self._pass(near, far)
        back.join()

    @staticmethod
    def _pass(source, sink):
        source.settimeout(None)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
