/** Shows what each of many models holds of a device: a bar with a part, and a line, for each. */

import { element, setText } from "./dom.js";
import { bytes } from "./format.js";

/** @typedef {import("./device.js").Share} Share */

const COLOURS = 6;

export class SharesView {
  constructor() {
    this._bar = element("div", { class: "bar", role: "img" });
    this._legend = element("dl", { class: "legend is-shares" });
    this.node = element("div", {}, this._bar, this._legend);
    this._shown = "";
  }

  /**
   * @param {Share[]} shares
   * @param {string} title of the device
   */
  update(shares, title) {
    const told = shares.map(({ name, bytes: count }) => `${name} ${bytes(count)}`).join(", ");
    this._bar.setAttribute("aria-label", `Held on ${title}: ${told}`);
    const key = JSON.stringify(shares);
    if (key === this._shown) return;
    this._shown = key;
    this._bar.replaceChildren(...shares.map(part));
    this._legend.replaceChildren(...shares.map(row));
  }
}

/**
 * @param {Share} share
 * @param {number} place
 */
function part({ name, bytes: count }, place) {
  const made = element("span", { class: colour(place), title: `${name}: ${bytes(count)}` });
  made.style.flexGrow = String(count);
  return made;
}

/**
 * @param {Share} share
 * @param {number} place
 */
function row({ name, bytes: count }, place) {
  const label = element("span", { class: "share-name" });
  setText(label, name);
  const term = element("dt", {}, element("span", { class: `swatch ${colour(place)}` }), label);
  const figure = { "data-model": name, "data-bytes": count };
  return element("div", {}, term, element("dd", figure, bytes(count)));
}

/** @param {number} place */
function colour(place) {
  return `is-share-${place % COLOURS}`;
}
