/** The conversations of this browser, each kept under a name of its own. */

import { load, save } from "./storage.js";

/** @typedef {import("./answer.js").Call} Call */
/**
 * How long an answer took; `isCounted` where the server did not tell and the page counted.
 * @typedef {{firstMs: number | null, tokens: number, perSecond: number, isCounted: boolean,
 *   promptTokens: number | null, cachedTokens: number}} Statistics
 */
/**
 * @typedef {object} Message
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {string} [reasoning]
 * @property {Call[]} [calls]
 * @property {string} [callId] of a result: the call that it is of
 * @property {string} [finish] why an answer ended: the API's word, "stopped" or "error"
 * @property {string} [error]
 * @property {Statistics} [statistics]
 */
/**
 * @typedef {{id: string, title: string, changed: number, system: string, messages: Message[]}}
 *   Conversation
 */

const PREFIX = "corral.conversation.";
const TITLE_CHARACTERS = 60;

export class Conversations {
  /** @returns {Conversation[]} the newest first */
  all() {
    const found = [];
    for (const name of Object.keys(localStorage)) {
      if (!name.startsWith(PREFIX)) continue;
      const kept = load(localStorage, name, null);
      if (kept !== null && Array.isArray(kept.messages)) found.push(kept);
    }
    return found.sort((one, other) => other.changed - one.changed);
  }

  /**
   * @param {string} id
   * @returns {Conversation | null}
   */
  find(id) {
    return load(localStorage, PREFIX + id, null);
  }

  /**
   * Begin a conversation, which is kept once something was said in it.
   * @param {string} [system]
   * @returns {Conversation}
   */
  begin(system = "") {
    const random = crypto.getRandomValues(new Uint32Array(2));
    const id = [...random].map((word) => word.toString(36)).join("");
    return { id, title: "", changed: Date.now(), system, messages: [] };
  }

  /**
   * Keep a conversation; return whether the browser did.
   * @param {Conversation} conversation
   */
  save(conversation) {
    conversation.changed = Date.now();
    conversation.title ||= titleOf(conversation);
    return save(localStorage, PREFIX + conversation.id, conversation);
  }

  /** @param {string} id */
  remove(id) {
    localStorage.removeItem(PREFIX + id);
  }
}

/** @param {Conversation} conversation */
function titleOf({ messages }) {
  const first = messages.find((message) => message.role === "user")?.content ?? "";
  const line = first.replace(/\s+/g, " ").trim();
  return line.length > TITLE_CHARACTERS ? `${line.slice(0, TITLE_CHARACTERS)}…` : line;
}
