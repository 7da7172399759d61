"""The official Python SDK against a deployment: what a team does all day, and a leader that dies meanwhile.

Runs under both major versions of the SDK; `session_1` and `session_2` hold what differs.
"""
import asyncio
import importlib.metadata
import pathlib
import re
import sys
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))

from deployment import Deployment, executable  # noqa: E402
from runner import main  # noqa: E402

SDK = importlib.metadata.version("mcp")
if SDK.startswith("1."):
    from session_1 import MODES, connect, connect_bridge
else:
    from session_2 import MODES, connect, connect_bridge

CASE_SECONDS = 180
# Acknowledged writes before the leader is killed, and at least as many after another one leads.
ACKED_BEFORE, ACKED_AFTER = 30, 60


def unique(word):
    return f"{word}-{uuid.uuid4().hex[:10]}"


async def ok(client, tool, **arguments):
    """The data of a call that has to succeed."""
    failed, data, text = await client.call(tool, arguments)
    assert not failed, f"{tool} was refused: {text}"
    assert isinstance(data, dict), f"{tool} has no structured content beside {text!r:.200}"
    return data


async def refused(client, tool, **arguments):
    """The text of a call that has to be refused."""
    failed, data, text = await client.call(tool, arguments)
    assert failed, f"{tool} was accepted: {data}"
    return text


class PythonSdk(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def connect(self, who, mode=MODES[0]):
        return connect(self.deployment.url(), self.deployment.token(who), mode)

    def run(self, result=None):
        method = getattr(self, self._testMethodName)

        async def bounded():
            # unittest turns it on, and it tells of every slow callback.
            asyncio.get_running_loop().set_debug(False)
            await asyncio.wait_for(method(), CASE_SECONDS)
        setattr(self, self._testMethodName, bounded)
        return super().run(result)

    async def test_tools_are_listed_and_facts_are_kept(self):
        for mode in MODES:
            async with self.connect("agent-a", mode) as client:
                assert re.fullmatch(r"20\d\d-\d\d-\d\d", client.protocol), client.protocol
                tools = await client.tools()
                assert {"store_fact", "query_facts", "punch_in", "approval_request", "receipt_verify"} <= set(tools), sorted(tools)
                assert "idempotency_key" in tools["store_fact"]["properties"]
                entity = unique("svc")
                stored = await ok(client, "store_fact", entity=entity, key="owner", value="platform")
                rows = (await ok(client, "query_facts", entity=entity))["rows"]
                assert [(row["fact_id"], row["value"]) for row in rows] == [(stored["fact_id"], "platform")], rows
                text = await refused(client, "store_fact", entity=entity, key="owner", value="x", colour="red")
                assert "colour" in text and "confidence" in text, f"an unknown argument and the known ones: {text}"

    async def test_a_held_card_names_its_holder_and_the_time_left(self):
        async with self.connect("agent-a") as a, self.connect("agent-b", MODES[-1]) as b:
            a_name, b_name = [(await ok(client, "get_agent_identity"))["agent_name"] for client in (a, b)]
            resource = f"file://{unique('src')}/lib.rs"
            card = await ok(a, "punch_in", resource=resource, holder_passport=a_name, ttl_ms=60_000)
            text = await refused(b, "punch_in", resource=resource, holder_passport=b_name, ttl_ms=60_000)
            assert a_name in text, f"the refusal does not name {a_name}: {text}"
            assert re.search(r"\d+(\.\d+)? ?(ms|s|seconds|min)\b", text), f"the refusal does not tell the time left: {text}"
            await ok(a, "punch_out", resource=resource, holder_passport=a_name, fencing_token=card["fencing_token"])
            next_card = await ok(b, "punch_in", resource=resource, holder_passport=b_name, ttl_ms=60_000)
            assert next_card["fencing_token"] > card["fencing_token"]

    async def test_a_decision_leaves_a_receipt_that_verifies(self):
        async with self.connect("agent-a") as a, self.connect("operator", MODES[-1]) as operator:
            tenant = (await ok(a, "resolve_principal"))["principal"]["tenant_id"]
            asked = await ok(a, "approval_request", action_summary="drop the table", risk_tier="high", scope=tenant, token_budget=500)
            await refused(a, "approval_decide", request_id=asked["request_id"], decision="approve", reviewer_tier="operator")
            decided = await ok(operator, "approval_decide", request_id=asked["request_id"], decision="approve", reviewer_notes="seen")
            assert decided["status"] == "approved", decided
            checked = await ok(operator, "receipt_verify", receipt_id=decided["receipt_id"])
            assert checked["verified"] and not checked["errors"], checked

    async def test_no_call_fails_while_the_leader_is_killed(self):
        for mode in MODES:
            async with self.connect("agent-a", mode) as client:
                await self.work_through_a_kill(client)

    async def work_through_a_kill(self, client):
        mark, acked, killed = unique("kill"), [], None
        new_leader = None
        while not (new_leader and new_leader.done() and len(acked) >= killed_at + ACKED_AFTER):
            n = len(acked)
            entity, key = f"{mark}-{n % 7}", f"k{n}"
            stored = await ok(client, "store_fact", entity=entity, key=key, value=f"value of {key}")
            acked.append((entity, key, stored["fact_id"]))
            rows = (await ok(client, "query_facts", entity=entity, top_k=100))["rows"]
            assert stored["fact_id"] in [row["fact_id"] for row in rows], f"{entity}/{key} was acknowledged and is not read back"
            if len(acked) == ACKED_BEFORE:
                # Looking for the leader takes a moment; the work goes on meanwhile, so that the kill hits it.
                killed = asyncio.create_task(asyncio.to_thread(self.deployment.kill_leader))
            if killed and killed.done() and not new_leader:
                killed_at, (_, pid) = len(acked), killed.result()
                new_leader = asyncio.create_task(asyncio.to_thread(self.deployment.leader, pid))
        new_leader.result()
        for entity, key, fact_id in acked:
            versions = (await ok(client, "fact_history", entity=entity, key=key))["versions"]
            assert [version["fact_id"] for version in versions] == [fact_id], f"{entity}/{key} is {versions}"


class PythonSdkOverTheBridge(PythonSdk):
    """The same through `quorate mcp`, with a gateway named first that is not there."""

    def connect(self, who, mode=MODES[0]):
        command = [str(executable()), "mcp", "--url", f"http://127.0.0.1:1/mcp,{self.deployment.url()}"]
        return connect_bridge(command, {"QUORATE_TOKEN": self.deployment.token(who)}, mode)


if __name__ == "__main__":
    print(f"Python SDK {SDK}, connecting {' and '.join(MODES)}", flush=True)
    main()
