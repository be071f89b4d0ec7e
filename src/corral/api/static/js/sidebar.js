/** The list of conversations: opens, begins and removes them. */

import { byId, element, icon } from "./dom.js";

/** @typedef {import("./conversations.js").Conversation} Conversation */

export class Sidebar {
  /**
   * @param {import("./chat.js").Chat} chat
   * @param {import("./conversations.js").Conversations} conversations
   * @param {() => void} chosen called when the user has chosen a conversation
   */
  constructor(chat, conversations, chosen) {
    this._chat = chat;
    this._conversations = conversations;
    this._chosen = chosen;
    this._list = byId("conversations");
    byId("begin").addEventListener("click", () => {
      chat.begin();
      chosen();
    });
    chat.addEventListener("open", () => this._show());
    chat.addEventListener("change", () => this._show());
    window.addEventListener("storage", () => this._show());
    this._show();
  }

  _show() {
    const rows = this._conversations.all().map((conversation) => this._row(conversation));
    const empty = element("li", { class: "nothing" }, "What you ask is kept here, in this browser.");
    this._list.replaceChildren(...(rows.length ? rows : [empty]));
  }

  /** @param {Conversation} conversation */
  _row({ id, title }) {
    const isOpen = id === this._chat.conversation.id;
    const open = () => {
      this._chat.open(id);
      this._chosen();
    };
    const name = title || "Untitled";
    const link = element(
      "button",
      { type: "button", class: "conversation", "aria-current": isOpen ? "true" : null, onclick: open },
      name,
    );
    return element("li", {}, link, this._removal(id, name));
  }

  /**
   * Make the button that removes a conversation when it is pressed twice.
   * @param {string} id
   * @param {string} name
   */
  _removal(id, name) {
    const label = `Remove ${name}`;
    const properties = { type: "button", class: "quiet remove", "aria-label": label, title: label };
    const button = element("button", properties, icon("trash"));
    const reset = () => {
      button.classList.remove("is-asking");
      button.setAttribute("aria-label", label);
      button.replaceChildren(icon("trash"));
    };
    button.addEventListener("click", () => {
      if (button.classList.contains("is-asking")) {
        this._chat.remove(id);
        return;
      }
      button.classList.add("is-asking");
      button.setAttribute("aria-label", `${label}? Press again to remove it`);
      button.replaceChildren("Remove?");
    });
    button.addEventListener("blur", reset);
    button.addEventListener("pointerleave", reset);
    return button;
  }
}
