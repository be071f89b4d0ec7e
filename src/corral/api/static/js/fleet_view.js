/** Shows many models: which is asked, each one's state and bytes, buttons, and what happened. */

import { ApiError } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { ModelRow } from "./model_row.js";

/** @typedef {import("./fleet.js").Fleet} Fleet */
/** @typedef {import("./fleet.js").FleetEvent} FleetEvent */
/** @typedef {import("./fleet.js").ModelStatus} ModelStatus */

const UNFILTERED = 8;
const RESTING = new Set(["unloaded", "failed"]);

export class FleetView {
  /**
   * @param {Fleet} fleet
   * @param {import("./chat.js").Chat} chat
   * @param {import("./preferences.js").Preferences} preferences
   */
  constructor(fleet, chat, preferences) {
    this._fleet = fleet;
    this._chat = chat;
    this._preferences = preferences;
    this._choice = /** @type {HTMLSelectElement} */ (byId("choice"));
    this._filter = /** @type {HTMLInputElement} */ (byId("fleet-filter"));
    this._list = byId("fleet-models");
    this._events = byId("fleet-events");
    this._wrong = byId("fleet-wrong");
    /** @type {Map<string, ModelRow>} */
    this._rows = new Map();
    fleet.addEventListener("kind", () => this._showKind());
    fleet.addEventListener("change", () => this._show());
    fleet.addEventListener("event", () => this._showEvents());
    this._filter.addEventListener("input", () => this._show());
    this._choice.addEventListener("change", () => this._choose(this._choice.value));
    byId("reload").addEventListener("click", () => void this._try(() => fleet.reload()));
  }

  _showKind() {
    const { isFleet } = this._fleet;
    byId("fleet").hidden = !isFleet;
    byId("model").hidden = isFleet;
    this._choice.hidden = !isFleet;
    if (!isFleet) this._chat.model = null;
  }

  /** @param {string} model */
  _choose(model) {
    this._chat.model = model;
    this._fleet.chosen = model;
    this._preferences.model = model;
    this._preferences.save();
  }

  /**
   * Do something; show what the server says against it.
   * @param {() => Promise<void>} act
   */
  async _try(act) {
    this._wrong.hidden = true;
    try {
      await act();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this._wrong.hidden = false;
      setText(this._wrong, error.message);
    }
  }

  _show() {
    const models = [...this._fleet.models].sort(byState);
    this._showChoice(models);
    this._filter.hidden = models.length <= UNFILTERED;
    const wanted = this._filter.value.trim().toLowerCase();
    const shown = models.filter(({ name }) => name.toLowerCase().includes(wanted));
    shown.forEach((model, place) => {
      const { node } = this._rowOf(model);
      const there = this._list.children[place];
      if (there !== node) this._list.insertBefore(node, there ?? null);
    });
    while (this._list.children.length > shown.length) this._list.lastElementChild?.remove();
  }

  /** @param {ModelStatus} model */
  _rowOf(model) {
    let row = this._rows.get(model.name);
    if (row === undefined) {
      row = new ModelRow(this._fleet, (act) => void this._try(act));
      this._rows.set(model.name, row);
    }
    row.update(model);
    return row;
  }

  /** @param {ModelStatus[]} models */
  _showChoice(models) {
    const names = models.map(({ name }) => name).sort();
    const known = [...this._choice.options].map((option) => option.value);
    if (JSON.stringify(names) !== JSON.stringify(known)) {
      this._choice.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    }
    const kept = this._preferences.model;
    const ready = models.find(({ state }) => state === "ready")?.name;
    const isKnown = this._chat.model !== null && names.includes(this._chat.model);
    if (!isKnown) {
      this._chat.model = kept !== null && names.includes(kept) ? kept : (ready ?? names[0] ?? null);
    }
    this._fleet.chosen = this._chat.model;
    if (this._chat.model !== null) this._choice.value = this._chat.model;
  }

  _showEvents() {
    this._events.replaceChildren(...this._fleet.events.map(eventNode));
  }
}

/**
 * Models that hold bytes first, then by name.
 * @param {ModelStatus} one
 * @param {ModelStatus} other
 */
function byState(one, other) {
  const resting = Number(RESTING.has(one.state)) - Number(RESTING.has(other.state));
  return resting || one.name.localeCompare(other.name);
}

/** @param {FleetEvent} event */
function eventNode({ at, model, state, reason }) {
  const date = new Date(at * 1000);
  const time = element("time", { datetime: date.toISOString() }, date.toLocaleTimeString());
  const head = element("div", {}, time, " ", element("strong", {}, model), ` ${state}`);
  return element("li", {}, head, reason && element("div", { class: "reason" }, reason));
}
