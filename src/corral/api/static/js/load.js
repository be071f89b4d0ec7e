/** Shows how busy the server is: speed, requests, blocks of the KV cache, who is answered. */

import { byId, element, setText } from "./dom.js";
import { counted, rate } from "./format.js";
import { Timeline } from "./timeline.js";

/** @typedef {import("./status.js").Status} Status */
/** @typedef {import("./status.js").Slot} Slot */

const IDLE = { running: 0, waiting: 0, finished: 0 };

export class LoadView {
  constructor() {
    this._speed = byId("speed");
    this._prompt = byId("prompt-speed");
    this._counts = { running: byId("running"), waiting: byId("waiting"), finished: byId("finished") };
    this._blocks = byId("kv-blocks");
    this._meter = byId("kv-meter");
    this._slots = byId("slots");
    /** @param {number} value */
    const figure = (value) => `${rate(value)}/s`;
    this._timeline = new Timeline(["generation"], "Generated tokens a second, two minutes", figure);
    byId("speed-timeline").append(this._timeline.node);
  }

  /**
   * Show a status; without one, that there is none.
   * @param {Status | null} status
   */
  update(status) {
    const speed = status?.tokens_per_s ?? { prompt: 0, generation: 0 };
    setText(this._speed, rate(speed.generation));
    setText(this._prompt, rate(speed.prompt));
    const requests = status?.requests ?? IDLE;
    for (const name of /** @type {const} */ (["running", "waiting", "finished"])) {
      setText(this._counts[name], requests[name].toLocaleString("en"));
    }
    this._showBlocks(status?.kv ?? { used_blocks: 0, total_blocks: 0 });
    this._slots.replaceChildren(...(status?.slots ?? []).map(slotNode));
    if (status) this._timeline.push([speed.generation]);
  }

  /** @param {Status["kv"]} kv */
  _showBlocks({ used_blocks: used, total_blocks: total }) {
    setText(this._blocks, `${used.toLocaleString("en")} of ${total.toLocaleString("en")}`);
    this._meter.style.width = total ? `${(100 * used) / total}%` : "0";
  }
}

/** @param {Slot} slot */
function slotNode({ request_id: id, prompt_tokens: prompt, computed_tokens: done, generated_tokens: made }) {
  const isReading = done < prompt;
  const told = isReading ? `reads ${done} of ${prompt}` : `${counted(made, "token")} after ${prompt}`;
  const bar = element("span", { class: isReading ? "slot-bar is-reading" : "slot-bar" });
  bar.style.width = isReading ? `${(100 * done) / prompt}%` : "100%";
  return element("li", { title: id }, bar, element("span", {}, told));
}
