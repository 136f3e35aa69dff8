// The controller of a run's detail view: what it fetches and when, and what its buttons do.
//
// Snapshots come by REST from <base_url>nbtrain/, never through comms, which do not arrive while a cell runs.
// Without a server half, the trait `snap` of the widget's model is drawn instead.

import { hostElsewhere, makeHost } from "./host.js";
import { View } from "./view.js";
import { askedWords } from "./words.js";

const POLL_MS = 1000;
const POLL_FINAL_MS = 5000;
// The pages of a job: its resources are measured every two seconds; rarely while none of them is in sight.
const KEPT_MS = 3000;
const KEPT_HIDDEN_MS = 30000;
// A supervisor passes a request on to its ranks in less.
const STOP_MS = 10000;
// Said until the server has answered: a submission is checked first, a folder may be large.
const BEGUN = { resume: "Resuming...", pause: "Asking to pause...", kill: "Killing...", delete: "Deleting..." };
// Buttons that post to the route of their name.
const POSTED = { stop: "stop", kill: "stop", pause: "pause", resume: "resume" };

// A notebook draws a widget anew when its cell is scrolled into sight, with the snapshot that it was made with:
// it begins with the newest one that this page has seen of its run. So many runs are kept.
const SNAPS_KEPT = 20;
const newestSnaps = new Map();

/**
 * Keep `root` showing the run `name`; returns what ends it.
 *
 * server   Server of server.js, or null
 * host     what the surroundings can do (host.js)
 * model    the anywidget model, or null; `snap` is its first snapshot
 * runId    of the run that is meant: a server that shows another one of that name is not asked
 * tab      the page that is open at first
 */
export function mountRun(root, options) {
  const { server, name, host = makeHost(), runId = "", snap = null, model = null, tab = "" } = options;
  const run = new Run(root, { server, name, host, runId, model, tab });
  run.begin(snap);
  return () => run.end();
}

class Run {
  constructor(root, { server, name, host, runId, model, tab }) {
    Object.assign(this, { root, name, runId, model });
    this.surroundings = host;
    /** Whether the server has another run of this name, or none. */
    this.elsewhere = false;
    this.asked = server;
    this.served = false;
    this.hadIt = this.absent = false;
    this.ended = false;
    this.visible = false;
    this.timer = null;
    this.keptAt = 0;
    this.keptState = "";
    this.polled = !server;
    this.job = "";
    root.dataset.run = name;
    this.view = new View(root, this, tab);
  }

  /** The server half while it answers, else null. */
  get server() {
    return this.served ? this.asked : null;
  }

  get host() {
    return this.elsewhere ? hostElsewhere(this.surroundings) : this.surroundings;
  }

  say(text, kind) {
    this.view.head.say(text, kind);
  }

  redrawHead() {
    if (this.view.snap) this.view.head.draw(this.view.snap);
  }

  redraw() {
    if (this.view.snap) this.view.drawPage();
  }

  /** Show the pages of another job of the run; "" is the newest. */
  chooseJob(job) {
    this.job = job;
    this.view.jobChosen(job);
    this.keep(true);
  }

  openLog(rank, attempt) {
    this.view.page("logs").open(rank, attempt);
    this.view.tabs.select("logs");
  }

  // --- actions ---

  can(key) {
    if (this.absent) return false;
    if (key === "clone") return Boolean(this.host.openForm);
    // The kernel does nothing else.
    return this.served || (key === "stop" && Boolean(this.model));
  }

