/** Draws the last two minutes of some numbers, as areas on top of each other. */

import { drawing, element, setText } from "./dom.js";

const SAMPLES = 120;
const HEIGHT = 100;
const HEADROOM = 1.15;

export class Timeline {
  /**
   * @param {string[]} series from the bottom up; each is a class name `is-…` for its colour
   * @param {string} label
   * @param {(value: number) => string} figure how a value is written
   */
  constructor(series, label, figure) {
    this._figure = figure;
    /** @type {number[][]} */
    this._samples = [];
    this._areas = series.map((name) => drawing("path", { class: `is-${name}` }));
    const box = `0 0 ${SAMPLES - 1} ${HEIGHT}`;
    const properties = { viewBox: box, preserveAspectRatio: "none", "aria-hidden": "true" };
    this._top = element("span", { class: "timeline-top" });
    this._drawn = drawing("svg", properties, ...this._areas);
    this.node = element("div", { class: "timeline", role: "img", "aria-label": label }, this._drawn, this._top);
  }

  /**
   * Add what is now, one value for each series.
   * @param {number[]} values
   */
  push(values) {
    this._samples.push(values);
    if (this._samples.length > SAMPLES) this._samples.shift();
    this._draw();
  }

  _draw() {
    const sums = this._samples.map((values) => {
      let sum = 0;
      return values.map((value) => (sum += value));
    });
    const peak = Math.max(...sums.map((row) => row.at(-1) ?? 0));
    const highest = peak > 0 ? peak * HEADROOM : 1;
    setText(this._top, peak > 0 ? this._figure(peak) : "");
    const first = SAMPLES - sums.length;
    this._areas.forEach((area, place) => {
      const upper = sums.map((row, at) => point(first + at, row[place], highest));
      const lower = sums.map((row, at) => point(first + at, row[place - 1] ?? 0, highest));
      area.setAttribute("d", `M${[...upper, ...lower.reverse()].join("L")}Z`);
    });
  }
}

/**
 * @param {number} x
 * @param {number} value
 * @param {number} highest
 */
function point(x, value, highest) {
  return `${x} ${(HEIGHT * (1 - value / highest)).toFixed(2)}`;
}
