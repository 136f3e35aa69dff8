// The form's requests. They go to the Jupyter server or, if it cannot respond, to the kernel that opened the form. Both
// give the same responses (lab/form/answers.py). The kernel receives a request when its running cell finishes.

// Time to wait for the kernel. A busy kernel responds later, and requests that are repeated meanwhile would queue up.
const KERNEL_MS = 15000;
// Statuses of a refused request. The kernel would refuse the request too, so it is not asked.
const ANSWERED = [400, 409, 413, 422];
// The kind of the error for a run YAML outside the server's workspace. The kernel may read the file.
const OUTSIDE_WORKSPACE = "outside_workspace";

/** Return the messages for a response to submit: {text, toast, kind}. */
export function submitted({ name, job_id: job, twin_of: of, joined: state, not_applied: left = [] }) {
  const good = (text, toast) => ({ text, toast, kind: "success" });
  if (of) return good(`The twin of ${of} has started: ${name}.`, `${name} has started`);
  if (!state) return good(`Submitted: job ${job} of ${name}.`, `${name} was submitted`);
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
    /** "server" or "kernel", whichever responds; "" while neither does. */
    this.source = "";
    /** Why the server is not used, as a sentence; "" while it is used. */
    this.why = server ? "" : "This page is not served by a Jupyter server.";
    this.onMessage = (message) => {
      if (!message || message.kind !== "answer" || !this.waiting.has(message.id)) return;
      const { done, failed } = this.waiting.get(message.id);
      this.waiting.delete(message.id);
      if (message.value) done(message.value);
      else failed(Object.assign(new Error(message.error), { status: 422 }));
    };
    if (model) model.on("msg:custom", this.onMessage);
  }

  /** A note that the kernel is used instead of the server; "" if it is not. */
  get words() {
    return this.source === "kernel" ? `${this.why} The kernel checks the form when it is idle.` : "";
  }

  dispose() {
    if (this.model) this.model.off("msg:custom", this.onMessage);
    this.model = null;
  }

  /** The kernel has ended, and its model no longer responds. */
  lose() {
    this.dispose();
    for (const { failed } of this.waiting.values()) failed(new Error("The kernel has ended."));
    this.waiting.clear();
  }

  /** Return the response. Throws an Error with `status` if the request is refused, and with status 0 if neither the
   *  server nor the kernel responds. */
  async ask(path, request) {
    if (this.server) {
      try {
        const value = await this.server.call(path, "POST", request);
        if (path !== "form" || !this.model || !this.place || value.place === this.place) {
          this.source = "server";
          return value;
        }
        this.why = "This Jupyter server uses other folders than the kernel.";
        this.server = null;
      } catch (error) {
        const isOutside = this.model && error.kind === OUTSIDE_WORKSPACE;
        if (ANSWERED.includes(error.status) && !isOutside) {
          this.source = "server";
          throw error;
        }
        if (isOutside) this.why = "The Jupyter server reads only run YAMLs in its workspace.";
        else if (error.status === 404)
          this.why = "The nbtrain server extension of this Jupyter server is missing or too old to serve forms.";
        else this.why = `The Jupyter server does not respond (${error.message}).`;
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
        const words = `The kernel has not responded for ${KERNEL_MS / 1000} s; it may be running a cell.`;
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
