// The official TypeScript SDK against a deployment: what a team does all day, and a leader that dies meanwhile.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

import { Deployment } from "./deployment.mjs";

const TIMEOUT = { timeout: 180_000 };
// Acknowledged writes before the leader is killed, and at least as many after another one leads.
const ACKED_BEFORE = 30;
const ACKED_AFTER = 60;

let deployment;
const clients = [];

before(async () => {
  deployment = await Deployment.start();
}, TIMEOUT);

after(async () => {
  await Promise.allSettled(clients.map((client) => client.close()));
  await deployment?.stop();
}, TIMEOUT);

const unique = (word) => `${word}-${randomUUID().slice(0, 10)}`;

async function connect(who) {
  const headers = { Authorization: `Bearer ${deployment.info.tokens[who]}` };
  const client = new Client({ name: "quorate-client-test", version: "1.0.0" });
  await client.connect(new StreamableHTTPClientTransport(deployment.url(), { requestInit: { headers } }));
  clients.push(client);
  return client;
}

const textOf = (result) => result.content.map((part) => part.text ?? "").join("\n");

/** The data of a call that has to succeed. */
async function ok(client, name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(!result.isError, `${name} was refused: ${textOf(result)}`);
  assert.equal(typeof result.structuredContent, "object", `${name} has no structured content beside ${textOf(result)}`);
  return result.structuredContent;
}

/** The text of a call that has to be refused. */
async function refused(client, name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(result.isError, `${name} was accepted: ${JSON.stringify(result.structuredContent)}`);
  return textOf(result);
}

test("tools are listed and facts are kept", TIMEOUT, async () => {
  const client = await connect("agent-a");
  const names = [];
  let cursor;
  do {
    const page = await client.listTools(cursor ? { cursor } : undefined);
    names.push(...page.tools.map((tool) => tool.name));
    cursor = page.nextCursor;
  } while (cursor);
  for (const name of ["store_fact", "query_facts", "punch_in", "approval_request", "receipt_verify"]) {
    assert.ok(names.includes(name), `${name} is not listed: ${names}`);
  }
  const entity = unique("svc");
  const stored = await ok(client, "store_fact", { entity, key: "owner", value: "platform" });
  const { rows } = await ok(client, "query_facts", { entity });
  assert.deepEqual(rows.map((row) => [row.fact_id, row.value]), [[stored.fact_id, "platform"]]);
  const text = await refused(client, "store_fact", { entity, key: "owner", value: "x", colour: "red" });
  assert.ok(text.includes("colour") && text.includes("confidence"), `an unknown argument and the known ones: ${text}`);
});

test("a held card names its holder and the time left", TIMEOUT, async () => {
  const [a, b] = [await connect("agent-a"), await connect("agent-b")];
  const nameOf = async (client) => (await ok(client, "get_agent_identity")).agent_name;
  const [aName, bName] = [await nameOf(a), await nameOf(b)];
  const resource = `file://${unique("src")}/lib.rs`;
  const card = await ok(a, "punch_in", { resource, holder_passport: aName, ttl_ms: 60_000 });
  const text = await refused(b, "punch_in", { resource, holder_passport: bName, ttl_ms: 60_000 });
  assert.ok(text.includes(aName), `the refusal does not name ${aName}: ${text}`);
  assert.match(text, /\d+(\.\d+)? ?(ms|s|seconds|min)\b/, "the refusal does not tell the time left");
  await ok(a, "punch_out", { resource, holder_passport: aName, fencing_token: card.fencing_token });
  const next = await ok(b, "punch_in", { resource, holder_passport: bName, ttl_ms: 60_000 });
  assert.ok(next.fencing_token > card.fencing_token);
});

test("a decision leaves a receipt that verifies", TIMEOUT, async () => {
  const [a, operator] = [await connect("agent-a"), await connect("operator")];
  const scope = (await ok(a, "resolve_principal")).principal.tenant_id;
  const ask = { action_summary: "drop the table", risk_tier: "high", scope, token_budget: 500 };
  const { request_id } = await ok(a, "approval_request", ask);
  await refused(a, "approval_decide", { request_id, decision: "approve", reviewer_tier: "operator" });
  const decided = await ok(operator, "approval_decide", { request_id, decision: "approve", reviewer_notes: "seen" });
  assert.equal(decided.status, "approved");
  const checked = await ok(operator, "receipt_verify", { receipt_id: decided.receipt_id });
  assert.ok(checked.verified && checked.errors.length === 0, JSON.stringify(checked));
});

test("no call fails while the leader is killed", TIMEOUT, async () => {
  const client = await connect("agent-a");
  const [mark, acked] = [unique("kill"), []];
  let ackedAtNewLeader;
  let failure;
  while (!(ackedAtNewLeader !== undefined && acked.length >= ackedAtNewLeader + ACKED_AFTER)) {
    assert.ifError(failure);
    const n = acked.length;
    const [entity, key] = [`${mark}-${n % 7}`, `k${n}`];
    const stored = await ok(client, "store_fact", { entity, key, value: `value of ${key}` });
    acked.push({ entity, key, id: stored.fact_id });
    const { rows } = await ok(client, "query_facts", { entity, top_k: 100 });
    assert.ok(rows.some((row) => row.fact_id === stored.fact_id), `${entity}/${key} was acknowledged and is not read back`);
    if (acked.length === ACKED_BEFORE) {
      // Looking for the leader takes a moment; the work goes on meanwhile, so that the kill hits it.
      killAndWait(() => (ackedAtNewLeader = acked.length)).catch((error) => (failure = error));
    }
  }
  for (const { entity, key, id } of acked) {
    const { versions } = await ok(client, "fact_history", { entity, key });
    assert.deepEqual(versions.map((version) => version.fact_id), [id], `${entity}/${key}`);
  }
});

async function killAndWait(done) {
  const killed = await deployment.killLeader();
  let leader;
  do {
    leader = await deployment.leader();
  } while (leader.pid === killed.pid);
  done();
}
