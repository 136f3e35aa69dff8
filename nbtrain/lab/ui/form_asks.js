// Whom the form asks: the Jupyter server, else the kernel that opened it. Both give the same answers
// (lab/form/answers.py). The kernel hears a question when its running cell has ended.

// A kernel that runs a cell answers later; what is asked again meanwhile would only queue up.
const KERNEL_MS = 15000;
// What a server says about the question itself: its answer counts, nobody else is asked.
const ANSWERED = [400, 409, 413, 422];

/** What is said of an answer to submit: {text, toast, kind}. */
export function submitted({ name, job_id: job, twin_of: of, joined: state, not_applied: left = [] }) {
  const good = (text, toast) => ({ text, toast, kind: "success" });
  if (of) return good(`The twin of ${of} has begun: ${name}.`, `${name} has begun`);
  if (!state) return good(`Submitted: job ${job} of ${name}.`, `${name} is submitted`);
  const toast = `Nothing was submitted: ${name} is ${state} already`;
  const joined = `${toast}; joined its job ${job}, which `;
  if (!left.length) return { text: `${joined}has these settings.`, toast, kind: "info" };
  const words = `Not applied: ${left.join(", ")}.`;
  return { text: `${joined}keeps its own settings. ${words}`, toast: `${toast}. ${words}`, kind: "warning" };
}

export class FormAsks {
  /** `model` is the anywidget model or null; `place` is where its kernel finds YAMLs and writes runs. */
  constructor(server, model, place) {
    Object.assign(this, { server, model, place });
    this.waiting = new Map();
    /** Called when the kernel is busy and carries a submission out later. */
    this.postponed = () => {};
    this.asked = 0;
    /** "server", "kernel" or "" while nobody answers. */
    this.source = "";
    /** Why the server is not asked, if it is not. */
    this.why = server ? "" : "This page belongs to no Jupyter server.";
    this.onMessage = (message) => {
      if (!message || message.kind !== "answer" || !this.waiting.has(message.id)) return;
      const { done, failed } = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (message.value) done(message.value);
      else failed(Object.assign(new Error(message.error), { status: 422 }));
    };
    if (model) model.on("msg:custom", this.onMessage);
  }

  /** Who answers, if it is not the server. */
  get words() {
    return this.source === "kernel" ? `${this.why} The kernel answers, between its cells.` : "";
  }

  dispose() {
    if (this.model) this.model.off("msg:custom", this.onMessage);
    this.model = null;
  }

  /** The kernel is gone: its model answers no more. */
  lose() {
    this.dispose();
    for (const { failed } of this.waiting.values()) failed(new Error("the kernel is gone"));
    this.waiting.clear();
  }

  /** The answer; an Error with `status` if the question is refused, without one if nobody answers. */
  async ask(path, request) {
    if (this.server) {
      try {
        const value = await this.server.call(path, "POST", request);
        if (path !== "form" || !this.model || !this.place || value.place === this.place) {
          this.source = "server";
          return value;
        }
        this.why = "This Jupyter server works in another folder than the kernel.";
        this.server = null;
      } catch (error) {
        const elsewhere = this.model && /outside of the workspace/.test(error.message);
        if (ANSWERED.includes(error.status) && !elsewhere) {
          this.source = "server";
          throw error;
        }
        this.why = error.status === 404
          ? "This Jupyter server has no server half of nbtrain that gives forms."
          : `The Jupyter server does not answer (${error.message}).`;
        if (!this.model) {
          this.source = "";
          throw Object.assign(new Error(this.why), { status: 0 });
        }
      }
    }
    if (!this.model) {
      this.source = "";
      throw Object.assign(new Error(this.why), { status: 0 });
    }
    return this.askKernel(path, request);
  }

  askKernel(path, request) {
    const id = (this.asked += 1);
    return new Promise((done, failed) => {
      const timer = setTimeout(() => {
        // It cannot be taken back: the kernel hears it, and what comes of it is shown.
        if (path === "submit") return this.postponed();
        this.waiting.delete(id);
        this.source = "";
        const words = `The kernel has not answered for ${KERNEL_MS / 1000} s: it runs a cell.`;
        failed(Object.assign(new Error(`${this.why} ${words}`), { status: 0 }));
      }, KERNEL_MS);
      const ended = (act) => (value) => {
        clearTimeout(timer);
        this.source = "kernel";
        act(value);
      };
      this.waiting.set(id, { done: ended(done), failed: ended(failed) });
      this.model.send({ kind: "ask", id, path, request });
    });
  }
}
