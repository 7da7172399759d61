// The console in headless Chromium: every page on a phone-sized and a wide window, the approval flow while the leader dies, text
// that would like to be more than text, and what axe-core says of it all.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { HOSTILE, PAGES, Team, WINDOWS } from "./team.mjs";

const TIMEOUT = { timeout: 120_000 };

let team;

before(async () => {
  team = await Team.start();
}, TIMEOUT);

after(async () => {
  await team?.stop();
}, TIMEOUT);

/** A page must not be wider than its window. */
const overhang = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

for (const size of Object.keys(WINDOWS)) {
  test(`every page stands on a ${size} window, with nothing that axe-core calls serious, while a node is killed`, TIMEOUT, async () => {
    const page = await team.open(size);
    const twin = await team.twin(page);
    await team.deployment.killLeader();
    for (const [name, [path, title]] of Object.entries(PAGES)) {
      const answer = await page.goto(team.address(path));
      assert.equal(answer.status(), 200, name);
      assert.match(await page.textContent("h1"), new RegExp(`^${title}`), name);
      assert.equal(await overhang(page), 0, `${name} is wider than its window`);
      assert.deepEqual(await team.faults(twin, team.address(path)), [], name);
    }
    await page.goto(team.address(""));
    for (const link of await page.locator("nav a").evaluateAll((links) => links.map((link) => link.href))) {
      assert.equal((await page.request.get(link)).status(), 200, link);
    }
    await twin.context().close();
    await team.close(page);
  });
}

test("what is asked for is shown with who asks, what for and how long yet, and is decided while the leader dies", TIMEOUT, async () => {
  const phone = await team.open("phone");
  const wide = await team.open("wide");
  const card = phone.locator(`#${team.made.approval}`);
  for (const text of ["Drop the table", "high risk", "agent-a", "left", "another one decides"]) {
    assert.match(await card.textContent(), new RegExp(text));
  }
  await phone.waitForSelector("#live[data-well]");
  // Another page sees what is asked for while it is open, without a word typed into the first being lost.
  await card.locator("textarea").fill("Backed up this morning");
  const late = (await team.ask("agent-b", "Restart the importer")).request_id;
  await phone.waitForSelector(`#${late}`);
  assert.equal(await card.locator("textarea").inputValue(), "Backed up this morning");

  const { id } = await team.deployment.killLeader();
  await Promise.all([phone.waitForURL(/said=approved/, { timeout: 60_000 }), card.locator("button[value=approve]").click()]);
  assert.match(await phone.textContent("main"), /approved[^]*Backed up this morning/);
  await wide.waitForSelector(`#${team.made.approval}`, { state: "detached", timeout: 30_000 });
  await wide.waitForSelector(`#latest >> text=Drop the table`);

  // The receipt of it, verified in the page.
  await phone.click("dd a[href*='/receipts/']");
  assert.match(await phone.textContent("article header"), /^verified/);
  assert.match(await phone.textContent("main"), /Backed up this morning/);

  // The same form again has no second effect, and a late decision is told of the first.
  await wide.locator(`#${late} button[value=reject]`).click();
  await wide.waitForURL(/said=rejected/);
  const leader = await team.deployment.leader();
  assert.notEqual(leader.id, undefined, `a node leads after ${id} was killed`);
  await team.close(phone);
  await team.close(wide);
});

test("who asked can't decide, and sees why", TIMEOUT, async () => {
  const { request_id: own } = await team.ask("operator", "Rotate my own key");
  const page = await team.open("wide");
  assert.equal(await page.locator(`#${own} button`).count(), 0);
  assert.match(await page.textContent(`#${own} .dual`), /nobody decides his own request/);
  const stranger = await team.open("wide", { who: "other-tenant" });
  assert.doesNotMatch(await stranger.textContent("main"), /Rotate my own key/);
  const missing = await stranger.goto(team.address(`/approvals/${own}`));
  assert.equal(missing.status(), 404);
  // An agent without an operator's rights is not led to what it may not see.
  const agent = await team.open("phone", { who: "agent-b" });
  assert.doesNotMatch(await agent.textContent("nav"), /Cluster|Passports/);
  assert.equal((await agent.goto(team.address("/cluster"))).status(), 403);
  assert.equal((await agent.goto(team.address("/passports"))).status(), 403);
  for (const one of [page, stranger, agent]) await team.close(one);
});

