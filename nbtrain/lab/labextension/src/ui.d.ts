// Types for the parts of nbtrain/lab/ui that the extension uses. Those modules are plain JavaScript.

declare module "*/ui/host/server.js" {
  export class Server {
    constructor(config: { base: string; token: string });
    /** Called after each request other than GET, such as a submission. */
    changed: () => void;
    call(path: string, method?: string, body?: unknown): Promise<any>;
  }
  export function pageConfig(): { base: string; token: string } | null;
}

declare module "*/ui/runs/runs_feed.js" {
  export function runsFeed(server: unknown): {
    join(watcher: {
      took(value: any): void;
      failed(error: unknown): void;
      wait(): number | null;
    }): { look(): void; plan(): void; leave(): void };
  };
}

declare module "*/ui/compare/compare.js" {
  export function mountCompare(
    root: HTMLElement,
    options: { server: unknown; host: unknown; names: string[]; changed?: (names: string[]) => void },
  ): () => void;
}

declare module "*/ui/form/form.js" {
  export function mountForm(
    root: HTMLElement,
    options: { server: unknown; host: unknown; start: object; id: string },
  ): () => void;
}

declare module "*/ui/runs/runs.js" {
  export function mountRuns(
    root: HTMLElement,
    options: { server: unknown; host: unknown; compact?: boolean },
  ): (() => void) & { look(): void };
}

declare module "*/ui/run/run.js" {
  export function mountRun(
    root: HTMLElement,
    options: { server: unknown; name: string; host: unknown; place?: object },
  ): () => void;
}