  async act(key) {
    if (key === "tensorboard" || key === "clone") return this.openBeside(key);
    const action = ((this.view.snap && this.view.snap.actions) || []).find((one) => one.key === key);
    if (action && action.ask && !(await this.view.head.confirm(action.ask, action.words))) return;
    const before = this.view.snap && this.view.snap.state;
    this.busy(key);
    this.say(BEGUN[key] || "");
    try {
      // Just shown: a server that has not answered yet is asked before the kernel, which may be busy.
      if (!this.polled) await this.poll(true);
      if (!this.can(key)) {
        const why = this.absent ? "the run is not there any more" : "the Jupyter server does not answer";
        throw new Error(`${why}; nothing was done.`);
      }
      if (key === "delete") await this.asked.call(`run/${this.name}?confirm=${this.name}`, "DELETE");
      else if (this.served && POSTED[key]) {
        const body = key === "kill" ? { now: true } : {};
        await this.asked.call(`run/${this.name}/${POSTED[key]}`, "POST", body);
      } else this.model.send({ kind: key });
      const asked = "Asked the kernel to stop the job; it hears this when its running cell has ended.";
      // The end may have come before the answer: then there is nothing to wait for.
      const ended = this.view.snap && this.view.snap.state !== before;
      this.say(ended ? "" : this.served ? askedWords(key, before) : asked);
      this.answered = askedWords(key, before) && !ended ? before : null;
      // A stop shows as such until the snapshot says so itself.
      if (key === "stop") setTimeout(() => this.busy(""), STOP_MS);
      else this.busy("");
      this.wake();
      if (key === "delete") this.gone();
    } catch (error) {
      this.busy("");
      this.say(`${key}: ${error.message}`, "error");
    }
  }

  /** TensorBoard, or the form with the settings of this run: both are the server's, by the run's name. */
  async openBeside(key) {
    // Whether the server's run of this name is this one says its first answer.
    if (!this.polled && this.runId) await this.poll(true);
    const { openForm, openTensorBoard } = this.host;
    if (key === "clone" && openForm) openForm({ clone: this.name });
    if (key === "tensorboard" && openTensorBoard) openTensorBoard(this.name);
  }

  busy(key) {
    this.view.head.busy = key;
    this.redrawHead();
  }

  /** Another page, or a command, has deleted or renamed it. */
  missing() {
    const shown = this.view.snap ? " Below stands what was read of it last." : "";
    this.say(`The run ${this.name} is not there any more: it was deleted, renamed or moved.${shown}`, "error");
    this.redrawHead();
  }

  replaced() {
    this.say(
      `The run ${this.name} was deleted, and another one has its name. Below stands what was read of it last.`,
      "error",
    );
    this.redrawHead();
  }

  gone() {
    this.asked = null;
    this.say(`The run ${this.name} is deleted.`);
    if (this.host.openRuns) this.host.openRuns();
  }

  // --- data ---

  show(value) {
    if (!value || !value.shown) return;
    if (this.view.head.busy === "stop" && (value.asked || !value.active)) this.view.head.busy = "";
    if (this.answered && value.state !== this.answered) {
      this.answered = null;
      this.say("");
    }
    if (value.run_id) {
      newestSnaps.delete(value.run_id);
      newestSnaps.set(value.run_id, value);
      if (newestSnaps.size > SNAPS_KEPT) newestSnaps.delete(newestSnaps.keys().next().value);
    }
    this.view.draw(value);
    this.keep();
  }

  /** Ask for the pages of the job when due: by REST, else from the kernel, which answers between cells. */
  async keep(now = false) {
    const snapped = this.view && this.view.snap;
    if (!snapped || !snapped.job || !this.polled) return;
    const state = `${snapped.state} ${snapped.job.job_id}`, gone = Date.now() - this.keptAt;
    const due = snapped.active && gone > (this.view.showsKept() ? KEPT_MS : KEPT_HIDDEN_MS);
    if (!now && !due && this.keptState === state) return;
    [this.keptAt, this.keptState] = [Date.now(), state];
    const { job } = this;
    if (!this.served && this.model) return this.model.send({ kind: "job", job: job || null });
    if (!this.asked) return;
    try {
      const value = await this.asked.call(`run/${this.name}/job${job ? `?job=${job}` : ""}`);
      // Another one may have been chosen meanwhile.
      if (job === this.job) this.view.take(value);
    } catch (error) {
      this.say(`The pages of the job could not be read: ${error.message}`, "error");
    }
  }

