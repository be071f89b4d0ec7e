/**
 * Follows what the server tells of itself, once a second, for as long as the page is seen: a
 * hidden page would hold one of the few connections that a browser has to a server.
 */

import { ApiError } from "./api.js";
import { events } from "./sse.js";

/**
 * @typedef {object} HeldDevice
 * @property {string} name
 * @property {string} title
 * @property {number | null} total_bytes
 * @property {number | null} free_bytes
 * @property {number | null} foreign_bytes
 * @property {Record<string, number>} held bytes by lifetime
 */
/**
 * @typedef {object} Slot
 * @property {string} request_id
 * @property {number} prompt_tokens
 * @property {number} cached_tokens
 * @property {number} computed_tokens
 * @property {number} generated_tokens
 */
/**
 * @typedef {object} Status
 * @property {string} model
 * @property {string} state
 * @property {{stage: string, done: number, total: number} | null} progress
 * @property {number} restarts
 * @property {string | null} error
 * @property {number | null} context
 * @property {HeldDevice[]} devices
 * @property {{running: number, waiting: number, finished: number}} requests
 * @property {{prompt: number, generation: number}} tokens_per_s
 * @property {{used_blocks: number, total_blocks: number}} kv
 * @property {Slot[]} slots
 */

const SHORTEST_MS = 1000;
const LONGEST_MS = 10_000;

/** Tells "change" when `status` or `problem` is another, and "refusal" when a key is wanted. */
export class StatusFeed extends EventTarget {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    super();
    this._api = api;
    this._control = new AbortController();
    /** @type {Status | null} */
    this.status = null;
    /** Why there is no status. */
    this.problem = "";
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this._control.abort();
      else this.start();
    });
  }

  /** Begin, or begin anew with another key. */
  start() {
    this._control.abort();
    this._control = new AbortController();
    void this._follow(this._control.signal);
  }

  /** @param {AbortSignal} signal */
  async _follow(signal) {
    let pause = SHORTEST_MS;
    while (!signal.aborted) {
      try {
        const response = await this._api.open("GET", "corral/events", undefined, signal);
        for await (const event of events(response)) {
          pause = SHORTEST_MS;
          this._tell(JSON.parse(event.data), "");
        }
        this._tell(null, "the server has ended");
      } catch (error) {
        if (signal.aborted) return;
        if (!this._fail(error)) return;
      }
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, LONGEST_MS);
    }
  }

  /**
   * Tell of an error; return whether it makes sense to try again.
   * @param {unknown} error
   */
  _fail(error) {
    const isRefused = error instanceof ApiError && error.status === 401;
    const problem = error instanceof ApiError ? error.message : "the server does not answer";
    this._tell(null, problem);
    if (isRefused) this.dispatchEvent(new Event("refusal"));
    return !isRefused;
  }

  /**
   * @param {Status | null} status
   * @param {string} problem
   */
  _tell(status, problem) {
    this.status = status;
    this.problem = problem;
    this.dispatchEvent(new Event("change"));
  }
}
