/** Shows one of many models, with its buttons. */

import { element, iconButton, setText } from "./dom.js";
import { bytes } from "./format.js";

/** @typedef {import("./fleet.js").ModelStatus} ModelStatus */

const LOADED = new Set(["ready", "loading", "planning"]);

export class ModelRow {
  /**
   * @param {import("./fleet.js").Fleet} fleet
   * @param {(act: () => Promise<void>) => void} attempt does something that may be refused
   */
  constructor(fleet, attempt) {
    this._fleet = fleet;
    this._attempt = attempt;
    this._shown = "";
    this._name = element("span", { class: "model-name" });
    this._state = element("span", { class: "state" }, element("span", { class: "dot" }));
    this._stateText = element("span");
    this._state.append(this._stateText);
    this._why = element("div", { class: "reason" });
    this._bar = element("span");
    this._meter = element("div", { class: "meter" }, this._bar);
    this._buttons = element("div", { class: "tools" });
    const text = element("div", { class: "model-text" }, this._name, this._state, this._why, this._meter);
    this.node = element("li", { class: "model" }, text, this._buttons);
  }

  /**
   * Show the model as it is now.
   * @param {ModelStatus} model
   */
  update(model) {
    const key = JSON.stringify(model);
    if (key === this._shown) return;
    this._shown = key;
    this.node.dataset.model = model.name;
    this._state.dataset.state = model.state;
    setText(this._name, model.name);
    setText(this._stateText, stateText(model));
    setText(this._why, model.state === "ready" ? "" : model.error || model.reason);
    const isMoving = model.state === "loading" && model.total > 0;
    this._meter.hidden = !isMoving;
    this._bar.style.width = isMoving ? `${(100 * model.done) / model.total}%` : "0";
    this._showButtons(model);
  }

  /** @param {ModelStatus} model */
  _showButtons({ name, state, is_pinned: isPinned }) {
    const focused = [...this._buttons.children].indexOf(/** @type {Element} */ (document.activeElement));
    const isLoaded = LOADED.has(state);
    const change = isLoaded
      ? iconButton("unload", `Unload ${name}`, () => this._attempt(() => this._fleet.unload(name)))
      : iconButton("load", `Load ${name}`, () => this._attempt(() => this._fleet.load(name)));
    const pin = iconButton("pin", `Pin ${name}`, () =>
      this._attempt(() => this._fleet.pin(name, !isPinned)),
    );
    pin.setAttribute("aria-pressed", String(isPinned));
    this._buttons.replaceChildren(change, pin);
    if (focused >= 0) /** @type {HTMLElement} */ (this._buttons.children[focused]).focus();
  }
}

/** @param {ModelStatus} model */
function stateText({ state, stage, running, waiting, held }) {
  const parts = [state === "loading" && stage ? `loading: ${stage}` : state];
  const count = held.reduce((sum, one) => sum + one.planned_bytes, 0);
  if (count > 0) parts.push(bytes(count));
  if (running > 0) parts.push(`${running} running`);
  if (waiting > 0) parts.push(`${waiting} waiting`);
  return parts.join(" · ");
}
