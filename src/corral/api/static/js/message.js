/** Shows one message: text, reasoning, calls, errors, how long it took, and what can be done. */

import { copyButton } from "./clipboard.js";
import { element, icon, iconButton, setText } from "./dom.js";
import { counted, duration, rate } from "./format.js";
import { MarkdownView } from "./markdown/view.js";

/** @typedef {import("./conversations.js").Message} Message */
/** @typedef {import("./answer.js").Call} Call */
/**
 * What the user can do with messages.
 * @typedef {object} Actions
 * @property {() => void} again
 * @property {(message: Message) => void} edit
 * @property {(results: string[]) => void} giveResults
 */

const ENDS = /** @type {Record<string, string>} */ ({
  length: "cut at the limit of tokens or of the context",
  stopped: "stopped",
});

/**
 * Show what the user said.
 * @param {Message} message
 * @param {Actions} actions
 * @returns {HTMLElement}
 */
export function userMessage(message, actions) {
  const text = element("div", { class: "said" }, message.content);
  const tools = element(
    "div",
    { class: "tools" },
    copyButton("Copy message", () => message.content),
    iconButton("edit", "Edit, and ask from here", () => actions.edit(message)),
  );
  return element("article", { class: "message is-user", "aria-label": "You" }, text, tools);
}

/**
 * Show the result of a call.
 * @param {Message} message
 * @returns {HTMLElement}
 */
export function toolMessage(message) {
  const head = element("summary", {}, icon("tool"), "Result");
  const details = element("details", { class: "fold" }, head, element("pre", {}, message.content));
  return element("article", { class: "message is-tool", "aria-label": "Result of a call" }, details);
}

/** Shows an answer, which may still grow. */
export class AnswerView {
  /**
   * @param {Message} message
   * @param {Actions} actions
   */
  constructor(message, actions) {
    this.message = message;
    this._actions = actions;
    this._thought = element("div", { class: "thought" });
    this._thinking = element("span");
    this._fold = element(
      "details",
      { class: "fold", hidden: true },
      element("summary", {}, icon("thought"), this._thinking),
      this._thought,
    );
    this._text = element("div", { class: "text" });
    this._markdown = new MarkdownView(this._text);
    this._thoughts = new MarkdownView(this._thought);
    this._calls = element("div", { class: "calls", hidden: true });
    this._error = element("div", { class: "error", role: "alert", hidden: true });
    this._figures = element("span", { class: "figures" });
    this._tools = element("div", { class: "tools" });
    const foot = element("footer", {}, this._tools, this._figures);
    const parts = [this._fold, this._text, this._calls, this._error, foot];
    this.node = element("article", { class: "message is-answer", "aria-label": "Answer" }, ...parts);
  }

  /**
   * Show the message as it is now.
   * @param {{isGrowing: boolean, isLast: boolean}} place
   */
  update({ isGrowing, isLast }) {
    const { content, reasoning = "", calls = [], error = "" } = this.message;
    this.node.classList.toggle("is-growing", isGrowing);
    this.node.setAttribute("aria-busy", String(isGrowing));
    this._fold.hidden = reasoning === "";
    setText(this._thinking, isGrowing && content === "" ? "Thinking…" : "Thoughts");
    this._thoughts.update(reasoning);
    this._markdown.update(content);
    this._showCalls(calls, isGrowing, isLast);
    this._error.hidden = error === "";
    setText(this._error, error);
    setText(this._figures, figures(this.message));
    if (!isGrowing) this._showTools(isLast);
  }

  /** @param {boolean} isLast */
  _showTools(isLast) {
    const tools = [];
    if (this.message.content) tools.push(copyButton("Copy answer", () => this.message.content));
    if (isLast) tools.push(iconButton("again", "Answer again", this._actions.again));
    this._tools.replaceChildren(...tools);
  }

  /**
   * @param {Call[]} calls
   * @param {boolean} isGrowing
   * @param {boolean} isLast
   */
  _showCalls(calls, isGrowing, isLast) {
    this._calls.hidden = calls.length === 0;
    const made = calls.filter(Boolean);
    const isAsked = made.length > 0 && isLast && !isGrowing && this.message.finish === "tool_calls";
    const nodes = made.map(callNode);
    if (isAsked) nodes.push(this._form(made));
    this._calls.replaceChildren(...nodes);
  }

  /** @param {Call[]} calls */
  _form(calls) {
    const fields = calls.map((call) => {
      const label = `Result of ${call.name}`;
      return element("textarea", { rows: "2", "aria-label": label, placeholder: label });
    });
    const button = element("button", { type: "submit", class: "button" }, "Give results");
    /** @param {Event} event */
    const give = (event) => {
      event.preventDefault();
      const areas = /** @type {HTMLTextAreaElement[]} */ (fields);
      this._actions.giveResults(areas.map((area) => area.value));
    };
    return element("form", { class: "results", onsubmit: give }, ...fields, button);
  }
}

/** @param {Call} call */
function callNode(call) {
  const head = element("div", { class: "call-head" }, icon("tool"), element("code", {}, call.name));
  return element("div", { class: "call" }, head, element("pre", {}, pretty(call.arguments)));
}

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {Message} message */
function figures({ statistics, finish = "" }) {
  const parts = [];
  if (statistics) {
    const { perSecond, tokens, firstMs, isCounted, cachedTokens, promptTokens } = statistics;
    if (perSecond > 0) parts.push(`${isCounted ? "≈ " : ""}${rate(perSecond)} tokens/s`);
    if (firstMs !== null) parts.push(`${duration(firstMs)} to the first`);
    parts.push(counted(tokens, "token"));
    if (promptTokens !== null) {
      const cached = cachedTokens > 0 ? `, ${cachedTokens} cached` : "";
      parts.push(`${promptTokens} in the prompt${cached}`);
    }
  }
  if (ENDS[finish]) parts.push(ENDS[finish]);
  return parts.join(" · ");
}
