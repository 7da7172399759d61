"""Starts `quorate dev` on a folder of its own, finds and kills its processes, and always clears up. Standard library only.

Run as a program, it does the same for tests in other languages: it prints what dev printed, as one line of JSON, then answers
each line of its input with one line: `kill-leader`, `leader`. At the end of its input it stops the deployment.
"""
import atexit
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 120
STOP_SECONDS = 20


def executable():
    """The executable under test: `QUORATE`, or what `cargo build` left."""
    if named := os.environ.get("QUORATE"):
        return pathlib.Path(named)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "quorate"


def until(probe, seconds, what, pause=0.05):
    """The first true answer of `probe`. A condition is waited for, never a duration."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s, last seen {found!r:.200}")
        time.sleep(pause)


def processes():
    """Every living process: its parent, session and birth. A pid can be given out again; with its birth it can't."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, _, session, *rest = stat.read_text().rpartition(")")[2].split()
            if state not in "ZX":
                found[int(stat.parent.name)] = int(parent), int(session), rest[15]
    return found


def family(root):
    """A process, its session, and all that descend from them: pid and birth."""
    everyone = processes()
    kin = {pid for pid, (_, session, _) in everyone.items() if root in (pid, session)}
    while more := {pid for pid, (parent, _, _) in everyone.items() if parent in kin} - kin:
        kin |= more
    return {pid: everyone[pid][2] for pid in kin}


class Deployment:
    """Three nodes and a gateway under the supervisor of `quorate dev`."""

    def __init__(self, environment=None, data=None, arguments=()):
        """On a fresh folder, or on one that is there and stays; `arguments` are more of them for `quorate dev`."""
        self._home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-test-"))
        self.data = pathlib.Path(data) if data else self._home / "data"
        self._environment = {**os.environ, **(environment or {})}
        self._arguments = arguments
        self._others = []
        self._process = None
        atexit.register(self.stop)
        try:
            self.info = self._launch()
        except BaseException:
            self.stop(keep=True)
            raise

    def _launch(self):
        # Any free port: the default one may go to somebody else while a deployment is stopped.
        command = [str(executable()), "dev", "--json", "--port", "0", "--data", str(self.data), *self._arguments]
        with open(self._home / "dev.log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                             env=self._environment, start_new_session=True)
        lines = []

        def read(output):
            for line in output:
                lines.append(line)
        # It reads to the end, so that dev never waits for us.
        threading.Thread(target=read, args=(self._process.stdout,), daemon=True).start()

        def printed():
            ended = self._process.poll()
            found = next((line for line in list(lines) if line.startswith(b"{")), None)
            if not found and ended is not None:
                raise AssertionError(f"dev ended with {ended}: {self.log()[-500:]}")
            return found
        return json.loads(until(printed, START_SECONDS, "dev prints its JSON"))

    def log(self):
        return (self._home / "dev.log").read_text(errors="replace")

    def token(self, who):
        """The token of `agent-a`, `agent-b`, `operator` or `other-tenant`."""
        return self.info["tokens"][who]

    def url(self, path="/mcp/crux", http=None):
        """An address at the gateway, or at another one."""
        return (http or self.info["http"]).rstrip("/") + path

    # -------- state

    def status(self):
        """What `quorate status` says, or None while it can't say anything."""
        done = subprocess.run([str(executable()), "status", "--json", "--data", str(self.data)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)
        try:
            return json.loads(done.stdout) if done.returncode == 0 else None
        except ValueError:
            return None

    def leader(self, other_than=None):
        """Id and pid of the node that leads; `other_than` is a pid that must not be it."""
        def seen():
            found = self.status() or {}
            node = next((node for node in found.get("nodes", []) if node["id"] == found.get("leader")), None)
            return (node["id"], node["pid"]) if node and node.get("pid") in family(self._process.pid) and node["pid"] != other_than else None
        return until(seen, 60, "a leader")

    def node_pids(self):
        """Pid by id of all three nodes, once all of them answer."""
        def seen():
            ours = family(self._process.pid)
            found = {node["id"]: node["pid"] for node in (self.status() or {}).get("nodes", []) if node.get("pid") in ours}
            return found if len(found) == 3 else None
        return until(seen, 60, "three nodes that answer")

    # -------- harm

    def kill(self, *pids):
        """kill -9 of processes of this deployment, at the same moment."""
        ours = family(self._process.pid)
        strangers = set(pids) - set(ours)
        assert not strangers, f"not processes of this deployment: {strangers}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def kill_leader(self):
        """kill -9 of the leader; its id and pid."""
        node, pid = self.leader()
        self.kill(pid)
        return node, pid

    @contextlib.contextmanager
    def unsupervised(self):
        """For as long as the block runs, a process that was killed stays down."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def wipe(self, node):
        """kill -9 of a node, and its disk is lost."""
        with self.unsupervised():
            self.kill(self.node_pids()[node])
            shutil.rmtree(self.data / f"node-{node}")

    # -------- operator

    def verb(self, *words):
        """Runs an operator's verb to its end: exit code, its JSON, all it printed."""
        process = self.begin(*words)
        out, err = process.communicate(timeout=300)
        try:
            found = json.loads(out)
        except ValueError:
            found = {}
        return process.returncode, found, (out + err).strip()

    def begin(self, *words):
        """The same, without waiting for its end."""
        command = [str(executable()), *map(str, words), "--json", "--data", str(self.data)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def halt(self):
        """Stops what dev runs, and leaves the folder."""
        self._end(self._process)
        self._process = None

    def go_on(self):
        """Starts dev again on the same folder."""
        self.info = self._launch()

    # -------- more processes

    def spawn(self, *words):
        """Starts another process of the executable, such as a second gateway; it ends with the deployment."""
        with open(self._home / f"{words[0]}-{len(self._others)}.log", "ab") as log:
            process = subprocess.Popen([str(executable()), *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env=self._environment, start_new_session=True)
        self._others.append(process)
        return process, pathlib.Path(log.name)

    def restart(self):
        """Stops what dev runs and starts it again on the same folder."""
        self.halt()
        self.go_on()

    def stop(self, keep=False):
        """Ends everything, and whatever of it is left. Doing it twice does no harm."""
        for process in [*self._others, *([self._process] if self._process else [])]:
            self._end(process)
        self._others, self._process = [], None
        if keep or os.environ.get("QUORATE_KEEP"):
            print(f"kept {self._home}", file=sys.stderr)
        else:
            shutil.rmtree(self._home, ignore_errors=True)

    @staticmethod
    def _end(process):
        kin = family(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        kin.update(family(process.pid) if process.poll() is None else {})
        left = processes()
        for pid, birth in kin.items():
            if pid in left and left[pid][2] == birth:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def end_on_signals():
    """A signal ends the program by the ordinary way, so that deployments are stopped."""
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda number, _: sys.exit(128 + number))


def serve():
    end_on_signals()
    deployment = Deployment()
    print(json.dumps(deployment.info), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "kill-leader":
            node, pid = deployment.kill_leader()
            answer = {"id": node, "pid": pid}
        elif word == "leader":
            node, pid = deployment.leader()
            answer = {"id": node, "pid": pid}
        else:
            answer = {"error": f"no such command: {word!r}"}
        print(json.dumps(answer), flush=True)
    deployment.stop()


if __name__ == "__main__":
    serve()