  setServed(value) {
    if (this.served === value) return;
    this.served = value;
    if (value) this.hadIt = true;
    if (value) this.view.reopened();
    else this.redrawHead();
    if (this.model) {
      // The kernel stops sending snapshots while the server answers.
      this.model.set("served", value);
      this.model.save_changes();
    }
  }

  isElsewhere(value) {
    if (this.elsewhere === value) return;
    this.elsewhere = value;
    this.redrawHead();
  }

  async poll(wanted = false) {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.ended || !this.root.isConnected || !this.asked) return;
    if (!wanted && (document.hidden || !this.visible)) return;
    let wait = POLL_MS;
    try {
      const value = await this.asked.call(`run/${this.name}`);
      this.polled = true;
      if (this.runId && value.run_id && value.run_id !== this.runId) {
        this.asked = null;
        this.setServed(false);
        // A server that had the run has its folder: it was deleted, and made anew under its name.
        this.absent = this.hadIt;
        this.isElsewhere(true);
        if (this.hadIt) this.replaced();
        else this.say("This Jupyter server shows another output folder: the figures come from the kernel.");
      } else {
        if (!this.served && !this.view.head.busy) this.say("");
        this.absent = false;
        this.isElsewhere(false);
        this.setServed(true);
        this.show(value);
        // With many pages open the server asks for more time.
        const soon = value.active || value.half_read;
        wait = soon ? 1000 * (value.look_again_seconds || 0) || POLL_MS : POLL_FINAL_MS;
      }
    } catch (error) {
      this.polled = true;
      this.setServed(false);
      wait = POLL_FINAL_MS;
      // nbtrain's own 404 names the run; a server without nbtrain does not know the address.
      const unknown = error.status === 404 && error.message.startsWith("there is no run");
      // A kernel may have another output folder than a server that never had the run.
      this.absent = unknown && (this.hadIt || !this.model);
      if (unknown) this.isElsewhere(true);
      if (this.absent) this.missing();
      else if (unknown)
        this.say("This Jupyter server has no run of this name: the figures come from the kernel.");
      else if (error.status === 404 && this.model)
        this.say("No server half of nbtrain here: the figures come from the kernel.");
      else if (error.status === 404) this.say(error.message, "error");
      else this.say(`The Jupyter server does not answer (${error.message}); trying again.`, "error");
    }
    if (!this.ended && this.asked && this.timer === null) this.timer = setTimeout(() => this.poll(), wait);
  }

  wake() {
    if (!this.ended && this.timer === null && this.visible && !document.hidden)
      this.timer = setTimeout(() => this.poll(), 0);
  }

  begin(snap) {
    this.watcher = new IntersectionObserver((entries) => {
      this.visible = entries[entries.length - 1].isIntersecting;
      this.wake();
    });
    this.watcher.observe(this.root);
    this.onVisible = () => this.wake();
    document.addEventListener("visibilitychange", this.onVisible);
    this.onSnap = () => !this.served && this.show(this.model.get("snap"));
    this.onMessage = (message) => {
      if (message.kind !== "job") return;
      if (message.value) this.view.take(message.value);
      else this.say(message.error, "error");
    };
    if (this.model) {
      this.model.on("change:snap", this.onSnap);
      this.model.on("msg:custom", this.onMessage);
      if (!this.asked)
        this.say("No Jupyter server is in reach of this page: the figures come from the kernel.");
    }
    const seen = newestSnaps.get(this.runId);
    this.show(seen && (!snap || seen.time > snap.time) ? seen : snap);
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.watcher.disconnect();
    document.removeEventListener("visibilitychange", this.onVisible);
    if (this.model) {
      this.model.off("change:snap", this.onSnap);
      this.model.off("msg:custom", this.onMessage);
    }
    this.view.dispose();
  }
}
