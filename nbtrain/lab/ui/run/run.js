// The controller of a run's detail view: its requests, and the actions of its buttons.
//
// Snapshots come from the REST routes at <base_url>nbtrain/, never through comms, which do not arrive while a cell runs.
// Without the server extension, the view shows the `snap` trait of the widget's model instead.

import { hostElsewhere, makeHost } from "../host/host.js";
import { View } from "./view.js";
import { askedWords, failedWords, known } from "../elements/dom.js";

const POLL_MS = 1000;
const POLL_FINAL_MS = 5000;
// The pages of a job are requested every 3 s, because its resources are measured every 2 s. While no page that needs
// them is open, they are requested less often.
const KEPT_MS = 3000;
const KEPT_HIDDEN_MS = 30000;
// Time for which a stop is shown as pending. A supervisor forwards a request to its ranks sooner.
const STOP_MS = 10000;
// Time before a stop is sent, in which it can be undone.
const UNDO_MS = 5000;
// Time after an action in which the state is requested every second, even if the run had ended.
const SOON_MS = 15000;
// Shown until the server responds. A run is checked before it is resumed, and deleting a large folder takes time.
const BEGUN = { resume: "Resuming...", pause: "Pausing...", kill: "Killing...", delete: "Deleting..." };
// The kind of the server's error for a run that it does not have.
const NO_RUN = "no_run";
// The route that each button posts to.
const POSTED = { save: "save", stop: "stop", kill: "stop", pause: "pause", resume: "resume" };

// A notebook redraws a widget with its first snapshot when its cell is scrolled into view. The view therefore
// starts with the newest snapshot of its run that this page has received. At most this many runs are kept.
const SNAPS_KEPT = 20;
const newestSnaps = new Map();

/**
 * Show the run `name` in `root`. Returns a function that ends the view.
 *
 * server   Server of server.js, or null
 * host     the actions that this page offers (host.js)
 * model    the anywidget model, or null; `snap` is its first snapshot
 * runId    id of the run; a server that has a different run with this name is not used
 * place    what the view shows first, such as {tab: "logs", rank: "3", attempt: 0, line: 120, job}; every key is optional
 */
export function mountRun(root, options) {
  const { server, name, host = makeHost(), runId = "", snap = null, model = null, place = {} } = options;
  const run = new Run(root, { server, name, host, runId, model, place });
  run.begin(snap);
  return () => run.end();
}

class Run {
  constructor(root, { server, name, host, runId, model, place }) {
    Object.assign(this, { root, name, runId, model });
    this.surroundings = host;
    /** Whether the server has no run with this name, or a different one. */
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
    this.soonUntil = 0;
    this.failedAt = null;
    this.job = "";
    root.dataset.run = name;
    this.view = new View(root, this, place.tab);
    if (place.job) this.chooseJob(place.job);
    if (known(place.rank)) this.view.page("logs").open(place.rank, place.attempt ?? null, place.line ?? null);
  }

  /** The server while it responds, else null. */
  get server() {
    return this.served ? this.asked : null;
  }

  get host() {
    return this.elsewhere ? hostElsewhere(this.surroundings) : this.surroundings;
  }

  say(text, kind) {
    this.saysFailure = false;
    this.view.head.say(text, kind);
  }

  /** Report once that an action failed after the server had accepted it. `failed` is null if the server knows of no
   *  failure or the failure is out of date. */
  sayFailed(failed) {
    const at = failed ? failed.at : null;
    if (at === this.failedAt) return;
    this.failedAt = at;
    if (failed) {
      this.answered = this.savedBefore = null;
      this.view.head.busy = "";
      this.say(failedWords(failed.action, failed.message), "error");
      this.saysFailure = true;
    } else if (this.saysFailure) this.say("");
  }

  redrawHead() {
    if (this.view.snap) this.view.head.draw(this.view.snap);
  }

  redraw() {
    if (this.view.snap) this.view.drawPage();
  }

  /** Show the pages of another job of the run; "" stands for the newest job. */
  chooseJob(job) {
    this.job = job;
    this.view.jobChosen(job);
    this.keep(true);
  }

