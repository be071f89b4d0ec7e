/** Where the user writes. Enter sends, Shift+Enter begins a line, Esc stops the answer. */

import { byId } from "./dom.js";

const HIGHEST_PX = 240;

export class Composer {
  /** @param {import("./chat.js").Chat} chat */
  constructor(chat) {
    this._chat = chat;
    this._text = /** @type {HTMLTextAreaElement} */ (byId("prompt"));
    this._send = /** @type {HTMLButtonElement} */ (byId("send"));
    this._stop = byId("stop");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this._submit();
    });
    this._text.addEventListener("keydown", (event) => this._press(event));
    this._text.addEventListener("input", () => this._fit());
    this._stop.addEventListener("click", () => chat.stop());
    document.addEventListener("keydown", (event) => {
      const isOurs = event.key === "Escape" && document.querySelector("dialog[open]") === null;
      if (isOurs) chat.stop();
    });
    chat.addEventListener("open", () => this._show());
    chat.addEventListener("change", () => this._show());
    this._fit();
    this._show();
  }

  focus() {
    this._text.focus();
  }

  /**
   * Have the user write on.
   * @param {string} text
   */
  write(text) {
    this._text.value = text;
    this._fit();
    this._text.focus();
  }

  /** @param {KeyboardEvent} event */
  _press(event) {
    // While letters are composed, Enter belongs to the input method.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this._submit();
  }

  _submit() {
    const text = this._text.value.trim();
    if (text === "" || this._chat.isAnswering) return;
    this.write("");
    void this._chat.send(text);
  }

  _show() {
    const { isAnswering } = this._chat;
    const hadFocus = document.activeElement === this._stop;
    this._send.hidden = isAnswering;
    this._stop.hidden = !isAnswering;
    if (hadFocus && !isAnswering) this._text.focus();
  }

  _fit() {
    this._send.disabled = this._text.value.trim() === "";
    this._text.style.height = "auto";
    this._text.style.height = `${Math.min(this._text.scrollHeight, HIGHEST_PX)}px`;
  }
}
