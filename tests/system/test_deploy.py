"""What `deploy/` holds: the units are sound, the manifests render, and the compose files' own commands and settings make a cluster.

No container engine is needed. Each service of a compose file runs as a process with its environment; the names of the services stand
in a hosts file of their own, each for another address of the loopback network.
"""
import json
import os
import pathlib
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from deployment import executable  # noqa: E402
from runner import main  # noqa: E402

DEPLOY = ROOT / "deploy"
STARTS_WITHIN_SECONDS = 90


def yaml(text):
    """Documents of a YAML text. The tests' own Python has the library."""
    python = executable().parents[1] / "setup" / "python-2" / "bin" / "python"
    program = "import sys, json, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    done = subprocess.run([python, "-c", program], input=text, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def settings(role):
    """The fields that `docs/configuration.md` names, as environment variables."""
    part = (ROOT / "docs" / "configuration.md").read_text().split("## A gateway")[0 if role == "NODE" else 1].split("## Logs")[0]
    return {f"QUORATE_{role}_{field.upper()}" for field in re.findall(r"^\| `([a-z_]+)` \|", part, re.MULTILINE)}


class Package(unittest.TestCase):
    def test_the_manual_and_the_completions_that_the_package_installs_are_made_by_the_executable(self):
        assets = tomllib.loads((ROOT / "cli" / "Cargo.toml").read_text())["package"]["metadata"]["deb"]["assets"]
        made = {asset[0].removeprefix("target/release/shell/"): asset[1] for asset in assets if asset[0].startswith("target/release/shell/")}
        self.assertEqual(len(made), 4, made)
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as folder:
            subprocess.run([DEPLOY / "debian" / "files", executable(), folder], check=True, timeout=60)
            found = {name: list(pathlib.Path(folder).glob(name)) for name in made}
            for name, files in found.items():
                self.assertTrue(files and all(file.stat().st_size for file in files), name)
            self.assertEqual(sum(len(files) for files in found.values()), sum(file.is_file() for file in pathlib.Path(folder).rglob("*")),
                             "all that is made is installed")


class Units(unittest.TestCase):
    def test_the_units_are_sound(self):
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as folder:
            for name in ("quorate-node.service", "quorate-gateway.service"):
                text = (DEPLOY / "systemd" / name).read_text()
                self.assertIn("ExecStart=/usr/bin/quorate ", text)
                unit = pathlib.Path(folder, name)
                unit.write_text(text.replace("/usr/bin/quorate", str(executable())))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_unit_starts_what_it_says_and_does_not_start_again_what_is_refused(self):
        text = (DEPLOY / "systemd" / "quorate-node.service").read_text()
        line = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE).group(1)
        refused = re.search(r"^RestartPreventExitStatus=(\d+)$", text, re.MULTILINE).group(1)
        with tempfile.TemporaryDirectory(prefix="quorate-test-") as folder:
            config = pathlib.Path(folder, "node.toml")
            config.write_text(f'node_id = 1\ncluster_id = "acme"\ndata = "{folder}/node"\ngrpc = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\n'
                              f'receipt_key = "{"07" * 32}"\n')
            words = shlex.split(line.replace("/usr/bin/quorate", str(executable())).replace("/etc/quorate/node.toml", str(config)))
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            self.assertEqual(str(done.returncode), refused, done.stderr)
            self.assertIn("is empty", done.stderr)


class Manifests(unittest.TestCase):
    def setUp(self):
        done = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml(done.stdout)}

    def containers(self):
        for each in self.objects.values():
            template = each.get("spec", {}).get("template")
            for container in template["spec"]["containers"] if template else []:
                yield each, template["spec"], container

    def test_they_render_to_what_a_cluster_needs(self):
        kinds = sorted(self.objects)
        self.assertEqual(kinds, sorted([
            ("Namespace", "quorate"), ("Service", "quorate-node"), ("PodDisruptionBudget", "quorate-node"), ("StatefulSet", "quorate-node"),
            ("Job", "quorate-init"), ("Service", "quorate"), ("PodDisruptionBudget", "quorate-gateway"), ("Deployment", "quorate-gateway")]))
        nodes = self.objects[("StatefulSet", "quorate-node")]["spec"]
        self.assertEqual((nodes["replicas"], nodes["ordinals"]["start"], nodes["podManagementPolicy"]), (3, 1, "Parallel"))
        self.assertIn("podAntiAffinity", nodes["template"]["spec"]["affinity"])
        self.assertTrue(self.objects[("Service", "quorate-node")]["spec"]["publishNotReadyAddresses"])

    def test_every_setting_exists_and_every_secret_is_made_by_the_readme(self):
        readme = (DEPLOY / "README.md").read_text()
        known = settings("NODE") | settings("GATEWAY") | {"POD_NAME", "QUORATE_TLS_CA", "QUORATE_TLS_CERTIFICATE", "QUORATE_TLS_KEY"}
        for each, pod, container in self.containers():
            names = {variable["name"] for variable in container.get("env", [])}
            self.assertLessEqual(names, known, each["metadata"]["name"])
            for source in container.get("envFrom", []):
                self.assertIn(f"secret generic {source['secretRef']['name']}", readme)
            for volume in pod["volumes"]:
                role = volume["secret"]["secretName"].removeprefix("quorate-").removesuffix("-tls")
                self.assertIn(role, ("node", "gateway", "operator"))
            self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])


