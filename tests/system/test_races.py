"""Races against a true cluster and two gateways: sixty that claim one item, sixty that wait for one card, decisions from two places.

`RACES=1000 python3 tests/system/test_races.py` runs each race so often; a few times by default. The rules alone are raced a thousand
times each in `domain/tests/races.rs`.
"""
import concurrent.futures
import os
import pathlib
import socket
import sys
import threading
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

RUNS = int(os.environ.get("RACES", "3"))
CALLERS = 60
DECIDERS = 4
PROJECT = "p_default"


class Racer:
    """A passport with a connection of its own, to one of the gateways."""

    def __init__(self, name, token, base):
        self.name, self.client = name, Client(base, token, via="http")

    def call(self, tool, **arguments):
        return self.client.call(tool, arguments)


class Races(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process, log = cls.deployment.spawn("gateway", "--data", cls.deployment.data, "--listen", f"127.0.0.1:{port}")
        cls.bases = cls.deployment.info["http"], f"http://127.0.0.1:{port}"

        def ready():
            assert process.poll() is None, f"the second gateway ended: {log.read_text()[-500:]}"
            try:
                return Client(cls.bases[1], None).send("GET", "/readyz").status == 200
            except Unreachable:
                return False
        until(ready, 60, "the second gateway is ready")
        cls.racers = [cls.racer(f"racer-{n}", n) for n in range(CALLERS)]
        cls.deciders = [cls.racer(f"decider-{n}", n, "--tier", "operator", "--scope", "*") for n in range(DECIDERS)]
        cls.starter = cls.racer("starter", 0, "--tier", "operator", "--scope", "*")
        cls.pool = concurrent.futures.ThreadPoolExecutor(CALLERS)

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        cls.deployment.stop()

    @classmethod
    def racer(cls, name, n, *words):
        code, made, told = cls.deployment.verb("token", "create", "--passport", name, *words)
        assert code == 0, told
        return Racer(name, made["token"], cls.bases[n % 2])

    def at_once(self, racers, act):
        """What each racer's call answered; none begins before all are ready."""
        gate = threading.Barrier(len(racers))

        def run(racer):
            gate.wait(60)
            return act(racer)
        return list(self.pool.map(run, racers))

    def test_of_sixty_that_claim_an_item_at_once_one_has_it(self):
        for run in range(RUNS):
            made = self.starter.call("create_work", project_id=PROJECT, title=f"race {run}", created_by_passport="starter").data
            answers = self.at_once(self.racers, lambda racer: racer.call(
                "update_work_state", work_id=made["id"], state="in_progress", by_passport=racer.name, expected_state="planned",
                assignee_passport=racer.name))
            winners = [racer.name for racer, answer in zip(self.racers, answers) if answer.ok]
            self.assertEqual(len(winners), 1, f"run {run}: {winners}")
            refused = {answer.status for answer in answers if not answer.ok}
            self.assertEqual(refused, {412}, f"run {run}: the others are told that it has changed")
            told = [answer.error["data"] for answer in answers if not answer.ok]
            owners = {(data["found"], data["assignee_passport"]) for data in told}
            self.assertEqual(owners, {("in_progress", winners[0])}, f"run {run}: the others are told whose it is")
            item = self.starter.call("list_work", work_id=made["id"]).data["work"][0]
            self.assertEqual((item["assignee_passport"], item["state"]), (winners[0], "in_progress"), f"run {run}")
            claims = [event for event in self.starter.call("status_feed", work_id=made["id"]).data["events"] if event["verb"] == "CLAIMED"]
            self.assertEqual([event["by_passport"] for event in claims], winners, f"run {run}")

    def test_of_sixty_that_wait_for_a_card_one_has_it_at_a_time_and_all_have_it_once(self):
        for run in range(RUNS):
            resource = f"service://race-{uuid.uuid4().hex[:8]}"
            held = self.starter.call("punch_in", resource=resource, holder_passport="starter", ttl_ms=600_000)
            self.assertTrue(held.ok, held)
            inside, log = threading.Lock(), []

            def turn(racer):
                card = racer.call("punch_in", resource=resource, holder_passport=racer.name, ttl_ms=60_000, wait_ms=24_000)
                if not card.ok:
                    return card.text
                # Whoever is told that he has it is alone: nobody else is between his card and his giving it back.
                if not inside.acquire(blocking=False):
                    return f"{racer.name} has it while another one does"
                log.append((card.data["fencing_token"], racer.name))
                seen = racer.call("list_punchcards", resource=resource, status="held").data["punchcards"]
                inside.release()
                if [card["holder_passport"] for card in seen] != [racer.name]:
                    return f"{racer.name} has it, and the cluster says {seen}"
                back = racer.call("punch_out", resource=resource, holder_passport=racer.name, fencing_token=card.data["fencing_token"])
                return None if back.ok else back.text
            gone = self.pool.map(turn, self.racers)

            def all_wait():
                waiting, cursor = 0, ""
                while True:
                    page = self.starter.client.send("GET", f"/v1/punchcards/waiters?limit=1000&resource={resource}{cursor}").data
                    waiting += len(page["waiters"])
                    if not page.get("next_cursor"):
                        return waiting == CALLERS
                    cursor = f"&cursor={page['next_cursor']}"
            until(all_wait, 20, f"run {run}: all of them wait")
            given = self.starter.call("punch_out", resource=resource, holder_passport="starter")
            self.assertTrue(given.ok, given)
            self.assertEqual([told for told in gone if told], [], f"run {run}")
            tokens = [token for token, _ in log]
            self.assertEqual(tokens, sorted(set(tokens)), f"run {run}: tokens rise from holder to holder")
            self.assertEqual(len({name for _, name in log}), CALLERS, f"run {run}: each had it once")

    def test_of_decisions_from_two_places_one_stands(self):
        for run in range(RUNS):
            asked = self.racers[run % CALLERS].call("approval_request", action_summary=f"race {run}", risk_tier="high", scope="default",
                                                    token_budget=500).data
            decisions = {decider.name: ("approve", "reject")[n // 2] for n, decider in enumerate(self.deciders)}
            answers = self.at_once(self.deciders, lambda decider: decider.call(
                "approval_decide", request_id=asked["request_id"], decision=decisions[decider.name]))
            winners = [(decider.name, answer.data) for decider, answer in zip(self.deciders, answers) if answer.ok]
            self.assertEqual(len(winners), 1, f"run {run}: {answers}")
            name, told = winners[0]
            status = {"approve": "approved", "reject": "rejected"}[decisions[name]]
            self.assertEqual((told["status"], told["reviewer_passport"]), (status, name), f"run {run}")
            for decider in self.deciders[:2]:
                seen = decider.client.send("GET", f"/v1/approvals/{asked['request_id']}").data
                self.assertEqual((seen["status"], seen["reviewer"]), (status, name), f"run {run}: seen at {decider.name}")


if __name__ == "__main__":
    main()
