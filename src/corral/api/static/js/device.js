/**
 * Shows the memory of one device.
 *
 *     [held|   foreign   |             free             ]   all of it, to scale
 *       \________________
 *     [  weights  |state|scratch]                           what is held, magnified
 *
 * Where there are many models the second bar has a part for each, for only their processes know
 * more. Each figure is in the document to the byte, as `data-bytes`.
 */

import { drawing, element, setText } from "./dom.js";
import { bytes } from "./format.js";
import { SharesView } from "./shares.js";
import { Timeline } from "./timeline.js";

/** @typedef {import("./status.js").HeldDevice} HeldDevice */

/** Lifetimes in the order of the bars, and what each is. */
const LIFETIMES = /** @type {Record<string, string>} */ ({
  weights: "the model's parameters, as the device wants them",
  state: "keys and values of all conversations",
  scratch: "values of one step, overwritten by the next",
  staging: "inputs on their way to the device",
  records: "kernels prepared for each step",
  context: "what the driver keeps for the process",
});
const OTHERS = /** @type {Record<string, string>} */ ({
  foreign: "what other processes hold",
  free: "what nobody holds",
});
const KINDS = [...Object.keys(LIFETIMES), ...Object.keys(OTHERS)];
const FLEET_KINDS = ["held", ...Object.keys(OTHERS)];
const MEANINGS = { ...LIFETIMES, ...OTHERS, held: "what the models hold" };

/** What one model holds of a device. @typedef {{name: string, bytes: number}} Share */

export class DeviceView {
  /**
   * @param {string} name
   * @param {boolean} isOfMany whether there are many models
   */
  constructor(name, isOfMany) {
    this._kinds = isOfMany ? FLEET_KINDS : KINDS;
    this._title = element("h3");
    this._used = element("span", { class: "device-used" });
    this._whole = new Bar(this._kinds);
    this._held = isOfMany ? new SharesView() : new Bar(Object.keys(LIFETIMES));
    this._funnel = drawing("path");
    const box = { class: "funnel", viewBox: "0 0 100 10", preserveAspectRatio: "none" };
    const funnel = drawing("svg", { ...box, "aria-hidden": "true" }, this._funnel);
    this._zoom = element("div", {}, funnel, this._held.node);
    this._figures = new Map(this._kinds.map((kind) => [kind, element("dd", { "data-kind": kind })]));
    const rows = this._kinds.map((kind) => this._row(kind));
    this._timeline = new Timeline(this._kinds.slice(0, -1), `Used memory of ${name}, two minutes`, bytes);
    const head = element("header", {}, this._title, element("code", {}, name), this._used);
    const legend = element("dl", { class: "legend" }, ...rows);
    const parts = [head, this._whole.node, this._zoom, legend, this._timeline.node];
    this.node = element("section", { class: "card device", "data-device": name }, ...parts);
  }

  /** @param {string} kind */
  _row(kind) {
    const swatch = element("span", { class: `swatch is-${kind}` });
    const term = element("dt", {}, swatch, kind);
    return element("div", { title: MEANINGS[kind] }, term, /** @type {Node} */ (this._figures.get(kind)));
  }

  /**
   * Show a device as it is now.
   * @param {HeldDevice} device
   * @param {Share[]} shares of many models
   */
  update(device, shares) {
    const values = valuesOf(device);
    const held = /** @type {number} */ (values.held);
    setText(this._title, device.title);
    setText(this._used, usedOf(device));
    for (const [kind, node] of this._figures) showFigure(node, values[kind]);
    this._whole.update(values, sentence(device.title, this._kinds, values));
    if (this._held instanceof Bar) {
      this._held.update(values, sentence(`Held on ${device.title}`, Object.keys(LIFETIMES), values));
    } else {
      this._held.update(shares, device.title);
    }
    this._zoom.hidden = held === 0;
    this._magnify(held, device.total_bytes);
    this._timeline.push(this._kinds.slice(0, -1).map((kind) => values[kind] ?? 0));
  }

  /**
   * Draw the lines from the held part of the whole to its magnified form.
   * @param {number} held
   * @param {number | null} total
   */
  _magnify(held, total) {
    const share = total ? Math.min(100, Math.max(1, (100 * held) / total)) : 100;
    this._funnel.setAttribute("d", `M0 0L${share.toFixed(2)} 0L100 10L0 10Z`);
  }
}

/** A bar of parts that are as wide as they are large; nothing that exists is invisible. */
class Bar {
  /** @param {string[]} kinds */
  constructor(kinds) {
    this._parts = new Map(kinds.map((kind) => [kind, element("span", { class: `is-${kind}` })]));
    this.node = element("div", { class: "bar", role: "img" }, ...this._parts.values());
  }

  /**
   * @param {Record<string, number | null>} values
   * @param {string} label
   */
  update(values, label) {
    this.node.setAttribute("aria-label", label);
    for (const [kind, part] of this._parts) {
      const value = values[kind] ?? 0;
      part.hidden = value === 0;
      part.style.flexGrow = String(value);
      part.title = `${kind}: ${bytes(value)}`;
    }
  }
}

/**
 * @param {HeldDevice} device
 * @returns {Record<string, number | null>}
 */
function valuesOf({ held: parts, foreign_bytes: foreign, free_bytes: free }) {
  const held = Object.values(parts).reduce((sum, count) => sum + count, 0);
  return { ...parts, held, foreign, free };
}

/**
 * @param {HTMLElement} node
 * @param {number | null | undefined} value
 */
function showFigure(node, value) {
  const known = value ?? null;
  setText(node, bytes(known));
  node.dataset.bytes = String(known);
  node.classList.toggle("is-zero", known === 0);
}

/** @param {HeldDevice} device */
function usedOf({ total_bytes: total, free_bytes: free }) {
  if (total === null) return "size unknown";
  if (free === null) return bytes(total);
  return `${bytes(total - free)} of ${bytes(total)}`;
}

/**
 * @param {string} title
 * @param {string[]} kinds
 * @param {Record<string, number | null>} values
 */
function sentence(title, kinds, values) {
  const told = kinds.filter((kind) => values[kind]).map((kind) => `${kind} ${bytes(values[kind] ?? null)}`);
  return `${title}: ${told.join(", ")}`;
}
