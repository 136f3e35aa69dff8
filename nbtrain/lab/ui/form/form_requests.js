// The form's requests. They go to the Jupyter server, or else to the kernel that opened the form. Both give the
// same answers (lab/form/answers.py). The kernel receives a request when its running cell finishes.

// A busy kernel answers later; requests that are repeated meanwhile would only queue up.
const KERNEL_MS = 15000;
// Statuses by which a server refuses the request itself: the kernel is not asked as well.
const ANSWERED = [400, 409, 413, 422];

/** The messages for an answer to submit: {text, toast, kind}. */
export function submitted({ name, job_id: job, twin_of: of, joined: state, not_applied: left = [] }) {
  const good = (text, toast) => ({ text, toast, kind: "success" });
  if (of) return good(`The twin of ${of} has started: ${name}.`, `${name} has started`);
  if (!state) return good(`Submitted: job ${job} of ${name}.`, `${name} is submitted`);
  const toast = `Nothing was submitted: ${name} is already ${state}`;
  const joined = `${toast}. Showing its job ${job}, which `;
  if (!left.length) return { text: `${joined}has these settings.`, toast, kind: "info" };
  const words = `Not applied: ${left.join(", ")}.`;
  return { text: `${joined}keeps its own settings. ${words}`, toast: `${toast}. ${words}`, kind: "warning" };
}

export class FormAsks {
  /** `model` is the anywidget model or null; `place` is where its kernel finds YAMLs and writes runs. */
  constructor(server, model, place) {
    Object.assign(this, { server, model, place });
    this.waiting = new Map();
    /** Called when the kernel is busy and will submit later. */
    this.postponed = () => {};
    this.asked = 0;
    /** "server" or "kernel", whichever answers; "" while neither does. */
    this.source = "";
    /** Why the server is not asked, if it is not. */
    this.why = server ? "" : "This page does not come from a Jupyter server.";
    this.onMessage = (message) => {
      if (!message || message.kind !== "answer" || !this.waiting.has(message.id)) return;
      const { done, failed } = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (message.value) done(message.value);
      else failed(Object.assign(new Error(message.error), { status: 422 }));
    };
    if (model) model.on("msg:custom", this.onMessage);
  }

  /** A note that the kernel answers instead of the server; else "". */
  get words() {
    return this.source === "kernel" ? `${this.why} The kernel checks the form when it is idle.` : "";
  }

  dispose() {
    if (this.model) this.model.off("msg:custom", this.onMessage);
    this.model = null;
  }

  /** The kernel has ended, and its model does not answer any more. */
  lose() {
    this.dispose();
    for (const { failed } of this.waiting.values()) failed(new Error("the kernel has ended"));
    this.waiting.clear();
  }

  /** Return the answer. Throws an Error with `status` if the request is refused, with status 0 without answer. */
  async ask(path, request) {
    if (this.server) {
      try {
        const value = await this.server.call(path, "POST", request);
        if (path !== "form" || !this.model || !this.place || value.place === this.place) {
          this.source = "server";
          return value;
        }
        this.why = "This Jupyter server uses a different folder than the kernel.";
        this.server = null;
      } catch (error) {
        const elsewhere = this.model && /outside of the workspace/.test(error.message);
        if (ANSWERED.includes(error.status) && !elsewhere) {
          this.source = "server";
          throw error;
        }
        this.why = error.status === 404
          ? "The nbtrain server extension of this Jupyter server is missing or too old to serve forms."
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
        // The request cannot be withdrawn: the kernel carries it out later, and the result is shown.
        if (path === "submit") return this.postponed();
        this.waiting.delete(id);
        this.source = "";
        const words = `The kernel has not answered for ${KERNEL_MS / 1000} s: it is running a cell.`;
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