test("a lease is taken away with a reason, and who waits gets it", TIMEOUT, async () => {
  const page = await team.open("wide");
  await page.goto(team.address("/leases"));
  assert.match(await page.textContent("#leases"), /src\/[^]*net\/[^]*agent-a[^]*moving to the new resolver[^]*dial\.rs[^]*agent-b waits/);
  await page.waitForSelector("#live[data-well]");
  await page.click("a.danger:has-text('tree://src/net')");
  await page.click("button.bad");
  assert.match(page.url(), /\/release/, "no reason, no act");
  await page.fill("#reason", "The agent is gone");
  await Promise.all([page.waitForURL(/said=released/), page.click("button.bad")]);
  await page.waitForFunction(() => /dial\.rs\s*held\s*agent-b/.test(document.getElementById("leases").innerText.replaceAll("\n", " ")));
  await team.made.waits;
  await team.close(page);
});

test("facts are found as of an earlier instant, and say why they are found", TIMEOUT, async () => {
  const page = await team.open("phone");
  await page.goto(team.address("/facts?q=platform"));
  await page.click("summary:has-text('Why it is here') >> nth=0");
  assert.match(await page.textContent("article.fact ul"), /platform[^]*in its value[^]*95 %/);
  // Half an hour ago nothing was known.
  await page.locator("#back").fill("2");
  await page.waitForURL(/back=2/);
  assert.match(await page.textContent("#facts"), /No fact matches/);
  await page.goto(team.address("/facts/history?entity=svc%3Aapi&key=owner"));
  assert.match(await page.textContent("#versions"), /Version 2[^]*active[^]*team-platform[^]*Version 1[^]*superseded/);
  await team.close(page);
});

test("what somebody typed is text, wherever it shows", TIMEOUT, async () => {
  await team.harm();
  const page = await team.open("wide");
  for (const path of ["", "/facts?q=onerror", "/work", "/leases", `/search?q=${encodeURIComponent(HOSTILE)}`, `/facts?entity=${encodeURIComponent(HOSTILE)}`]) {
    await page.goto(team.address(path));
    assert.equal(await page.evaluate(() => window.hurt), undefined, path);
    assert.equal(await page.locator("main img, main script, main iframe, main [onerror]").count(), 0, path);
    assert.equal(await page.locator("a[href^='javascript']").count(), 0, path);
  }
  await page.goto(team.address("/facts?q=onerror"));
  assert.match(await page.textContent("article.fact .value"), /<img src=x onerror="window.hurt=1"><script>/);
  // Live parts are put in by the script: that too is text.
  await page.goto(team.address("/facts"));
  await page.waitForSelector("#live[data-well]");
  await team.call("agent-a", "store_fact", { entity: "svc:live", key: "k", value: `late ${HOSTILE}` });
  await page.waitForSelector("text=late <img");
  assert.equal(await page.evaluate(() => window.hurt), undefined);
  await team.close(page);
});