class Compose(unittest.TestCase):
    """Services as processes, by the names that they have there."""

    def setUp(self):
        home = tempfile.TemporaryDirectory(prefix="quorate-test-")
        self.addCleanup(home.cleanup)
        self.home = pathlib.Path(home.name)
        self.certs = self.home / "certs"
        self.processes = []
        self.addCleanup(self.stop)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(timeout=60)

    def quorate(self, *words):
        subprocess.run([executable(), *words], check=True, capture_output=True, timeout=60)

    def load(self, name):
        self.file = yaml((DEPLOY / "compose" / name).read_text())[0]
        services = [service for service in self.file["services"] if service != "init"]
        # Loopback addresses that other tests do not use.
        self.addresses = {service: f"127.{os.getpid() % 200 + 20}.{number // 250}.{number % 250 + 1}" for number, service in enumerate(services)}
        lines = ["127.0.0.1 localhost", *(f"{address} {service}" for service, address in self.addresses.items())]
        (self.home / "hosts").write_text("\n".join(lines) + "\n")
        self.quorate("cert", "ca", "--cluster", "acme", "--dir", self.certs)
        for service in services:
            role, host = service.split("-")[0], [] if service.startswith("node") else ["--host", "localhost"]
            self.quorate("cert", role, service, *host, "--dir", self.certs)
        self.quorate("cert", "operator", "operator", "--dir", self.certs)
        example = (DEPLOY / "compose" / "secrets.env.example").read_text()
        names = re.findall(r"^([A-Z_]+)=$", example, re.MULTILINE)
        self.secrets = {name: "5c" * 32 for name in names}
        return services

    def environment(self, service):
        asked = dict(self.file["services"][service]["environment"])
        for name, value in asked.items():
            asked[name] = value.replace("/etc/quorate/", f"{self.certs}/").replace("/var/lib/quorate", str(self.home / service))
            # In a container it has all addresses for itself.
            asked[name] = asked[name].replace("0.0.0.0", self.addresses.get(service, ""))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("QUORATE")}
        return {**inherited, **self.secrets, **asked}

    def command(self, words):
        """In a view of the file system in which the services have their names."""
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        program = f"mount --bind {shlex.quote(str(self.home / 'hosts'))} /etc/hosts && exec \"$@\""
        return ["unshare", *as_root, "--mount", "sh", "-c", program, "sh", str(executable()), *words]

    def start(self, service):
        (self.home / service).mkdir()
        with open(self.home / f"{service}.log", "w") as log:
            self.processes.append(subprocess.Popen(self.command(self.file["services"][service]["command"]), env=self.environment(service),
                                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def run_init(self, *words):
        words = words or self.file["services"]["init"]["command"]
        return subprocess.run(self.command(words), env=self.environment("init"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=STARTS_WITHIN_SECONDS)

    def logs(self):
        return "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in sorted(self.home.glob("*.log")))

    def serve(self, name):
        """Starts a compose file as `up` would, and asks each gateway who the caller is."""
        services = self.load(name)
        for service in services:
            self.start(service)
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        # `restart: on-failure`
        while (done := self.run_init()).returncode != 0:
            self.assertLess(time.monotonic(), deadline, f"{done.stderr}\n{self.logs()}")
            time.sleep(0.3)
        self.assertEqual(self.run_init().returncode, 0, "it is run at each `up`")
        while (made := self.run_init("token", "create", "--passport", "agent-a", "--json")).returncode != 0:
            self.assertLess(time.monotonic(), deadline, f"{made.stderr}\n{self.logs()}")
            time.sleep(0.3)
        token = json.loads(made.stdout)["token"]
        trust = ssl.create_default_context(cafile=self.certs / "ca.pem")
        # The certificate names localhost, and the connection goes to another address.
        trust.check_hostname = False
        answers = []
        for service in (service for service in services if service.startswith("gateway")):
            url = f"https://{self.addresses[service]}:7400/v1/tools/crux/get_agent_identity"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Host": "localhost"}
            with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=30, context=trust) as answer:
                answers.append(json.loads(answer.read())["agent_name"])
        return answers

    def test_one_node_and_a_gateway_serve(self):
        self.assertEqual(self.serve("one-node.yaml"), ["agent-a"])

    def test_three_nodes_and_two_gateways_serve_and_lose_a_node_without_an_error(self):
        self.assertEqual(self.serve("three-nodes.yaml"), ["agent-a", "agent-a"])
        self.processes[0].kill()
        made = self.run_init("token", "create", "--passport", "agent-b", "--json")
        self.assertEqual(made.returncode, 0, made.stderr)


class Monitoring(unittest.TestCase):
    def test_alerts_and_dashboard_ask_for_metrics_that_there_are(self):
        docs = (ROOT / "docs" / "metrics.md").read_text()
        documented = set(re.findall(r"`(quorate_[a-z0-9_]+)", docs))
        alerts = (DEPLOY / "monitoring" / "alerts.yaml").read_text()
        dashboard = (DEPLOY / "monitoring" / "dashboard.json").read_text()
        rules = yaml(alerts)[0]["groups"][0]["rules"]
        panels = [panel for panel in json.loads(dashboard)["panels"] if panel["type"] != "row"]
        asked = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
        for expression in asked:
            for metric in re.findall(r"quorate_[a-z0-9_]+", expression):
                self.assertIn(metric.removesuffix("_bucket"), documented, expression)
        self.assertGreater(len(asked), 25)


if __name__ == "__main__":
    main()
