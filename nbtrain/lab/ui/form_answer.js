// What the form answers to Submit: that the run is submitted, and from then on where it is.

import { submitted } from "./form_asks.js";
import { runsFeed } from "./runs_feed.js";
import { button, element } from "./words.js";

const ANSWER_MS = 2000;
// Of a form in a tab that is not in sight, and of a run that has ended: it may still be deleted.
const ANSWER_IDLE_MS = 10000;

/** Where a run is, by its row in the list of runs: in the queue behind whom, at work, at its end. */
export function runIs({ state, cause, pill: [words] = [state] }) {
  const why = cause ? `: ${cause.replace(/\.$/, "")}.` : words.endsWith(".") ? "" : ".";
  return `Now ${words}${why}`;
}

export class FormAnswer {
  constructor(host) {
    this.host = host;
    this.feed = null;
    this.node = element("div", "nbf-answer");
    this.node.setAttribute("role", "status");
  }

  /** `kind`: good, warning, error or "". */
  say(text, kind = "") {
    this.leave();
    this.node.className = `nbf-answer ${kind && `nbf-${kind}`}`;
    this.node.textContent = text;
  }

  /** The answer of the route submit; with a server, the run is followed. `below`: the form's foot shows it. */
  took(found, server, below = false) {
    const { name } = found, { text, toast, kind } = submitted(found);
    const where = below ? "It is shown below the form." : `In a cell: nb.open_run("${name}")`;
    this.say(`${text} ${where}`, kind === "warning" ? kind : "good");
    // What the kernel has submitted may be in another output folder than the server's.
    if (server && this.host.openRun) this.node.append(" ", button("Open", "", () => this.host.openRun(name)));
    if (this.host.notify) this.host.notify(toast, kind);
    if (server) this.follow(server, name);
  }

  follow(server, name) {
    const now = element("div", "nbf-now");
    this.node.append(now);
    let run = null;
    this.feed = runsFeed(server).join({
      wait: () => (run && !run.active) || !this.node.getClientRects().length ? ANSWER_IDLE_MS : ANSWER_MS,
      took: ({ runs }) => {
        const found = runs.find((one) => one.name === name);
        // The newest answer may be older than the run.
        if (!found && run) return this.say(`The run ${name} was deleted.`);
        run = found || run;
        const words = run ? runIs(run) : "";
        if (now.textContent !== words) now.textContent = words;
      },
      // The form's own questions say that nobody answers.
      failed: () => {},
    });
    if (this.feed) this.feed.look();
  }

  leave() {
    if (this.feed) this.feed.leave();
    this.feed = null;
  }
}
