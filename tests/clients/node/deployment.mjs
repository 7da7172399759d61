// A deployment for this test: the helper that the Python tests use, as a child process that ends with this one.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const HELPER = fileURLToPath(new URL("../../support/deployment.py", import.meta.url));

export class Deployment {
  static async start() {
    const child = spawn("python3", [HELPER], { stdio: ["pipe", "pipe", "inherit"] });
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const deployment = new Deployment(child, lines);
    deployment.info = await deployment.#answer("the deployment did not start");
    return deployment;
  }

  constructor(child, lines) {
    this.child = child;
    this.lines = lines;
  }

  url(path = "/mcp/crux") {
    return new URL(this.info.http.replace(/\/$/, "") + path);
  }

  /** Kills the node that leads, with SIGKILL; its id and pid. */
  async killLeader() {
    return this.#ask("kill-leader");
  }

  /** Id and pid of the node that leads, once one does. */
  async leader() {
    return this.#ask("leader");
  }

  async stop() {
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.stdin.end();
    await ended;
  }

  async #ask(word) {
    this.child.stdin.write(`${word}\n`);
    return this.#answer(`no answer to ${word}`);
  }

  async #answer(problem) {
    const { value, done } = await this.lines.next();
    if (done) throw new Error(problem);
    return JSON.parse(value);
  }
}