  /** Open the tab Logs with the log of a rank, or of the supervisor or a machine by its name. */
  openLog(rank, attempt) {
    this.view.page("logs").open(rank, attempt);
    this.view.tabs.select("logs");
  }

  // --- actions ---

  can(key) {
    if (this.absent) return false;
    if (key === "clone") return Boolean(this.host.openForm);
    // The kernel can only stop a run.
    return this.served || (key === "stop" && Boolean(this.model));
  }

  /** Carry out the action of a button; `overrides` are settings with which a run is resumed. */
  async act(key, overrides = null) {
    if (["tensorboard", "clone", "model"].includes(key)) return this.openBeside(key);
    const action = ((this.view.snap && this.view.snap.actions) || []).find((one) => one.key === key);
    if (action && action.ask && !(await this.view.head.confirm(action.ask, action.words))) return;
    if (key === "stop" && !(await this.undoable())) return;
    const before = this.view.snap && this.view.snap.state, queued = this.view.snap && this.view.snap.queued;
    this.busy(key);
    this.say(BEGUN[key] || "");
    try {
      // If no response has arrived yet, wait for the server before the kernel is used, which may be busy.
      if (!this.polled) await this.poll(true);
      if (!this.can(key)) {
        const why = this.absent ? "the run no longer exists" : "the Jupyter server does not respond";
        throw new Error(`${why}; nothing was changed.`);
      }
      if (key === "delete") await this.asked.call(`run/${this.name}?confirm=${this.name}`, "DELETE");
      else if (this.served && POSTED[key]) {
        const body = key === "kill" ? { now: true } : overrides ? { overrides } : {};
        await this.asked.call(`run/${this.name}/${POSTED[key]}`, "POST", body);
      } else this.model.send({ kind: key });
      const asked = "Stop requested: the kernel stops the job when its running cell finishes.";
      // If the job ended before the response arrived, there is nothing to wait for.
      const ended = this.view.snap && this.view.snap.state !== before;
      this.say(ended ? "" : this.served ? askedWords(key, queued) : asked);
      this.answered = askedWords(key, queued) && !ended ? before : null;
      this.savedBefore = key === "save" ? { step: this.savedStep } : null;
      // A stop is shown as pending until the snapshot shows it.
      if (key === "stop") setTimeout(() => this.busy(""), STOP_MS);
      this.soonUntil = Date.now() + SOON_MS;
      // The buttons of the old state stay disabled until the new state is known.
      if (this.served && key !== "delete") await this.poll(true);
      if (key !== "stop") this.busy("");
      if (key === "delete") this.gone();
    } catch (error) {
      this.busy("");
      this.say(failedWords(key, error.message), "error");
    }
  }

  /** Give the user time to undo the stop. Resolves to whether the job is to be stopped. */
  async undoable() {
    const queued = this.view.snap && this.view.snap.queued;
    this.busy("wait");
    const wanted = await this.view.head.undoable(`${this.name} ${queued ? "leaves the queue" : "stops"}`, UNDO_MS);
    this.busy("");
    return wanted;
  }

  /** Open TensorBoard, the page that tries a model, or the form with the settings of this run. The server finds the run
   *  by its name. */
  async openBeside(key) {
    // The first response shows whether the server's run with this name is this run.
    if (!this.polled && this.runId) await this.poll(true);
    const { openForm, openModel, openTensorBoard } = this.host;
    if (key === "clone" && openForm) openForm({ clone: this.name });
    if (key === "model" && openModel) openModel(this.name);
    if (key === "tensorboard" && openTensorBoard) openTensorBoard(this.name);
  }

  busy(key) {
    this.view.head.busy = key;
    this.redrawHead();
  }

  /** Another page, or a command, has deleted or renamed the run. */
  missing() {
    const shown = this.view.snap ? " The last known state is shown below." : "";
    this.say(`The run ${this.name} no longer exists: it was deleted, renamed or moved.${shown}`, "error");
    this.redrawHead();
  }

