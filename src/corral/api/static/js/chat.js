/**
 * Leads conversations: sends, stops, asks again. Several may be answered at once; one is open.
 *
 *     idle ──send, again──▶ answering ──the end, stop, an error──▶ idle
 *
 * Tells of it by events and knows no elements:
 *     open      another conversation is shown        change   messages came or went, or an end
 *     growth    the newest answer has grown           refusal  the server wants a (better) key
 */

import { answer } from "./answer.js";
import { ApiError } from "./api.js";
import { bodyOf } from "./asking.js";

/** @typedef {import("./answer.js").Piece} Piece */
/** @typedef {import("./answer.js").Timings} Timings */
/** @typedef {import("./conversations.js").Conversation} Conversation */
/** @typedef {import("./conversations.js").Message} Message */
/** @typedef {{control: AbortController, message: Message}} Run */

export class Chat extends EventTarget {
  /**
   * @param {import("./api.js").Api} api
   * @param {import("./conversations.js").Conversations} conversations
   * @param {import("./preferences.js").Preferences} preferences
   */
  constructor(api, conversations, preferences) {
    super();
    this._api = api;
    this._conversations = conversations;
    this._preferences = preferences;
    /** @type {Map<string, Run>} */
    this._runs = new Map();
    /** The model that is asked; null where there is one. @type {string | null} */
    this.model = null;
    this.conversation = conversations.begin();
  }

  get isAnswering() {
    return this._runs.has(this.conversation.id);
  }

  /** The answer that grows in the open conversation. */
  get growing() {
    return this._runs.get(this.conversation.id)?.message ?? null;
  }

  /** Open a new conversation, with the system prompt of the last. */
  begin() {
    this._open(this._conversations.begin(this.conversation.system));
  }

  /**
   * Open a conversation.
   * @param {string} id
   */
  open(id) {
    if (id === this.conversation.id) return;
    const found = this._runningConversations.get(id) ?? this._conversations.find(id);
    if (found !== null) this._open(found);
  }

  /**
   * Remove a conversation.
   * @param {string} id
   */
  remove(id) {
    this._runs.get(id)?.control.abort();
    this._removed.add(id);
    this._conversations.remove(id);
    if (id === this.conversation.id) this.begin();
    else this._tell("change");
  }

  /**
   * Say something.
   * @param {string} text
   */
  async send(text) {
    this.conversation.messages.push({ role: "user", content: text });
    await this._answer(this.conversation);
  }

  /**
   * Give the results of the calls of the last answer.
   * @param {string[]} results in the order of the calls
   */
  async giveResults(results) {
    const { messages } = this.conversation;
    const calls = messages.at(-1)?.calls ?? [];
    calls.forEach(({ id }, place) => {
      messages.push({ role: "tool", content: results[place], callId: id });
    });
    await this._answer(this.conversation);
  }

  /** Ask for the last answer again. */
  async again() {
    const { messages } = this.conversation;
    if (messages.at(-1)?.role === "assistant") messages.pop();
    await this._answer(this.conversation);
  }

  /**
   * Take back a message of the user and what followed; return what it said.
   * @param {Message} message
   */
  takeBack(message) {
    const { messages } = this.conversation;
    messages.splice(messages.indexOf(message));
    this._conversations.save(this.conversation);
    this._tell("change");
    return message.content;
  }

  /** Stop the answer of the open conversation; what came of it stays. */
  stop() {
    this._runs.get(this.conversation.id)?.control.abort();
  }

  /** Keep what has come of all answers: the page is about to go. */
  keep() {
    for (const [id, { control, message }] of this._runs) {
      const conversation = this._runningConversations.get(id);
      message.finish = "stopped";
      if (conversation) this._save(conversation);
      control.abort();
    }
  }

  /** @type {Map<string, Conversation>} */
  _runningConversations = new Map();
  /** @type {Set<string>} */
  _removed = new Set();

  /** @param {Conversation} conversation */
  _open(conversation) {
    this.conversation = conversation;
    this._tell("open");
  }

  /** @param {string} name */
  _tell(name) {
    this.dispatchEvent(new Event(name));
  }

  /** @param {Conversation} conversation */
  async _answer(conversation) {
    /** @type {Message} */
    const message = { role: "assistant", content: "", reasoning: "", calls: [], finish: "" };
    const body = bodyOf(conversation, this._preferences, this.model);
    const control = new AbortController();
    conversation.messages.push(message);
    this._runs.set(conversation.id, { control, message });
    this._runningConversations.set(conversation.id, conversation);
    this._save(conversation);
    this._tell("change");
    try {
      await this._take(answer(this._api, body, control.signal), conversation, message);
    } catch (error) {
      this._fail(message, error, control.signal.aborted);
    } finally {
      this._runs.delete(conversation.id);
      this._runningConversations.delete(conversation.id);
      this._save(conversation);
      this._tell("change");
    }
  }

  /**
   * @param {AsyncIterable<Piece>} pieces
   * @param {Conversation} conversation
   * @param {Message} message
   */
  async _take(pieces, conversation, message) {
    const began = performance.now();
    /** @type {number | null} */
    let first = null;
    let count = 0;
    for await (const piece of pieces) {
      const now = performance.now();
      if ("finish" in piece) {
        message.finish = piece.finish;
        message.statistics = told(piece.timings, first) ?? message.statistics;
        continue;
      }
      first ??= now - began;
      count += 1;
      add(message, piece);
      message.statistics = counted(first, count, now - began);
      if (conversation.id === this.conversation.id) this._tell("growth");
    }
  }

  /**
   * @param {Message} message
   * @param {unknown} error
   * @param {boolean} isStopped
   */
  _fail(message, error, isStopped) {
    message.finish = isStopped ? "stopped" : "error";
    if (isStopped) return;
    if (!(error instanceof ApiError)) throw error;
    message.error = error.message;
    if (error.status === 401) this._tell("refusal");
  }

  /** @param {Conversation} conversation */
  _save(conversation) {
    if (!this._removed.has(conversation.id)) this._conversations.save(conversation);
  }
}

/**
 * Add what came to a message.
 * @param {Message} message
 * @param {Exclude<Piece, {finish: string}>} piece
 */
function add(message, piece) {
  if ("content" in piece) message.content += piece.content;
  else if ("reasoning" in piece) message.reasoning += piece.reasoning;
  else {
    const calls = (message.calls ??= []);
    const known = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
    known.id ||= piece.call.id;
    known.name ||= piece.call.name;
    known.arguments += piece.call.arguments;
  }
}

/**
 * Return what the page counted, a token for each piece.
 * @param {number} firstMs
 * @param {number} count
 * @param {number} elapsedMs
 */
function counted(firstMs, count, elapsedMs) {
  const seconds = (elapsedMs - firstMs) / 1000;
  const perSecond = count > 1 && seconds > 0 ? (count - 1) / seconds : 0;
  const unknown = { promptTokens: null, cachedTokens: 0 };
  return { firstMs, tokens: count, perSecond, isCounted: true, ...unknown };
}

/**
 * Return what the server measured, if it told.
 * @param {Timings | null} timings
 * @param {number | null} firstMs
 */
function told(timings, firstMs) {
  if (timings === null) return null;
  return {
    firstMs,
    tokens: timings.predicted_n,
    perSecond: timings.predicted_per_second,
    isCounted: false,
    promptTokens: timings.prompt_n + timings.cache_n,
    cachedTokens: timings.cache_n,
  };
}
