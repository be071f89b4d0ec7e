/** Shows the open conversation, and follows its end while an answer grows. */

import { byId, element } from "./dom.js";
import { AnswerView, toolMessage, userMessage } from "./message.js";

/** @typedef {import("./message.js").Actions} Actions */

const NEAR_PX = 80;
const SUGGESTIONS = [
  "Explain how a rainbow forms, in three short steps.",
  "Write a Python function that reverses the words of a sentence.",
  "Compare tea and coffee in a small table.",
  "Tell me a story about a horse that counts.",
];

export class Messages {
  /**
   * @param {import("./chat.js").Chat} chat
   * @param {Omit<Actions, "again" | "giveResults">} actions
   */
  constructor(chat, actions) {
    this._chat = chat;
    this._scroller = byId("messages");
    this._list = byId("message-list");
    this._welcome = byId("welcome");
    this._down = byId("to-end");
    this._told = byId("told");
    /** @type {Actions} */
    this._actions = {
      ...actions,
      again: () => void chat.again(),
      giveResults: (results) => void chat.giveResults(results),
    };
    /** @type {Map<object, HTMLElement | AnswerView>} */
    this._views = new Map();
    this._isDrawn = true;
    this._wasAnswering = false;
    chat.addEventListener("open", () => this._open());
    chat.addEventListener("change", () => this._show());
    chat.addEventListener("growth", () => this._grow());
    this._scroller.addEventListener("scroll", () => this._note(), { passive: true });
    this._down.addEventListener("click", () => this._toEnd());
    byId("suggestions").append(...SUGGESTIONS.map((text) => this._suggestion(text)));
    this._isAtEnd = true;
    this._show();
  }

  /** @param {string} text */
  _suggestion(text) {
    const ask = () => void this._chat.send(text);
    return element("button", { type: "button", class: "suggestion", onclick: ask }, text);
  }

  _open() {
    this._views.clear();
    this._isAtEnd = true;
    this._wasAnswering = this._chat.isAnswering;
    this._show();
  }

  _show() {
    const { messages } = this._chat.conversation;
    const isLonger = messages.length > this._list.childElementCount;
    this._welcome.hidden = messages.length > 0;
    const nodes = messages.map((message) => this._nodeOf(message));
    for (const child of [...this._list.children]) {
      if (!nodes.includes(/** @type {HTMLElement} */ (child))) child.remove();
    }
    nodes.forEach((node, place) => {
      if (this._list.children[place] !== node) this._list.insertBefore(node, this._list.children[place] ?? null);
    });
    for (const message of messages) this._update(message);
    if (isLonger) this._isAtEnd = true;
    this._follow();
    this._announce();
  }

  /** @param {import("./conversations.js").Message} message */
  _nodeOf(message) {
    let view = this._views.get(message);
    if (view === undefined) {
      if (message.role === "user") view = userMessage(message, this._actions);
      else if (message.role === "tool") view = toolMessage(message);
      else view = new AnswerView(message, this._actions);
      this._views.set(message, view);
    }
    return view instanceof AnswerView ? view.node : view;
  }

  /** @param {import("./conversations.js").Message} message */
  _update(message) {
    const view = this._views.get(message);
    if (!(view instanceof AnswerView)) return;
    const isLast = message === this._chat.conversation.messages.at(-1);
    view.update({ isGrowing: message === this._chat.growing, isLast });
  }

  _grow() {
    if (!this._isDrawn) return;
    this._isDrawn = false;
    requestAnimationFrame(() => {
      this._isDrawn = true;
      if (this._chat.growing !== null) this._update(this._chat.growing);
      this._follow();
    });
  }

  _note() {
    const { scrollHeight, scrollTop, clientHeight } = this._scroller;
    this._isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    this._down.hidden = this._isAtEnd;
  }

  _toEnd() {
    this._isAtEnd = true;
    this._follow();
  }

  _follow() {
    if (this._isAtEnd) this._scroller.scrollTop = this._scroller.scrollHeight;
    this._note();
  }

  _announce() {
    const isAnswering = this._chat.isAnswering;
    if (isAnswering !== this._wasAnswering) {
      this._told.textContent = isAnswering ? "Answering" : "The answer has ended";
    }
    this._wasAnswering = isAnswering;
  }
}