test("a page that is not ours can't act, frame or read the console", TIMEOUT, async () => {
  const page = await team.open("wide");
  const headers = (await page.request.get(team.address(""))).headers();
  assert.match(headers["content-security-policy"], /default-src 'none'.*frame-ancestors 'none'/);
  assert.doesNotMatch(headers["content-security-policy"], /unsafe|\*/);
  assert.equal(headers["x-frame-options"], "DENY");
  assert.equal(headers["cache-control"], "no-store");
  const [cookie] = await page.context().cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/console"]);
  const { request_id: wanted } = await team.ask("agent-a", "Something to be forged");
  const form = { decision: "approve", note: "", once: "x", key: await page.locator("input[name=key]").first().inputValue() };
  const send = (data, origin) => page.request.post(team.address(`/approvals/${wanted}`), { form: data, headers: origin ? { origin } : {}, maxRedirects: 0 });
  const own = new URL(team.deployment.info.http).origin;
  assert.equal((await send(form, "http://127.0.0.1:1")).status(), 403, "another port");
  assert.equal((await send(form, "null")).status(), 403);
  assert.equal((await send(form)).status(), 403, "no origin");
  assert.equal((await send({ ...form, key: "forged" }, own)).status(), 403);
  const other = await team.open("wide");
  const theirs = await other.locator("input[name=key]").first().inputValue();
  assert.equal((await send({ ...form, key: theirs }, own)).status(), 403, "the key of another sign-in");
  assert.equal((await send(form, own)).status(), 303);
  await team.close(page);
  await team.close(other);
});

test("a sign-in leads back to where it began, and ends everywhere when the token is revoked", TIMEOUT, async () => {
  const page = await team.open("phone", { who: null });
  await page.goto(team.address("/work?assignee=agent-a"));
  assert.match(page.url(), /sign-in\?next=/);
  const twin = await team.twin(page);
  assert.deepEqual(await team.faults(twin, page.url()), []);
  await twin.context().close();
  await page.fill("#token", "qt_nonsense");
  await page.click("button[type=submit]");
  assert.match(await page.textContent("[role=alert]"), /unknown, expired or revoked/);
  await page.fill("#token", team.deployment.info.tokens["agent-b"]);
  await Promise.all([page.waitForURL(/work\?assignee=agent-a/), page.click("button[type=submit]")]);
  const second = await team.open("wide", { who: "agent-b" });
  await second.waitForSelector("#live[data-well]");

  const operator = await team.open("wide");
  await operator.goto(team.address("/passports/agent-b"));
  await operator.click("summary:has-text('Revoke')");
  await Promise.all([operator.waitForURL(/said=revoked/), operator.click("details[open] button.bad")]);
  // The page that stands open notices it by itself.
  await second.waitForURL(/sign-in/, { timeout: 20_000 });
  await page.goto(team.address("/work"));
  assert.match(page.url(), /sign-in/);
  await Promise.all([operator.waitForURL(/sign-in/), operator.click("text=Sign out")]);
  await operator.goto(team.address(""));
  assert.match(operator.url(), /sign-in/);
  for (const one of [page, second, operator]) await team.close(one);
});

test("without a script everything can be read and decided", TIMEOUT, async () => {
  const { request_id: wanted } = await team.ask("agent-a", "Decided without a script");
  const page = await team.open("phone", { script: false });
  await page.fill(`#note-${wanted}`, "Plain");
  await Promise.all([page.waitForURL(/said=rejected/), page.click(`#${wanted} button[value=reject]`)]);
  assert.match(await page.textContent("main"), /rejected[^]*Plain/);
  await page.goto(team.address("/facts"));
  await page.locator("#back").evaluate((slider) => (slider.value = "3")).catch(() => {});
  await page.click("button:has-text('Find')");
  assert.match(page.url(), /back=/);
  await team.close(page);
});

test("by keyboard alone one comes from the top to a decision", TIMEOUT, async () => {
  const { request_id: wanted } = await team.ask("agent-a", "Decided by keyboard");
  const page = await team.open("wide");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  for (let steps = 0; steps < 60 && (await page.evaluate(() => document.activeElement.id)) !== `note-${wanted}`; steps++) await page.keyboard.press("Tab");
  await page.keyboard.type("typed");
  await page.keyboard.press("Tab");
  await Promise.all([page.waitForURL(/said=approved/), page.keyboard.press("Enter")]);
  assert.match(await page.textContent("main"), /Decided by keyboard[^]*typed/);
  await team.close(page);
});
