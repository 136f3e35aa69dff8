// The tab Logs: one rank's, the supervisor's or a machine's, following while it grows.

import { choices, copyButton, element, plain } from "./words.js";

const LOG_LINES = 400;

export class Logs {
  constructor(run) {
    this.run = run;
    this.node = element("div", "nbt-logs");
    this.choice = element("select");
    this.choice.setAttribute("aria-label", "whose log");
    this.choice.addEventListener("change", () => this.run.redraw());
    this.pre = element("pre");
    this.pre.tabIndex = 0;
    this.pre.setAttribute("aria-label", "log");
    const tools = element("div", "nbt-tools");
    tools.append(this.choice, copyButton("Copy", "Copy what is shown", () => this.pre.textContent));
    this.node.append(tools, this.pre);
  }

  open(rank, attempt) {
    this.wish = JSON.stringify([rank, attempt]);
  }

  draw(snap, kept) {
    const { run } = this, own = !run.job;
    const logs = kept
      ? kept.logs.map(([rank, attempt, words]) => [JSON.stringify([rank, attempt]), words])
      : snap.ranks.slice(0, 64).map(({ rank }) => [JSON.stringify([String(rank), null]), `rank ${rank}`]);
    choices(this.choice, [...(own ? [["", "newest lines"]] : []), ...logs]);
    if (this.wish && [...this.choice.options].some(({ value }) => value === this.wish)) {
      this.choice.value = this.wish;
      this.wish = null;
    }
    const wanted = run.server ? this.choice.value : "";
    this.choice.disabled = !run.server;
    if (!own && !run.server)
      return this.show([`Without the server half: nbtrain logs ${snap.name} --job ${run.job}`]);
    const newest = snap.log.lines.length ? snap.log.lines : ["(nothing was logged yet)"];
    if (wanted === "") return this.show(newest);
    const [rank, attempt] = JSON.parse(wanted), words = new URLSearchParams({ rank });
    if (attempt !== null) words.set("attempt", attempt);
    if (run.job) words.set("job", run.job);
    run.server.call(`run/${run.name}/log?${words}`).then(
      (part) => this.choice.value === wanted && this.show(part.text.split("\n").slice(-LOG_LINES)),
      (error) => run.say(`The log of ${rank} could not be read: ${error.message}`, "error"),
    );
  }

  show(lines) {
    const text = lines.map(plain).join("\n"), pre = this.pre;
    if (pre.textContent === text) return;
    const below = pre.scrollHeight - pre.scrollTop - pre.clientHeight;
    const follows = below < 24 || !pre.textContent;
    pre.textContent = text;
    if (follows) pre.scrollTop = pre.scrollHeight;
  }
}
