// Published figures of others in a comparison: a YAML file that the user chooses, and that this browser keeps.
//
// The server reads the file (nbtrain/monitor/runs/published.py) and adds its columns to the tables. If the server refuses
// the file, the page reports the place of the problem and shows the tables without the file.

import { button, element } from "../elements/dom.js";

const PUBLISHED_KEY = "nbtrain-published-figures";
// Statuses of the response for a file that is too large or invalid.
const REFUSED = [400, 413, 422];
const PUBLISHED_TITLE = "Choose a YAML file of names and figures, such as 345M on 8 NPUs: {samples/s: 59.7}";

export class PublishedFigures {
  /** `compare` is the page of compare.js; `given` is {file, text} of a notebook's cell. */
  constructor({ compare, given }) {
    this.compare = compare;
    this.isGiven = Boolean(given && given.text);
    this.kept = this.isGiven ? given : keptPublished();
    this.input = element("input");
    Object.assign(this.input, { type: "file", accept: ".yaml,.yml,text/yaml", hidden: true });
    this.input.addEventListener("change", () => this.chosen());
    this.add = button("Add published figures", PUBLISHED_TITLE, () => this.input.click());
    this.remove = button("Remove published figures", "", () => this.keep(null));
    this.problem = element("span", "nbt-error");
    this.problem.setAttribute("role", "alert");
    this.node = element("span", "nbt-published");
    this.node.append(this.input, this.add, this.remove, this.problem);
    this.draw();
  }

  draw() {
    const { server } = this.compare;
    this.add.hidden = !server || Boolean(this.kept);
    this.remove.hidden = !server || !this.kept;
    if (this.kept) this.remove.title = `Remove the figures of ${this.kept.file} from the comparison`;
  }

  async chosen() {
    const [file] = this.input.files;
    if (!file) return;
    const text = await file.text();
    // Without this, the same file could not be chosen again after the user has corrected it.
    this.input.value = "";
    this.keep({ file: file.name, text });
  }

  keep(published) {
    const within = this.node.contains(document.activeElement);
    this.kept = published;
    this.problem.textContent = "";
    if (!this.isGiven) keepPublished(published);
    this.draw();
    if (within) (published ? this.remove : this.add).focus();
    this.compare.read();
  }

  /** Request the tables of the runs `names`, with the published figures unless the server refuses them. */
  async tables(names) {
    const { server } = this.compare, query = new URLSearchParams({ runs: names.join(",") }), published = this.kept;
    if (published) {
      try {
        return await server.call("compare", "POST", { runs: names, published });
      } catch (error) {
        // Other errors, for example because a run is being deleted, are not caused by the file.
        if (!REFUSED.includes(error.status)) throw error;
        // The user may have removed or replaced the file meanwhile.
        if (this.kept === published) {
          this.kept = null;
          if (!this.isGiven) keepPublished(null);
          this.draw();
          this.problem.textContent = `The figures of ${published.file} are not shown: ${error.message}`;
        }
      }
    }
    return server.call(`compare?${query}`);
  }
}

function keptPublished() {
  try {
    const { file, text } = JSON.parse(localStorage.getItem(PUBLISHED_KEY)) || {};
    return file && text ? { file: String(file), text: String(text) } : null;
  } catch {
    // There is no storage, or the entry was not written by this code.
    return null;
  }
}

function keepPublished(published) {
  try {
    if (published) localStorage.setItem(PUBLISHED_KEY, JSON.stringify(published));
    else localStorage.removeItem(PUBLISHED_KEY);
  } catch {
    /* the storage is full or disabled: the figures are lost with the page */
  }
}
