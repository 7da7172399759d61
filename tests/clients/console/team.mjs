// A team at work in a deployment, and a browser to look at its console.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { chromium } from "playwright-core";

import { Deployment } from "../node/deployment.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";

export const WINDOWS = { phone: { width: 390, height: 844 }, wide: { width: 1280, height: 900 } };
export const HOSTILE = `<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>"'\`{{7*7}}&lt;b&gt; javascript:alert(1)`;

/** Address and heading of every page. */
export const PAGES = {
  needs: ["", "Needs me"],
  approvals: ["/approvals", "Approvals"],
  sessions: ["/sessions", "Sessions"],
  leases: ["/leases", "Leases"],
  work: ["/work", "Work"],
  facts: ["/facts?q=platform", "Facts"],
  history: ["/facts/history?entity=svc%3Aapi&key=owner", "Versions of a fact"],
  receipts: ["/receipts", "Receipts"],
  passports: ["/passports", "Passports"],
  passport: ["/passports/agent-a", "Passport"],
  cluster: ["/cluster", "Cluster"],
  search: ["/search?q=resolver", "Search"],
};

export class Team {
  static async start() {
    const team = new Team();
    team.deployment = await Deployment.start();
    team.browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS.split(" ") });
    try {
      await team.#work();
      return team;
    } catch (error) {
      await team.stop();
      throw error;
    }
  }

  made = {};

  async stop() {
    await this.browser.close();
    await this.deployment.stop();
  }

  /** Calls a tool over HTTP, as an agent does. */
  async call(who, tool, args) {
    const answer = await fetch(this.deployment.url(`/v1/tools/crux/${tool}`), {
      method: "POST",
      headers: { "content-type": "application/json", authorization: `Bearer ${this.deployment.info.tokens[who]}` },
      body: JSON.stringify(args),
    });
    const facts = await answer.json();
    assert.ok(answer.ok, `${tool}: ${JSON.stringify(facts)}`);
    return facts;
  }

  ask(who, summary, more = {}) {
    return this.call(who, "approval_request", { action_summary: summary, risk_tier: "high", scope: "default", token_budget: 1000, ...more });
  }

  /** What a team leaves behind. */
  async #work() {
    const fact = (who, entity, key, value, confidence) => this.call(who, "store_fact", { entity, key, value, confidence });
    await fact("agent-a", "svc:api", "owner", "platform", 0.9);
    await fact("agent-a", "svc:api", "owner", "team-platform", 0.95);
    await fact("agent-b", "svc:billing", "timeout", "30 s, raised after the incident in May", 0.8);
    const hold = (who, resource, more = {}) => this.call(who, "punch_in", { resource, holder_passport: who, ttl_ms: 1_800_000, ...more });
    await hold("agent-a", "tree://src/net", { reason: "moving to the new resolver" });
    await hold("agent-b", "file://src/store/log.rs", { reason: "fixing the order of fsyncs" });
    await hold("agent-b", "deploy://staging", { mode: "deploy" });
    // Answered when the lease is taken away, or at the end.
    this.made.waits = hold("agent-b", "file://src/net/dial.rs", { wait_ms: 240_000 }).catch(() => {});
    const work = (who, title, more = {}) => this.call(who, "create_work", { project_id: "p_default", title, created_by_passport: who, ...more });
    await work("agent-a", "Resolve names over the new resolver", { body: "Both families, with a deadline.", state: "in_progress" });
    await work("agent-a", "Write down how a node is replaced");
    await work("agent-b", "Rotate the staging certificate", { state: "blocked", blocker_reason: "needs the new authority" });
    const session = { project_id: "p_default", session_id: randomUUID().replaceAll("-", "") };
    await this.call("agent-a", "coord_announce", { ...session, paths: ["src/net"], note: "On the resolver until noon" });
    const payload = { table: "sessions_old", rows: 1_204_332, reversible: false };
    this.made.approval = (await this.ask("agent-a", "Drop the table sessions_old in production", { payload })).request_id;
  }

  /** The same from somebody who means harm. */
  async harm() {
    await this.call("agent-b", "store_fact", { entity: "svc:hostile", key: HOSTILE, value: HOSTILE });
    await this.call("agent-b", "punch_in", { resource: "file://hostile", holder_passport: "agent-b", reason: HOSTILE });
    await this.call("agent-a", "create_work", { project_id: "p_default", title: HOSTILE, body: HOSTILE, created_by_passport: "agent-a" });
    await this.ask("agent-b", HOSTILE, { risk_tier: "medium", payload: { text: HOSTILE } });
  }

  /** The address of a page. */
  address(path) {
    return new URL(`/console${path}`, this.deployment.info.http).href;
  }

  /** A page in a browser of its own; nothing that goes wrong in it is missed. */
  async open(size, { who = "operator", script = true, scheme = "light" } = {}) {
    const context = await this.browser.newContext({ viewport: WINDOWS[size], javaScriptEnabled: script, colorScheme: scheme });
    const page = await context.newPage();
    const origin = new URL(this.deployment.info.http).origin;
    page.troubles = [];
    page.on("pageerror", (error) => page.troubles.push(`error: ${error}`));
    page.on("console", (message) => {
      if (/content security policy|refused to/i.test(message.text())) page.troubles.push(`policy: ${message.text()}`);
    });
    page.on("request", (request) => {
      if (new URL(request.url()).origin !== origin) page.troubles.push(`elsewhere: ${request.url()}`);
    });
    page.on("dialog", (dialog) => {
      page.troubles.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    if (who) {
      await page.goto(this.deployment.info.console);
      await page.fill("#token", this.deployment.info.tokens[who]);
      await Promise.all([page.waitForURL(/\/console$/), page.click("button[type=submit]")]);
    }
    return page;
  }

  async close(page) {
    assert.deepEqual(page.troubles, []);
    await page.context().close();
  }

  /** A page like this one, in a context where the policy of pages is set aside, for axe-core alone. */
  async twin(page) {
    const storageState = await page.context().storageState();
    const context = await this.browser.newContext({ viewport: page.viewportSize(), bypassCSP: true, storageState });
    return context.newPage();
  }

  /** What axe-core finds that is serious or worse at an address, in both colour schemes. */
  async faults(twin, url) {
    await twin.goto(url);
    await twin.evaluate(AXE);
    const faults = [];
    for (const colorScheme of ["light", "dark"]) {
      await twin.emulateMedia({ colorScheme });
      // What looks the same in both is looked at once.
      const only = colorScheme === "dark" ? { runOnly: { type: "rule", values: ["color-contrast"] } } : {};
      const { violations } = await twin.evaluate((only) => window.axe.run(document, { resultTypes: ["violations"], ...only }), only);
      const serious = violations.filter((fault) => ["serious", "critical"].includes(fault.impact));
      faults.push(...serious.map((fault) => `${colorScheme} ${fault.id}: ${fault.nodes.map((node) => node.html).join(" ").slice(0, 300)}`));
    }
    return faults;
  }
}
