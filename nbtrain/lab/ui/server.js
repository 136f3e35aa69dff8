// The REST calls to the server half of nbtrain, at <base_url>nbtrain/.

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

/** The most scalars that one request may name. */
export const MOST_NAMES = 60;

export class Server {
  constructor(config) {
    this.base = config.base.replace(/\/*$/, "/") + "nbtrain/";
    this.token = config.token;
    /** Called after each request that is no GET, such as a submission. */
    this.changed = () => {};
  }

  /** The address of a route, for a link. */
  url(path) {
    return this.base + path;
  }

  /** The JSON that a route answers; an Error with `status` if it refuses. `body` goes as JSON. */
  async call(path, method = "GET", body = null) {
    const headers = body === null ? {} : { "Content-Type": "application/json" };
    if (this.token) headers.Authorization = `token ${this.token}`;
    if (method !== "GET") headers["X-XSRFToken"] = cookie("_xsrf");
    // Looking at a panel is no activity: a forgotten tab must not keep an idle server alive.
    const mark = path.includes("?") ? "&" : "?";
    const response = await fetch(`${this.base}${path}${mark}no_track_activity=1`, {
      method,
      headers,
      body: body === null ? undefined : JSON.stringify(body),
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
      throw failure;
    }
    // The form only asks by POST.
    if (method !== "GET" && !path.startsWith("form")) this.changed();
    return value;
  }

  /**
   * The curves of a run, all of them, in as many requests as they take: an answer of the route metrics.
   *
   * words    what is asked of each: {points, x, from, to}
   * known    `tags` of an earlier answer; without them, the first request is for what every run has
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

  /** Where the points of some curves are downloaded, at most MOST_NAMES; null: of every curve of the run. */
  csvUrl(run, names) {
    const query = names ? `?${new URLSearchParams({ tags: names.slice(0, MOST_NAMES).join(",") })}` : "";
    return this.url(`run/${encodeURIComponent(run)}/metrics.csv${query}`);
  }
}

/** The server half that this page belongs to; null if the page is none of a Jupyter server. */
export function serverHere() {
  const config = pageConfig();
  return config && new Server(config);
}

/** Why a part of the page cannot be shown. */
export const refused = (error, what) =>
  error.status === 404 && /^HTTP 404|not found/i.test(error.message)
    ? `This Jupyter server's nbtrain does not give ${what}; restart the server if nbtrain is newer.`
    : `Not shown: ${what}. ${error.message}`;
