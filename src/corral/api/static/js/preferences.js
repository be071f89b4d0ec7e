/** What the user chose for all conversations, and the key: in this browser only. */

import { load, save } from "./storage.js";

const NAME = "corral.preferences";
const KEY = "corral.key";

/** @typedef {Record<string, number>} Sampling fields of a request, as the API names them */
/** @typedef {"auto" | "light" | "dark"} Theme */

export class Preferences {
  constructor() {
    const kept = load(localStorage, NAME, {});
    /** @type {Sampling} */
    this.sampling = kept.sampling ?? {};
    /** JSON of the tools that are offered, or "". @type {string} */
    this.tools = kept.tools ?? "";
    /** @type {Theme} */
    this.theme = kept.theme ?? "auto";
    this.showsMemory = kept.showsMemory ?? true;
    /** The model that is asked where there are many. @type {string | null} */
    this.model = kept.model ?? null;
    /** @type {string} */
    this.key = load(sessionStorage, KEY, "") || load(localStorage, KEY, "");
  }

  /** Whether the key outlives the tab. */
  get isKeyKept() {
    return load(localStorage, KEY, "") !== "";
  }

  /** Keep everything but the key. */
  save() {
    const { sampling, tools, theme, showsMemory, model } = this;
    save(localStorage, NAME, { sampling, tools, theme, showsMemory, model });
  }

  /**
   * Take another key.
   * @param {string} key
   * @param {boolean} isKept whether it is to outlive the tab
   */
  useKey(key, isKept) {
    this.key = key;
    save(sessionStorage, KEY, key);
    save(localStorage, KEY, isKept ? key : "");
  }
}
