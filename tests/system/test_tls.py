"""A cluster set up with TLS, step by step as docs/security.md has it, by real processes: who gets in, who does not, and certificates
that change under load."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, executable, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

CLUSTER = "acme"
SECRETS = {"cluster_secret": uuid.uuid4().hex, "receipt_key": "5a" * 32, "session_key": "6b" * 32}
DAY = 24 * 3600
NODES = (1, 2, 3)


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


def free_ports(count):
    """Ports that are free now, all different."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


class Cluster:
    """Three nodes and two gateways with a folder each, as if each were a machine of its own."""

    def __init__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="quorate-tls-"))
        self.certs = self.home / "certs"
        self.processes, self.tokens = {}, []
        ports = free_ports(2 * len(NODES) + 2)
        self.grpc = {node: f"127.0.0.1:{ports[node - 1]}" for node in NODES}
        self.http = {node: f"127.0.0.1:{ports[node + 2]}" for node in NODES}
        self.gateways = {name: f"127.0.0.1:{port}" for name, port in zip(("gate-1", "gate-2"), ports[6:])}
        try:
            self._set_up()
        except BaseException:
            self.stop()
            raise

    def _set_up(self):
        self.make_certificates(self.certs, days=20)
        for node in NODES:
            self.deploy(f"node-{node}", self.certs)
            self.configure(f"node-{node}", {
                "node_id": node, "cluster_id": CLUSTER, "data": str(self.home / f"node-{node}" / "data"), "grpc": self.grpc[node],
                "http": self.http[node], "cluster_secret": SECRETS["cluster_secret"], "receipt_key": SECRETS["receipt_key"],
            })
            self.start(f"node-{node}", "--new")
        self.deploy("operator", self.certs)
        voters = [word for node in NODES for word in ("--voter", f"{node}={self.grpc[node]},{self.http[node]}")]
        until(lambda: self.verb("init", *voters)[0] == 0, 60, "the cluster is formed", pause=0.5)
        for name, address in self.gateways.items():
            self.deploy(name, self.certs)
            files = self.files(name)
            self.configure(name, {
                "listen": address, "nodes": list(self.grpc.values()), "cluster_secret": SECRETS["cluster_secret"],
                "session_key": SECRETS["session_key"], "listen_certificate": files["tls_certificate"], "listen_key": files["tls_key"],
                "connections_max": 100, "header_timeout_ms": 3000,
            })
            self.start(name)
        self.token = self.new_token("agent-a")
        for name in self.gateways:
            until(lambda name=name: self.ready(name), 60, f"{name} is ready")

    # -------- certificates

    def make_certificates(self, folder, days):
        for words in (["ca", "--cluster", CLUSTER], *(["node", f"node-{node}", "--host", "127.0.0.1", "--days", days] for node in NODES),
                      *(["gateway", name, "--host", "127.0.0.1", "--host", "localhost", "--days", days] for name in self.gateways),
                      ["operator", "operator", "--days", days]):
            code, _, text = self.run("cert", *words, "--dir", folder, "--json")
            assert code == 0, text

    def files(self, name):
        folder = self.home / name
        return {"tls_ca": str(folder / "ca.pem"), "tls_certificate": str(folder / "own.pem"), "tls_key": str(folder / "own.key")}

    def deploy(self, name, folder, trusted=None):
        """Copies what one machine needs onto it; the authority's key stays where it is."""
        to = self.home / name
        to.mkdir(exist_ok=True)
        ca = b"".join((authority / "ca.pem").read_bytes() for authority in trusted or [folder])
        for file, content in (("ca.pem", ca), ("own.key", (folder / f"{name}.key").read_bytes()), ("own.pem", (folder / f"{name}.pem").read_bytes())):
            draft = to / f"{file}.new"
            draft.write_bytes(content)
            draft.chmod(0o600)
            draft.rename(to / file)

    def configure(self, name, fields):
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**fields, **self.files(name)}.items()]
        (self.home / name / "config.toml").write_text("\n".join(lines) + "\n")

    # -------- processes

    def start(self, name, *words):
        kind = "node" if name.startswith("node") else "gateway"
        command = [str(executable()), kind, "--config", str(self.home / name / "config.toml"), *words]
        with open(self.home / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name):
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if os.environ.get("QUORATE_KEEP"):
            print(f"kept {self.home}", file=sys.stderr)
        else:
            shutil.rmtree(self.home, ignore_errors=True)

    def logs(self):
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.home.glob("*.log")))

    # -------- operator and clients

    @staticmethod
    def run(*words, **environment):
        done = subprocess.run([str(executable()), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                              env={**os.environ, **environment})
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = {}
        return done.returncode, found, done.stdout + done.stderr

    def verb(self, *words, files=None):
        """An operator's verb: exit code, its JSON, all it printed."""
        named = {f"QUORATE_{key.upper()}": value for key, value in (files or self.files("operator")).items()}
        return self.run(*words, "--json", "--nodes", ",".join(self.grpc.values()), QUORATE_CLUSTER_SECRET=SECRETS["cluster_secret"], **named)

    def new_token(self, passport):
        def made():
            code, found, self.last = self.verb("token", "create", "--passport", passport)
            return found if code == 0 else None
        found = until(made, 60, "a token is made", pause=0.5)
        self.tokens.append(found["token"])
        return found["token"]

    def context(self, ca=None):
        return ssl.create_default_context(cafile=str(ca or self.certs / "ca.pem"))

    def client(self, gateway="gate-1", token=None, ca=None):
        return Client(f"https://{self.gateways[gateway]}", token or self.token, context=self.context(ca))

    def ready(self, gateway):
        try:
            return self.client(gateway).send("GET", "/readyz").status == 200
        except Unreachable:
            return False

    def metric(self, address, name, label=None, ca=None):
        page = urllib.request.urlopen(f"https://{address}/metrics", context=self.context(ca), timeout=10).read().decode()
        wanted = f'{name}{{certificate="{label}"}} ' if label else f"{name} "
        return next(float(line.removeprefix(wanted)) for line in page.splitlines() if line.startswith(wanted))

    def everywhere(self):
        return [*self.http.values(), *self.gateways.values()]


class Load:
    """Callers that write and read through both gateways, each call on a connection of its own every few calls."""

    def __init__(self, cluster, ca):
        self.cluster, self.ca = cluster, ca
        self.errors, self.calls, self._stop = [], 0, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(gateway,), daemon=True) for gateway in cluster.gateways]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, gateway):
        entity, count = unique("svc"), 0
        client = self.cluster.client(gateway, ca=self.ca)
        while not self._stop.is_set():
            count += 1
            if count % 5 == 0:
                client.close()
                client = self.cluster.client(gateway, ca=self.ca)
            try:
                client.ok("store_fact", entity=entity, key="n", value=str(count))
                rows = client.ok("query_facts", entity=entity)["rows"]
                assert [row["value"] for row in rows] == [str(count)], rows
                self.calls += 2
            except (AssertionError, Unreachable) as error:
                self.errors.append(f"{gateway}: {error}")


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def test_clients_that_trust_the_authority_work_and_others_turn_away(self):
        client = self.cluster.client()
        entity = unique("svc")
        client.ok("store_fact", entity=entity, key="owner", value="platform")
        rows = self.cluster.client("gate-2").ok("query_facts", entity=entity)["rows"]
        self.assertEqual([row["value"] for row in rows], ["platform"])
        code, found, text = self.cluster.run("tool", "call", "query_facts", f"entity={entity}", "--json", "--url", f"https://{self.cluster.gateways['gate-1']}",
                                             QUORATE_TOKEN=self.cluster.token, QUORATE_CA=str(self.cluster.certs / "ca.pem"))
        self.assertEqual((code, [row["value"] for row in found.get("rows", [])]), (0, ["platform"]), text)
        with self.assertRaisesRegex(Unreachable, "CERTIFICATE_VERIFY_FAILED"):
            Client(f"https://{self.cluster.gateways['gate-1']}", None, context=ssl.create_default_context()).send("GET", "/readyz")
        with self.assertRaises(Unreachable):
            Client(f"http://{self.cluster.gateways['gate-1']}", None).send("GET", "/readyz")

    def test_the_front_door_offers_http2_and_http1(self):
        host, port = self.cluster.gateways["gate-1"].split(":")
        for offered in ("h2", "http/1.1"):
            context = self.cluster.context()
            context.set_alpn_protocols([offered])
            with socket.create_connection((host, int(port)), 10) as tcp, context.wrap_socket(tcp, server_hostname=host) as tls:
                self.assertEqual(tls.selected_alpn_protocol(), offered)

    def test_a_node_lets_no_certificate_of_another_authority_in_and_nobody_without_one(self):
        code, found, text = self.cluster.verb("status")
        self.assertEqual((code, len(found.get("nodes", []))), (0, 3), text)
        strange = self.cluster.home / "strange"
        for words in (["ca", "--cluster", CLUSTER], ["operator", "operator"]):
            self.assertEqual(self.cluster.run("cert", *words, "--dir", strange)[0], 0)
        files = {"tls_ca": str(self.cluster.certs / "ca.pem"), "tls_certificate": str(strange / "operator.pem"), "tls_key": str(strange / "operator.key")}
        code, _, text = self.cluster.verb("status", files=files)
        self.assertEqual(code, 3, text)
        code, _, text = self.cluster.verb("status", files={**files, "tls_ca": str(strange / "ca.pem")})
        self.assertEqual(code, 3, text)
        self.assertIn("invalid peer certificate", text)
        code, _, text = self.cluster.run("status", "--json", "--nodes", self.cluster.grpc[1], QUORATE_CLUSTER_SECRET=SECRETS["cluster_secret"])
        self.assertEqual(code, 3, text)

    def test_a_gateway_of_another_authority_says_why_no_node_takes_it(self):
        cluster, strange = self.cluster, self.cluster.home / "strange-gateway"
        for words in (["ca", "--cluster", CLUSTER], ["gateway", "gate-3"]):
            self.assertEqual(cluster.run("cert", *words, "--dir", strange)[0], 0)
        cluster.deploy("gate-3", strange)
        port = free_ports(1)[0]
        cluster.configure("gate-3", {"listen": f"127.0.0.1:{port}", "nodes": list(cluster.grpc.values()), "session_key": SECRETS["session_key"],
                                     "cluster_secret": SECRETS["cluster_secret"]})
        cluster.start("gate-3")
        door = Client(f"http://127.0.0.1:{port}", None)

        def told():
            with contextlib.suppress(Unreachable):
                return [problem for problem in door.send("GET", "/readyz?verbose").json["problems"] if "certificate" in problem]
        self.assertEqual(len(until(told, 30, "the reason is told")), 3)
        cluster.kill("gate-3")

    def test_a_verb_with_a_gateways_certificate_does_not_start(self):
        code, _, text = self.cluster.verb("status", files=self.cluster.files("gate-1"))
        self.assertEqual(code, 78, text)
        self.assertIn("gateway.acme.quorate.internal", text)

    def test_addresses_that_others_reach_are_refused_without_tls(self):
        folder = self.cluster.home / "open"
        node = ["node", "--new", "--node-id", 9, "--cluster-id", CLUSTER, "--data", folder, "--http", "127.0.0.1:0", "--grpc", "192.0.2.1:7401"]
        code, _, text = self.cluster.run(*node, QUORATE_NODE_RECEIPT_KEY="5a" * 32)
        self.assertEqual(code, 78, text)
        self.assertIn("quorate cert node", text)
        code, _, text = self.cluster.run("gateway", "--listen", "0.0.0.0:0", "--nodes", "127.0.0.1:1", QUORATE_GATEWAY_SESSION_KEY=SECRETS["session_key"])
        self.assertEqual(code, 78, text)
        self.assertIn("listen_certificate", text)
        self.assertFalse(folder.exists(), "a refused node makes no folder")

    def test_half_open_connections_do_not_keep_a_client_out(self):
        host, port = self.cluster.gateways["gate-2"].split(":")
        with contextlib.ExitStack() as held:
            for number in range(120):
                silent = held.enter_context(socket.create_connection((host, int(port)), 10))
                if number % 2:
                    silent.send(b"\x16\x03\x01\x02")  # the beginning of a handshake, and no more
            for _ in range(5):
                start = time.monotonic()
                self.cluster.client("gate-2").ok("list_entities")
                self.assertLess(time.monotonic() - start, 2.5, "it waited for the silent ones to time out")

    def test_a_revoked_token_is_refused_by_every_gateway_within_one_second(self):
        for _ in range(3):
            token = self.cluster.new_token(unique("agent"))
            clients = {name: self.cluster.client(name, token) for name in self.cluster.gateways}
            for client in clients.values():
                client.ok("list_entities")
            refused, stop = {}, threading.Event()

            def ask(name, client):
                while not stop.is_set() and name not in refused:
                    if client.send("POST", "/v1/tools/crux/list_entities", b"{}").status == 401:
                        refused[name] = time.monotonic()
            threads = [threading.Thread(target=ask, args=one, daemon=True) for one in clients.items()]
            for thread in threads:
                thread.start()
            code, _, text = self.cluster.verb("token", "revoke", token)
            done = time.monotonic()
            self.assertEqual(code, 0, text)
            for thread in threads:
                thread.join(10)
            stop.set()
            self.assertEqual(set(refused), set(clients))
            for name in clients:
                took = refused[name] - done
                print(f"       revoked at {name}: refused {took * 1000:.0f} ms after the verb ended")
                self.assertLess(took, 1.0)

    def test_all_certificates_and_the_authority_change_under_load_without_an_error(self):
        cluster = self.cluster
        both = cluster.home / "both.pem"
        new = cluster.home / "new-certs"
        code, _, text = cluster.run("cert", "ca", "--cluster", CLUSTER, "--dir", new, "--days", 7000)
        self.assertEqual(code, 0, text)
        both.write_bytes((cluster.certs / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
        members = [*(f"node-{node}" for node in NODES), *cluster.gateways, "operator"]

        def all_show(label, days, what):
            def shown():
                return min(cluster.metric(address, "quorate_tls_certificate_left_seconds", label, both) for address in cluster.everywhere()) > days * DAY
            until(shown, 60, what, pause=0.5)

        with Load(cluster, both) as load:
            until(lambda: load.calls > 20, 60, "calls are made")
            # The same authority, new certificates.
            code, found, text = cluster.run("cert", "renew", "--dir", cluster.certs, "--json")
            self.assertEqual((code, [row["changed"] for row in found["certificates"]]), (0, [True] * len(members)), text)
            for name in members:
                cluster.deploy(name, cluster.certs)
            all_show("link", 300, "renewed certificates are in use")
            # Another authority: trusted everywhere first, then used, then alone.
            for name in members:
                cluster.deploy(name, cluster.certs, trusted=[cluster.certs, new])
            all_show("link_ca", 6_900, "both authorities are trusted")
            cluster.make_certificates(new, days=500)
            for name in members:
                cluster.deploy(name, new, trusted=[cluster.certs, new])
            all_show("link", 400, "certificates of the new authority are in use")
            # Every node begins anew while calls run: all its connections are made under the new certificates.
            for node in NODES:
                cluster.kill(f"node-{node}")
                cluster.start(f"node-{node}")

                def caught_up():
                    found = cluster.verb("status")[1]
                    return found.get("leader") and all(row["role"] in ("leader", "follower") and (row["lag"] or 0) < 50 for row in found["nodes"])
                until(caught_up, 60, f"node {node} is back", pause=0.3)
            for name in members:
                cluster.deploy(name, new)
            before = load.calls
            until(lambda: load.calls > before + 20 or load.errors, 60, "calls go on")
        self.assertEqual(load.errors, [])
        # What follows in this class trusts the new one.
        cluster.certs = new
        print(f"       {load.calls} calls, no error")

    def test_certificates_that_can_not_be_used_are_told_and_the_old_ones_go_on(self):
        cluster, address = self.cluster, self.cluster.gateways["gate-1"]
        before = cluster.metric(address, "quorate_tls_reload_failures_total")
        own = cluster.home / "gate-1" / "own.pem"
        good = own.read_bytes()
        try:
            own.write_bytes(b"-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n")
            until(lambda: cluster.metric(address, "quorate_tls_reload_failures_total") > before, 30, "the failure is counted")
            cluster.client().ok("list_entities")
            self.assertIn("the old ones go on", (cluster.home / "gate-1.log").read_text())
        finally:
            own.write_bytes(good)

    def test_a_certificate_that_ends_soon_is_warned_of(self):
        cluster, name = self.cluster, "gate-2"
        own = cluster.home / name / "own.pem"
        good = own.read_bytes()
        folder = cluster.home / "brief"
        shutil.copytree(cluster.certs, folder)
        (folder / f"{name}.pem").unlink()
        code, _, text = cluster.run("cert", "gateway", name, "--host", "127.0.0.1", "--days", 5, "--dir", folder)
        self.assertEqual(code, 0, text)
        try:
            draft = own.with_suffix(".new")
            draft.write_bytes((folder / f"{name}.pem").read_bytes())
            draft.rename(own)
            until(lambda: "expires soon" in (cluster.home / f"{name}.log").read_text(), 30, "the warning is in the log")
            self.assertLess(cluster.metric(cluster.gateways[name], "quorate_tls_certificate_left_seconds", "front"), 5 * DAY + 1)
        finally:
            own.write_bytes(good)

    def test_acts_of_administration_are_told_and_no_secret_is(self):
        cluster = self.cluster
        passport = unique("agent")
        token = cluster.new_token(passport)
        self.assertEqual(cluster.verb("token", "revoke", token)[0], 0)
        self.assertEqual(cluster.verb("token", "revoke", "0" * 64)[0], 1)
        self.assertEqual(cluster.verb("remove", 9)[0], 1)
        leader = cluster.verb("status")[1]["leader"]
        self.assertEqual(cluster.verb("transfer", leader % 3 + 1)[0], 0)
        operator = cluster.verb("token", "create", "--passport", unique("boss"), "--tier", "operator", "--scope", "*")[1]["token"]
        cluster.tokens.append(operator)
        boss, agent = cluster.client(token=operator), cluster.client()
        card = agent.ok("punch_in", resource=f"file://{unique('src')}", holder_passport=agent.name())
        boss.ok("force_release", punchcard_id=card["id"], confirm=True, reason="the test wants it")
        logs = cluster.logs()
        lines = [json.loads(line) for line in logs.splitlines() if '"quorate_audit"' in line]
        fields = {"timestamp", "level", "target", "act", "outcome", "code", "tenant", "passport", "peer", "subject", "request_id", "revision", "replayed"}
        for line in lines:
            self.assertEqual(set(line), fields)
        told = {(line["act"], line["outcome"]) for line in lines}
        for act in (("init", "done"), ("token_create", "done"), ("token_revoke", "done"), ("token_revoke", "refused"), ("member_remove", "refused"),
                    ("transfer_leader", "done"), ("force_release", "done")):
            self.assertIn(act, told)
        made = next(line for line in lines if line["act"] == "token_create" and passport in line["subject"])
        self.assertEqual((made["passport"], made["peer"]), ("system", "operator.acme.quorate.internal"))
        forced = next(line for line in lines if line["act"] == "force_release")
        self.assertEqual((forced["tenant"], forced["peer"]), ("default", "gateway.acme.quorate.internal"))
        keys = [path.read_text().split("-----")[2].strip() for path in cluster.home.glob("*/own.key")]
        for secret in [*SECRETS.values(), *cluster.tokens, *keys]:
            self.assertFalse(secret in logs, "a secret is in the logs")


class Dev(unittest.TestCase):
    def test_dev_with_tls_makes_its_certificates_once_and_speaks_tls_everywhere(self):
        deployment = Deployment(arguments=("--tls",))
        self.addCleanup(deployment.stop)
        context = ssl.create_default_context(cafile=deployment.info["ca"])
        self.assertTrue(deployment.info["http"].startswith("https://"))
        client = Client(deployment.info["http"], deployment.token("agent-a"), context=context)
        entity = unique("svc")
        client.ok("store_fact", entity=entity, key="owner", value="platform")
        for node in deployment.info["nodes"]:
            page = urllib.request.urlopen(node["http"] + "/metrics", context=context, timeout=10).read().decode()
            self.assertIn('quorate_tls_certificate_left_seconds{certificate="link"}', page)
        code, found, text = deployment.verb("tool", "call", "query_facts", f"entity={entity}", "--as", "agent-b")
        self.assertEqual((code, [row["value"] for row in found.get("rows", [])]), (0, ["platform"]), text)
        key = (deployment.data / "tls" / "node.key").read_bytes()
        code, found, text = deployment.verb("replace", "3")
        self.assertEqual(code, 0, text)
        deployment.kill_leader()
        client.ok("store_fact", entity=entity, key="owner", value="sre")
        client.close()
        deployment.restart()
        self.assertEqual((deployment.data / "tls" / "node.key").read_bytes(), key)
        self.assertEqual([row["value"] for row in client.ok("query_facts", entity=entity)["rows"]], ["sre"])


if __name__ == "__main__":
    main()
