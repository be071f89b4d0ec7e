/**
 * Follows a stream of events for as long as the page is seen, and begins again when it ends: a
 * hidden page would hold one of the few connections that a browser has to a server.
 */

import { events } from "./sse.js";

const SHORTEST_MS = 1000;
const LONGEST_MS = 10_000;

export class Stream {
  /**
   * @param {import("./api.js").Api} api
   * @param {string} path
   * @param {(told: any) => void} take gets what each event says
   * @param {(error: unknown) => boolean} fail is told that the stream ended, with null where no
   *   error ended it; returns whether to try again
   */
  constructor(api, path, take, fail) {
    this._api = api;
    this._path = path;
    this._take = take;
    this._fail = fail;
    this._control = new AbortController();
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
      /** @type {unknown} */
      let end = null;
      try {
        const response = await this._api.open("GET", this._path, undefined, signal);
        for await (const event of events(response)) {
          pause = SHORTEST_MS;
          this._take(JSON.parse(event.data));
        }
      } catch (error) {
        end = error;
      }
      if (signal.aborted || !this._fail(end)) return;
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, LONGEST_MS);
    }
  }
}