  replaced() {
    this.say(
      `The run ${this.name} was deleted, and a new run has its name. The last known state of the deleted run is shown below.`,
      "error",
    );
    this.redrawHead();
  }

  gone() {
    this.asked = null;
    this.say(`The run ${this.name} was deleted.`);
    if (this.host.openRuns) this.host.openRuns();
  }

  // --- data ---

  show(value) {
    if (!value || !value.shown) return;
    // A job that has ended meanwhile is not stopped.
    if (this.view.head.busy === "wait" && !value.active) this.view.head.answer(false);
    if (this.view.head.busy === "stop" && (value.asked || !value.active)) this.view.head.busy = "";
    if (this.answered && value.state !== this.answered) {
      this.answered = null;
      this.say("");
    }
    this.sayFailed(value.failed_action);
    this.savedStep = value.progress ? value.progress.checkpoint_step : null;
    if (this.savedBefore && known(this.savedStep) && this.savedStep !== this.savedBefore.step) {
      this.savedBefore = null;
      this.say(`Saved at step ${this.savedStep.toLocaleString("en")}.`);
    }
    if (value.run_id) {
      newestSnaps.delete(value.run_id);
      newestSnaps.set(value.run_id, value);
      if (newestSnaps.size > SNAPS_KEPT) newestSnaps.delete(newestSnaps.keys().next().value);
    }
    this.view.draw(value);
    this.keep();
  }

  /** Request the pages of the job if they are due: from the server, or from the kernel, which responds when it is idle. */
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
      // The user may have chosen another job meanwhile.
      if (job === this.job) this.view.take(value);
    } catch (error) {
      this.say(`Cannot load the details of the job: ${error.message}`, "error");
    }
  }

  setServed(value) {
    if (this.served === value) return;
    this.served = value;
    if (value) this.hadIt = true;
    if (value) this.view.reopened();
    else this.redrawHead();
    if (this.model) {
      // The kernel sends no snapshots while the server responds.
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
        // If this server had the run before, the run was deleted and a new one was created under its name.
        this.absent = this.hadIt;
        this.isElsewhere(true);
        if (this.hadIt) this.replaced();
        else this.say("This Jupyter server uses another output directory, so the values come from the kernel.");
      } else {
        if (!this.served && !this.view.head.busy) this.say("");
        this.absent = false;
        this.isElsewhere(false);
        this.setServed(true);
        this.show(value);
        // If many pages are open, the server asks for longer intervals.
        const soon = value.active || value.half_read || Date.now() < this.soonUntil;
        wait = soon ? 1000 * (value.look_again_seconds || 0) || POLL_MS : POLL_FINAL_MS;
      }
    } catch (error) {
      this.polled = true;
      this.setServed(false);
      wait = POLL_FINAL_MS;
      // A server without nbtrain also sends a 404, but without this kind.
      const unknown = error.status === 404 && error.kind === NO_RUN;
      // If the server never had the run, the kernel may use another output directory.
      this.absent = unknown && (this.hadIt || !this.model);
      if (unknown) this.isElsewhere(true);
      if (this.absent) this.missing();
      else if (unknown)
        this.say("This Jupyter server has no run with this name, so the values come from the kernel.");
      else if (error.status === 404 && this.model)
        this.say("This Jupyter server lacks nbtrain's server extension, so the values come from the kernel.");
      else if (error.status) this.say(error.message, "error");
      else this.say(`The Jupyter server does not respond (${error.message}). Trying again.`, "error");
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
    this.onLeave = () => this.view.head.dispose();
    window.addEventListener("pagehide", this.onLeave);
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
        this.say("This page cannot reach a Jupyter server, so the values come from the kernel.");
    }
    const seen = newestSnaps.get(this.runId);
    this.show(seen && (!snap || seen.time > snap.time) ? seen : snap);
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.watcher.disconnect();
    document.removeEventListener("visibilitychange", this.onVisible);
    window.removeEventListener("pagehide", this.onLeave);
    if (this.model) {
      this.model.off("change:snap", this.onSnap);
      this.model.off("msg:custom", this.onMessage);
    }
    this.view.dispose();
  }
}
