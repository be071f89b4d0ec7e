/** What the server tells of itself, once a second. */

import { ApiError } from "./api.js";
import { Stream } from "./stream.js";

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

/** Tells "change" when `status` or `problem` is another, and "refusal" when a key is wanted. */
export class StatusFeed extends EventTarget {
  /** @param {import("./api.js").Api} api */
  constructor(api) {
    super();
    /** @type {Status | null} */
    this.status = null;
    /** Why there is no status. */
    this.problem = "";
    const take = /** @param {Status} status */ (status) => this._tell(status, "");
    this._stream = new Stream(api, "corral/events", take, (error) => this._fail(error));
  }

  /** Begin, or begin anew with another key. */
  start() {
    this._stream.start();
  }

  /**
   * Tell of an end; return whether it makes sense to try again.
   * @param {unknown} error
   */
  _fail(error) {
    if (error === null) {
      this._tell(null, "the server has ended");
      return true;
    }
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
