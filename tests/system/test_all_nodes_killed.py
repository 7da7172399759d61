"""All three nodes die at once, under load. Nothing acknowledged is lost, nothing is there twice, and every lease stands."""
import pathlib
import random
import sys
import threading
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client, Unreachable  # noqa: E402

ROUNDS = 3
WRITERS = 8
ACKED_BEFORE, ACKED_AFTER = 120, 120
LEASE_TTL_MS = 30 * 60 * 1000
ROUND_SECONDS = 180


class Writer(threading.Thread):
    """Stores facts and takes cards. A call without an answer is sent again with its key, until it has one."""

    def __init__(self, deployment, name, holder):
        super().__init__(daemon=True)
        self.client = Client(deployment.info["http"], deployment.token("agent-a"), timeout=20)
        self.entity, self.holder = name, holder
        self.facts, self.cards, self.repeated, self.broken = [], [], 0, None
        self._ending = threading.Event()

    def run(self):
        try:
            n = 0
            while not self._ending.is_set():
                fact = self.until_answered("store_fact", entity=self.entity, key=f"k{n}", value=f"{self.entity} {n}")
                self.facts.append((f"k{n}", fact["fact_id"], fact["version"]))
                if n % 10 == 0:
                    resource = f"file://{self.entity}/{n}.rs"
                    card = self.until_answered("punch_in", resource=resource, holder_passport=self.holder, ttl_ms=LEASE_TTL_MS)
                    self.cards.append((resource, card["id"], card["fencing_token"]))
                n += 1
        except BaseException as error:
            self.broken = error

    def until_answered(self, tool, **arguments):
        key, deadline = uuid.uuid4().hex, time.monotonic() + ROUND_SECONDS
        while True:
            try:
                answer = self.client.call(tool, {**arguments, "idempotency_key": key})
                if answer.ok:
                    return answer.data
                assert answer.error.get("retryable"), f"{tool} failed for good: {answer}"
            except Unreachable:
                pass
            self.repeated += 1
            assert time.monotonic() < deadline, f"{tool} had no answer for {ROUND_SECONDS} s"
            time.sleep(0.05)

    def stop(self):
        self._ending.set()


class AllNodesKilled(unittest.TestCase):
    def test_no_acknowledged_write_is_lost_or_doubled_and_leases_keep_their_tokens(self):
        deployment = Deployment()
        try:
            for _ in range(ROUNDS):
                self.one_round(deployment)
        except BaseException:
            print(deployment.log()[-3000:])
            raise
        finally:
            deployment.stop()

    def test_a_caller_that_the_gateway_has_not_met_waits_for_the_nodes_to_come_back(self):
        deployment = Deployment()
        try:
            deployment.kill(*deployment.node_pids().values())
            stranger = Client(deployment.info["http"], deployment.token("agent-b"))
            self.assertEqual(stranger.ok("list_entities")["entities"], [])
        finally:
            deployment.stop()

    def one_round(self, deployment):
        reader = Client(deployment.info["http"], deployment.token("agent-a"))
        other = Client(deployment.info["http"], deployment.token("agent-b"))
        holder, other_name = reader.name(), other.name()
        mark = uuid.uuid4().hex[:10]
        writers = [Writer(deployment, f"killed-{mark}-{i}", holder) for i in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            self.until_acked(writers, ACKED_BEFORE + random.randrange(50))
            pids = deployment.node_pids()
            deployment.kill(*pids.values())
            acked = self.acked(writers)
            self.until_acked(writers, acked + ACKED_AFTER)
        finally:
            for writer in writers:
                writer.stop()
        for writer in writers:
            writer.join(ROUND_SECONDS)
            self.assertFalse(writer.is_alive(), "a writer hangs")
            if writer.broken:
                raise writer.broken
        again = deployment.node_pids()
        self.assertFalse(set(again.values()) & set(pids.values()), f"killed {pids}, and now there are {again}")

        facts = cards = 0
        for writer in writers:
            rows = {row["key"]: row for row in reader.listed("query_facts", "rows", entity=writer.entity, top_k=1_000)} if writer.facts else {}
            self.assertEqual(set(rows), {key for key, _, _ in writer.facts}, f"facts of {writer.entity}")
            for key, fact_id, version in writer.facts:
                # Version 1 alone: a write that was repeated had one effect.
                self.assertEqual((rows[key]["fact_id"], version), (fact_id, 1), f"{writer.entity}/{key}")
                facts += 1
            for resource, card_id, token in writer.cards:
                answer = other.call("punch_in", {"resource": resource, "holder_passport": other_name, "ttl_ms": LEASE_TTL_MS})
                self.assertFalse(answer.ok, f"{resource} was held and is given to another")
                self.assertIn(holder, answer.text, f"the refusal of {resource} does not name its holder")
                renewed = reader.ok("punch_in", resource=resource, holder_passport=holder, ttl_ms=LEASE_TTL_MS)
                self.assertEqual((renewed["id"], renewed["fencing_token"]), (card_id, token), f"the card of {resource}")
                cards += 1
        print(f"       {facts} facts and {cards} cards stand; {sum(writer.repeated for writer in writers)} calls were repeated", flush=True)
        reader.close()
        other.close()

    @staticmethod
    def acked(writers):
        return sum(len(writer.facts) for writer in writers)

    def until_acked(self, writers, count):
        def seen():
            broken = next((writer.broken for writer in writers if writer.broken), None)
            if broken:
                raise broken
            return self.acked(writers) >= count
        until(seen, ROUND_SECONDS, f"{count} acknowledged writes")


if __name__ == "__main__":
    main()
