/** The dialog of what can be chosen: key, system prompt, sampling, tools, colours. */

import { byId } from "./dom.js";

/** @typedef {import("./preferences.js").Preferences} Preferences */

/** Fields of a request, with the names that `/props` gives their defaults. */
const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "repeat_penalty",
  "presence_penalty",
  "max_tokens",
  "seed",
];

export class Settings {
  /**
   * @param {import("./chat.js").Chat} chat
   * @param {import("./conversations.js").Conversations} conversations
   * @param {Preferences} preferences
   * @param {import("./api.js").Api} api
   */
  constructor(chat, conversations, preferences, api) {
    this._chat = chat;
    this._conversations = conversations;
    this._preferences = preferences;
    this._api = api;
    this._dialog = /** @type {HTMLDialogElement} */ (byId("settings"));
    this._system = /** @type {HTMLTextAreaElement} */ (byId("system"));
    this._tools = /** @type {HTMLTextAreaElement} */ (byId("offered"));
    this._wrong = byId("offered-wrong");
    this._key = /** @type {HTMLInputElement} */ (byId("key"));
    this._isKept = /** @type {HTMLInputElement} */ (byId("keep-key"));
    this._theme = /** @type {HTMLSelectElement} */ (byId("theme"));
    this._refusal = byId("key-refusal");
    byId("settings-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this._take()) this._dialog.close();
    });
    byId("settings-close").addEventListener("click", () => this._dialog.close());
    byId("show-settings").addEventListener("click", () => this.open());
    this._dialog.addEventListener("click", (event) => {
      if (event.target === this._dialog) this._dialog.close();
    });
    /** Whether defaults can be asked for without having a model loaded for it. */
    this.hasDefaults = true;
    /** Called when the key may have become another. */
    this.keyChanged = () => {};
    this._paint();
  }

  /**
   * Open the dialog.
   * @param {string} [refusal] what the server said about the key
   */
  open(refusal = "") {
    this._refusal.textContent = refusal;
    this._refusal.hidden = refusal === "";
    if (this._dialog.open) return;
    this._fill();
    this._dialog.showModal();
    (refusal ? this._key : this._system).focus();
    void this._suggest();
  }

  _fill() {
    this._system.value = this._chat.conversation.system;
    this._tools.value = this._preferences.tools;
    this._key.value = this._preferences.key;
    this._isKept.checked = this._preferences.isKeyKept;
    this._theme.value = this._preferences.theme;
    this._wrong.hidden = true;
    for (const name of NUMBERS) field(name).value = String(this._preferences.sampling[name] ?? "");
  }

  /** Show what counts where nothing is chosen. */
  async _suggest() {
    if (!this.hasDefaults) return;
    try {
      const { params } = (await this._api.get("props")).default_generation_settings;
      for (const name of NUMBERS) {
        if (typeof params[name] === "number") field(name).placeholder = String(params[name]);
      }
    } catch {
      // Then no defaults are shown.
    }
  }

  /** Take what was chosen; return whether it can be used. */
  _take() {
    const problem = toolsProblem(this._tools.value);
    this._wrong.textContent = problem;
    this._wrong.hidden = problem === "";
    if (problem) {
      this._tools.focus();
      return false;
    }
    const chosen = NUMBERS.filter((name) => field(name).value !== "");
    const numbers = chosen.map((name) => [name, field(name).valueAsNumber]);
    this._preferences.sampling = Object.fromEntries(numbers);
    this._preferences.tools = this._tools.value.trim();
    this._preferences.theme = /** @type {"auto" | "light" | "dark"} */ (this._theme.value);
    this._preferences.save();
    this._takeSystem();
    this._preferences.useKey(this._key.value.trim(), this._isKept.checked);
    this.keyChanged();
    this._paint();
    return true;
  }

  _takeSystem() {
    const { conversation } = this._chat;
    conversation.system = this._system.value;
    if (conversation.messages.length > 0) this._conversations.save(conversation);
  }

  _paint() {
    document.documentElement.dataset.theme = this._preferences.theme;
  }
}

/** @param {string} name */
function field(name) {
  return /** @type {HTMLInputElement} */ (byId(`sampling-${name}`));
}

/**
 * Return what is wrong with the tools, or "".
 * @param {string} text
 */
function toolsProblem(text) {
  if (text.trim() === "") return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Expected a list: [{\"type\": \"function\", …}]";
  } catch (error) {
    return `This is no JSON: ${error instanceof Error ? error.message : error}`;
  }
}
