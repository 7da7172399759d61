"""A program on a pseudo-terminal of a known size, and what a person would see there. Standard library only."""
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time

HOME = "\x1b[H"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs a command on it. `pages` are what was drawn there, one after the other; a command that draws in no place has one."""

    def __init__(self, command, columns=100, rows=30, environment=None):
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=inner, stderr=subprocess.PIPE,
                                         env=environment, start_new_session=True)
        os.close(inner)
        self._outer, self._bytes = outer, bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        # The end of a terminal that nobody writes to any more is an error of input and output.
        with contextlib.suppress(OSError):
            while chunk := os.read(self._outer, 65_536):
                self._bytes += chunk

    @property
    def pages(self):
        """Without what moves the cursor."""
        text = bytes(self._bytes).decode("utf-8", "replace").replace("\r\n", "\n")
        return [ESCAPES.sub("", page) for page in text.split(HOME) if page]

    @property
    def last(self):
        """The last page that was drawn to its end."""
        found = self.pages
        whole = [page for page in found if page.endswith("\n")]
        return whole[-1] if whole else ""

    def sees(self, text, seconds=30):
        """Waits until the last page holds the text, and answers that page."""
        deadline = time.monotonic() + seconds
        while text not in (page := self.last):
            if time.monotonic() > deadline or self._process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"{text!r} is not seen within {seconds} s ({self._process.poll()}); last seen:\n{page}")
            time.sleep(0.02)
        return page

    def wait(self, seconds=60):
        """Its exit code, when it has ended, and what it drew last."""
        code = self._process.wait(seconds)
        self._reader.join(seconds)
        return code, self.last

    def close(self):
        """Ends it, if it has not ended by itself."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stderr.close()
        self._reader.join(5)
        os.close(self._outer)
