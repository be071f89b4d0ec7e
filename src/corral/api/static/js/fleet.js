/**
 * What a server of many models tells of them, and what it can be told to do.
 *
 * Tells "kind" when it is found that there are many models, or one; "change" when anything of the
 * models is another; "event" when something happened to one.
 */

import { Stream } from "./stream.js";

/** @typedef {{device: string, planned_bytes: number, measured_bytes: number | null}} HeldBytes */
/**
 * @typedef {object} ModelStatus
 * @property {string} name
 * @property {string} state
 * @property {string} reason
 * @property {string} error
 * @property {boolean} is_pinned
 * @property {string} stage
 * @property {number} done
 * @property {number} total
 * @property {number} waiting
 * @property {number} running
 * @property {HeldBytes[]} held
 */
/** @typedef {{number: number, at: number, model: string, state: string, reason: string}} FleetEvent */

const MOST_EVENTS = 200;

export class Fleet extends EventTarget {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./status.js").StatusFeed} feed
   */
  constructor(api, feed) {
    super();
    this._api = api;
    this.isFleet = false;
    /** @type {ModelStatus[]} */
    this.models = [];
    /** The model that is asked. @type {string | null} */
    this.chosen = null;
    /** The names of devices by their memories. @type {Map<string, string>} */
    this._names = new Map();
    /** The newest first. @type {FleetEvent[]} */
    this.events = [];
    const take = /** @param {FleetEvent} event */ (event) => this._take(event);
    this._stream = new Stream(api, "models/events", take, () => this.isFleet);
    this._wasThere = false;
    this._isAsking = false;
    feed.addEventListener("change", () => this._follow(feed.status !== null));
  }

  /**
   * What each model holds of a device, the largest first.
   * @param {string} device
   * @returns {import("./device.js").Share[]}
   */
  sharesOf(device) {
    const shares = this.models.map(({ name, held }) => {
      const own = held.filter((one) => (this._names.get(one.device) ?? one.device) === device);
      return { name, bytes: own.reduce((sum, one) => sum + one.planned_bytes, 0) };
    });
    return shares.filter((share) => share.bytes > 0).sort((one, other) => other.bytes - one.bytes);
  }

  /** @param {string} model */
  load(model) {
    return this._do("models/load", { model });
  }

  /** @param {string} model */
  unload(model) {
    return this._do("models/unload", { model });
  }

  /**
   * @param {string} model
   * @param {boolean} pinned
   */
  pin(model, pinned) {
    return this._do("models/pin", { model, pinned });
  }

  reload() {
    return this._do("models/reload", {});
  }

  /**
   * @param {string} path
   * @param {object} body
   */
  async _do(path, body) {
    await this._api.post(path, body);
    await this._refresh();
  }

  /**
   * Look again with each status; find out what the server is when it (again) answers.
   * @param {boolean} isThere
   */
  async _follow(isThere) {
    const isNew = isThere && !this._wasThere;
    this._wasThere = isThere;
    if (!isThere || this._isAsking) return;
    this._isAsking = true;
    try {
      if (isNew) await this._findKind();
      if (this.isFleet) await this._refresh();
    } catch {
      this._wasThere = false; // the next status tries again
    } finally {
      this._isAsking = false;
    }
  }

  async _findKind() {
    const { data } = await this._api.get("v1/models");
    const isFleet = data.length !== 1 || "corral" in data[0];
    if (isFleet) this._stream.start();
    if (isFleet === this.isFleet) return;
    this.isFleet = isFleet;
    this.dispatchEvent(new Event("kind"));
  }

  async _refresh() {
    const { models, devices } = await this._api.get("corral/fleet");
    this.models = models;
    this._names = new Map(devices.map((/** @type {any} */ one) => [one.memory, one.name]));
    this.dispatchEvent(new Event("change"));
  }

  /** @param {FleetEvent} event */
  _take(event) {
    this.events = [event, ...this.events].slice(0, MOST_EVENTS);
    this.dispatchEvent(new Event("event"));
  }
}
