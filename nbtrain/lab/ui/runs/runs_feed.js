// One poll of the runs, shared by all views of this page: lists, the status bar, the Running panel.
//
//   runsFeed(server).join({took(value), failed(error), wait()})  ->  {look(), plan(), leave()}
//
// `wait()` returns the milliseconds until the watcher needs a new response, or null while it needs none. The shortest
// wait of all watchers decides when the server is polled next. A hidden page does not poll.

const feeds = new Map();

/** Return the feed of a server; all views of a page share it. */
export function runsFeed(server) {
  const key = server.base ? `${server.base} ${server.token}` : server;
  if (!feeds.has(key)) feeds.set(key, new RunsFeed(server));
  return feeds.get(key);
}

class RunsFeed {
  constructor(server) {
    this.server = server;
    this.watchers = new Set();
    this.value = null;
    this.at = 0;
    this.timer = null;
    this.reading = null;
    this.again = null;
    document.addEventListener("visibilitychange", () => this.plan());
  }

  join(watcher) {
    this.watchers.add(watcher);
    if (this.fresh(watcher)) watcher.took(this.value);
    this.plan();
    return {
      look: () => this.look(),
      plan: () => {
        if (this.fresh(watcher)) watcher.took(this.value);
        this.plan();
      },
      leave: () => {
        this.watchers.delete(watcher);
        this.plan();
      },
    };
  }

  fresh(watcher) {
    const wait = watcher.wait();
    return this.value !== null && wait !== null && Date.now() - this.at < wait;
  }

  /** Poll at once; resolves when the watchers have the response. If a request is in progress, poll again after it,
   *  because something may have changed since that request was sent. */
  look() {
    clearTimeout(this.timer);
    if (!this.reading) return (this.reading = this.read());
    this.again ||= this.reading.then(() => {
      this.again = null;
      return this.look();
    });
    return this.again;
  }

  /** Schedule the next poll for the watcher that needs a response first. */
  plan() {
    clearTimeout(this.timer);
    const waits = [...this.watchers].map((one) => one.wait()).filter((wait) => wait !== null);
    if (!waits.length || document.hidden || this.reading) return;
    this.timer = setTimeout(() => this.look(), Math.max(0, this.at + Math.min(...waits) - Date.now()));
  }

  async read() {
    let failure = null;
    try {
      this.value = await this.server.call("runs");
    } catch (error) {
      [this.value, failure] = [null, error];
    }
    [this.reading, this.at] = [null, Date.now()];
    for (const watcher of [...this.watchers]) {
      if (failure) watcher.failed(failure);
      else watcher.took(this.value);
    }
    if (!this.again) this.plan();
  }
}
