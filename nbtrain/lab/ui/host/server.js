// The REST calls to nbtrain's server extension, at <base_url>nbtrain/.

export function pageConfig() {
  const node = document.getElementById("jupyter-config-data");
  if (node) {
    try {
      const config = JSON.parse(node.textContent);
      if (config.baseUrl) return { base: config.baseUrl, token: config.token || "" };
    } catch (error) {
      console.warn("nbtrain: the page's configuration is not JSON", error);
    }
  }
  const base = document.body && document.body.dataset.baseUrl;
  return base ? { base, token: document.body.dataset.jupyterApiToken || "" } : null;
}

function cookie(name) {
  const found = document.cookie.split("; ").find((part) => part.startsWith(name + "="));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}

// A browser lets a request of at most 64 KiB outlive its page.
const OUTLIVING_BYTES = 32768;

/** The most scalars that one request may name. */
export const MOST_NAMES = 60;

export class Server {
  constructor(config) {
    this.base = config.base.replace(/\/*$/, "/") + "nbtrain/";
    this.token = config.token;
    /** Called after each request other than GET, such as a submission. */
    this.changed = () => {};
  }

  /** The address of a route, for a link. */
  url(path) {
    return this.base + path;
  }

  /** Send a request with `body` as JSON and return the JSON of the response. Throws an Error with the `status` of the
   *  response and the `kind` of the error, "" if the response has none. */
  async call(path, method = "GET", body = null) {
    const headers = body === null ? {} : { "Content-Type": "application/json" };
    if (this.token) headers.Authorization = `token ${this.token}`;
    if (method !== "GET") headers["X-XSRFToken"] = cookie("_xsrf");
    // Polls do not count as activity, so that a forgotten tab does not keep an idle server alive.
    const mark = path.includes("?") ? "&" : "?";
    const sent = body === null ? undefined : JSON.stringify(body);
    const response = await fetch(`${this.base}${path}${mark}no_track_activity=1`, {
      method,
      headers,
      body: sent,
      // With keepalive, a stop that is sent while its page closes still arrives.
      keepalive: method !== "GET" && (sent || "").length < OUTLIVING_BYTES,
      credentials: "same-origin",
      cache: "no-store",
    });
    const text = await response.text();
    let value = null;
    try {
      value = JSON.parse(text);
    } catch {
      /* not JSON, for example a login page: reported below by its status */
    }
    if (!response.ok || value === null) {
      const failure = new Error((value && (value.message || value.reason)) || `HTTP ${response.status}`);
      failure.status = response.status;
      failure.kind = (value && value.kind) || "";
      throw failure;
    }
    // The routes of the form and of comparisons use POST, but change nothing.
    if (method !== "GET" && !/^(form|compare)/.test(path)) this.changed();
    return value;
  }

  /**
   * Return all curves of a run, with as many requests to the route metrics as needed.
   *
   * words    query of each request: {points, x, from, to}
   * known    `tags` of an earlier response; without them, the first request is for the curves that every run has
   */
  async metrics(run, words, known = null) {
    const ask = (names) =>
      this.call(`run/${encodeURIComponent(run)}/metrics?${new URLSearchParams({ ...words, ...names })}`);
    const named = (tags) => ({ tags: tags.map(({ tag }) => tag).join(",") });
    let answer = await ask(known && known.length ? named(known.slice(0, MOST_NAMES)) : {});
    const missing = answer.tags.filter(({ tag }) => !(tag in answer.series));
    for (let at = 0; at < missing.length; at += MOST_NAMES) {
      const more = await ask(named(missing.slice(at, at + MOST_NAMES)));
      answer = { ...more, series: { ...answer.series, ...more.series } };
    }
    return answer;
  }

  /** Return the download address for the points of at most MOST_NAMES curves, or of all curves if `names` is null. */
  csvUrl(run, names) {
    const query = names ? `?${new URLSearchParams({ tags: names.slice(0, MOST_NAMES).join(",") })}` : "";
    return this.url(`run/${encodeURIComponent(run)}/metrics.csv${query}`);
  }
}

/** Return the server that this page comes from; null if it does not come from a Jupyter server. */
export function serverHere() {
  const config = pageConfig();
  return config && new Server(config);
}

/** Return the message for a part of the page that cannot be shown. */
export const refused = (error, what) =>
  error.status === 404 && /^HTTP 404|not found/i.test(error.message)
    ? `The nbtrain version of this Jupyter server does not offer ${what}. If you updated nbtrain, restart the server.`
    : `Cannot show ${what}: ${error.message}`;
