// The form's message after Submit: that the run was submitted, followed by its current state.

import { submitted } from "./form_requests.js";
import { runsFeed } from "../runs/runs_feed.js";
import { button, element } from "../elements/dom.js";

const ANSWER_MS = 2000;
// For a form in a hidden tab, and for a run that has ended, which may still be deleted.
const ANSWER_IDLE_MS = 10000;

/** Return a run's state in words, from its row in the list of runs: what it waits for, that it runs, or its end. */
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

  /** Show the response of the route submit; with a server, follow the run. `below`: the run is shown below the form. */
  took(found, server, below = false) {
    const { name } = found, { text, toast, kind } = submitted(found);
    const where = below ? "The run is shown below the form." : `To show it in a cell, run nb.open_run("${name}").`;
    this.say(`${text} ${where}`, kind === "warning" ? kind : "good");
    // The kernel may have submitted the run to another output folder than the server's.
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
        // The response may be older than the submission.
        if (!found && run) return this.say(`The run ${name} was deleted.`);
        run = found || run;
        const words = run ? runIs(run) : "";
        if (now.textContent !== words) now.textContent = words;
      },
      // The form's own requests report that the server does not respond.
      failed: () => {},
    });
    if (this.feed) this.feed.look();
  }

  leave() {
    if (this.feed) this.feed.leave();
    this.feed = null;
  }
}
