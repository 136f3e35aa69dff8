// "Train on this text" for a file or folder: the server inspects it, and the form opens with the chosen settings.

import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Notification } from "@jupyterlab/apputils";
import type { IFileBrowserFactory } from "@jupyterlab/filebrowser";

import type { Server } from "../../ui/host/server.js";
import type { FormArguments } from "./host";

// File types that `nbtrain new` reads (corpus/survey/survey.py). For other files, the server's response has the reason.
const TEXT = /\.(txt|md|jsonl|ndjson|json|parquet|parq|pq)(\.(gz|zst|bz2|xz))?$/i;

interface Chosen extends FormArguments {
  /** A description of the text: "2.8 MiB of English in 559 documents, 1 file". */
  found: string;
  notes: string[];
}

/** Return the selected items of the file browser if all of them may be text; otherwise []. */
export function chosenTexts(app: JupyterFrontEnd, browsers: IFileBrowserFactory | null): string[] {
  const items = [...(browsers?.tracker.currentWidget?.selectedItems() ?? [])];
  if (!items.every((item) => item.type === "directory" || TEXT.test(item.name))) return [];
  return items.map((item) => app.serviceManager.contents.localPath(item.path));
}

/** Let the server inspect the texts, then open the form with the settings that it chose. */
export function trainOn(server: Server, paths: string[], openForm: (start: FormArguments) => void): void {
  const looked = server.call("form/text", "POST", { paths }).then((value) => {
    const { yaml, overrides, found, notes } = value as Chosen;
    openForm({ yaml, overrides });
    return [found, ...notes].join("; ");
  });
  const words = paths.length === 1 ? paths[0] : `${paths.length} files`;
  Notification.promise(looked, {
    pending: { message: `Reading ${words}...` },
    success: { message: (found) => String(found), options: { autoClose: 8000 } },
    error: { message: (error) => (error as Error).message, options: { autoClose: 30_000 } },
  });
}
