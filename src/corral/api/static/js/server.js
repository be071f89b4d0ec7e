/** Shows the server's model and its state, and leads each status to what shows its parts. */

import { DeviceView } from "./device.js";
import { byId, element, setText } from "./dom.js";
import { counted, rate } from "./format.js";
import { LoadView } from "./load.js";

/** @typedef {import("./status.js").Status} Status */
/** @typedef {import("./status.js").StatusFeed} StatusFeed */

export class ServerView {
  /**
   * @param {StatusFeed} feed
   * @param {import("./fleet.js").Fleet} fleet
   */
  constructor(feed, fleet) {
    this._feed = feed;
    this._fleet = fleet;
    this._model = byId("model");
    this._state = byId("state");
    this._stateText = byId("state-text");
    this._pill = byId("pill");
    this._devices = byId("devices");
    this._notice = byId("notice");
    this._load = new LoadView();
    /** @type {Map<string, DeviceView>} */
    this._views = new Map();
    feed.addEventListener("change", () => this._show());
    fleet.addEventListener("kind", () => this._forget());
  }

  /** Show devices anew: there are many models now, or there is one. */
  _forget() {
    for (const view of this._views.values()) view.node.remove();
    this._views.clear();
  }

  _show() {
    const { status, problem } = this._feed;
    this._load.update(status);
    this._showState(status, problem);
    if (status === null) return;
    setText(this._model, status.model);
    document.title = `${status.model} · corral`;
    const { running, waiting } = status.requests;
    setText(this._pill, running + waiting > 0 ? `${rate(status.tokens_per_s.generation)} tok/s` : "Memory");
    this._showDevices(status);
  }

  /** @param {Status} status */
  _showDevices({ devices }) {
    for (const device of devices) {
      let view = this._views.get(device.name);
      if (view === undefined) {
        view = new DeviceView(device.name, this._fleet.isFleet);
        this._views.set(device.name, view);
        this._devices.append(view.node);
      }
      view.update(device, this._fleet.sharesOf(device.name));
    }
    const names = new Set(devices.map((device) => device.name));
    for (const [name, view] of this._views) {
      if (names.has(name)) continue;
      view.node.remove();
      this._views.delete(name);
    }
  }

  /**
   * @param {Status | null} status
   * @param {string} problem
   */
  _showState(status, problem) {
    const { models, chosen } = this._fleet;
    const asked = models.find(({ name }) => name === chosen)?.state;
    this._state.dataset.state = status === null ? "away" : (asked ?? status.state);
    setText(this._stateText, status === null ? problem : (asked ?? stateText(status)));
    const text = noticeText(status, problem);
    this._notice.hidden = text === "";
    if (text !== this._notice.textContent) this._notice.replaceChildren(element("span", {}, text));
  }
}

/** @param {Status} status */
function stateText({ state, restarts, progress }) {
  if (state === "loading" && progress?.stage) return `loading: ${progress.stage}${percent(progress)}`;
  return restarts > 0 && state === "ready" ? `ready, ${counted(restarts, "restart")}` : state;
}

/** @param {{done: number, total: number}} progress */
function percent({ done, total }) {
  return total > 0 ? ` ${Math.floor((100 * done) / total)} %` : "";
}

/**
 * Return what the user should know before asking.
 * @param {Status | null} status
 * @param {string} problem
 */
function noticeText(status, problem) {
  if (status === null) return problem ? `No news from the server: ${problem}.` : "";
  switch (status.state) {
    case "loading":
      return `The model is loading${status.progress ? percent(status.progress) : ""}.`;
    case "restarting":
      return "The model's process has ended; another is being started.";
    case "failed":
      return `The model cannot be served: ${status.error ?? "the server's log says why"}.`;
    default:
      return "";
  }
}
