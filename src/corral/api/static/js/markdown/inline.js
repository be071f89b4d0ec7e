/**
 * Reads the marks inside a line of Markdown; returns plain data that knows no document.
 *
 * HTML is text. Time grows with the length of the text, whatever marks are left open in it.
 */

import { safeHref, withoutPunctuation } from "./address.js";

/**
 * @typedef {{kind: "text", text: string} | {kind: "code", text: string} | {kind: "break"}
 *   | {kind: "strong" | "emphasis" | "strike", spans: Span[]}
 *   | {kind: "link", href: string, spans: Span[]}} Span
 */

const DEEPEST = 8;
const LONGEST_LABEL = 1000;
const SPECIAL = /[\\`*_~[!<\n&]|https?:\/\//g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const BARE = /https?:\/\/[^\s<>"'`|\\^{}]+/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const LINK_END = /\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const ENTITY = /&(amp|lt|gt|quot|nbsp|#39|#x27);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'", "#x27": "'" };
const KINDS = /** @type {const} */ ([
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "strike"],
  ["*", "emphasis"],
  ["_", "emphasis"],
]);

/**
 * Return the spans of a text.
 * @param {string} text
 * @param {number} [depth]
 * @returns {Span[]}
 */
export function parseInline(text, depth = 0) {
  if (depth >= DEEPEST) return [{ kind: "text", text }];
  return new Reader(text, depth).read();
}

class Reader {
  /**
   * @param {string} text
   * @param {number} depth
   */
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    /** @type {Span[]} */
    this.spans = [];
    this.plain = "";
    /** Marks that have no end in what follows. @type {Set<string>} */
    this.open = new Set();
  }

  read() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const next = SPECIAL.exec(this.text)?.index ?? this.text.length;
      this.plain += this.text.slice(this.at, next);
      this.at = next;
      if (next < this.text.length && !this.special(this.text[next])) {
        this.plain += this.text[this.at];
        this.at += 1;
      }
    }
    this.flush();
    return this.spans;
  }

  flush() {
    if (this.plain) this.spans.push({ kind: "text", text: this.plain });
    this.plain = "";
  }

  /**
   * @param {Span} span
   * @param {number} end
   */
  add(span, end) {
    this.flush();
    this.spans.push(span);
    this.at = end;
    return true;
  }

  /**
   * Take what begins at a special character; false if it is only a character.
   * @param {string} character
   * @returns {boolean}
   */
  special(character) {
    switch (character) {
      case "\n":
        return this.add({ kind: "break" }, this.at + 1);
      case "\\":
        return this.escaped();
      case "`":
        return this.code();
      case "[":
        return this.link(this.at);
      case "!":
        return this.text[this.at + 1] === "[" && this.link(this.at + 1);
      case "<":
        return this.matched(ANGLE, 1);
      case "&":
        return this.entity();
      case "h":
        return this.matched(BARE, 0);
      default:
        return this.emphasis();
    }
  }

  escaped() {
    const next = this.text[this.at + 1] ?? "";
    if (!PUNCTUATION.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  entity() {
    ENTITY.lastIndex = this.at;
    const found = ENTITY.exec(this.text);
    if (found === null) return false;
    this.plain += ENTITIES[/** @type {keyof typeof ENTITIES} */ (found[1])];
    this.at = ENTITY.lastIndex;
    return true;
  }

  code() {
    const mark = /`+/y;
    mark.lastIndex = this.at;
    const fence = mark.exec(this.text)?.[0] ?? "";
    const begin = this.at + fence.length;
    const end = this.endOfCode(fence, begin);
    if (end < 0) {
      this.plain += fence;
      this.at = begin;
      return true;
    }
    let text = this.text.slice(begin, end).replaceAll("\n", " ");
    if (/^ .*\S.* $/s.test(text)) text = text.slice(1, -1);
    return this.add({ kind: "code", text }, end + fence.length);
  }

  /**
   * @param {string} fence
   * @param {number} begin
   */
  endOfCode(fence, begin) {
    if (this.open.has(fence)) return -1;
    for (let at = begin; ; ) {
      const found = this.text.indexOf(fence, at);
      if (found < 0) break;
      let after = found + fence.length;
      if (this.text[after] !== "`") return found;
      while (this.text[after] === "`") after += 1;
      at = after;
    }
    this.open.add(fence);
    return -1;
  }

  /**
   * Take an address that a pattern finds here.
   * @param {RegExp} pattern
   * @param {number} group
   */
  matched(pattern, group) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found === null) return false;
    let shown = found[group];
    let end = pattern.lastIndex;
    if (group === 0) {
      shown = withoutPunctuation(shown);
      end = this.at + shown.length;
    }
    const href = safeHref(shown);
    if (href === null) return false;
    return this.add({ kind: "link", href, spans: [{ kind: "text", text: shown }] }, end);
  }

  /**
   * Take [label](address); what is to be an image becomes a link: nothing is fetched unasked.
   * @param {number} bracket
   */
  link(bracket) {
    const close = this.endOfLabel(bracket);
    if (close < 0) return false;
    LINK_END.lastIndex = close + 1;
    const found = LINK_END.exec(this.text);
    if (found === null) return false;
    const label = this.text.slice(bracket + 1, close);
    const href = safeHref(found[1]);
    const spans = parseInline(label || found[1], this.depth + 1);
    const end = LINK_END.lastIndex;
    if (href !== null) return this.add({ kind: "link", href, spans }, end);
    this.flush();
    this.spans.push(...spans);
    this.at = end;
    return true;
  }

  /** @param {number} bracket */
  endOfLabel(bracket) {
    const limit = Math.min(this.text.length, bracket + LONGEST_LABEL);
    let depth = 0;
    for (let at = bracket; at < limit; at += 1) {
      const character = this.text[at];
      if (character === "\\") at += 1;
      else if (character === "[") depth += 1;
      else if (character === "]") {
        depth -= 1;
        if (depth === 0) return at;
      }
    }
    return -1;
  }

  emphasis() {
    for (const [mark, kind] of KINDS) {
      if (!this.text.startsWith(mark, this.at)) continue;
      const begin = this.at + mark.length;
      const end = this.opens(mark, begin) ? this.endOfMark(mark, begin) : -1;
      if (end < 0) continue;
      const spans = parseInline(this.text.slice(begin, end), this.depth + 1);
      return this.add({ kind, spans }, end + mark.length);
    }
    const run = this.text[this.at];
    while (this.text[this.at] === run) {
      this.plain += run;
      this.at += 1;
    }
    return true;
  }

  /**
   * Whether a mark may begin something: it stands before a word, and _ not inside one.
   * @param {string} mark
   * @param {number} begin
   */
  opens(mark, begin) {
    const isInWord = mark[0] === "_" && isWord(this.text[this.at - 1]);
    return !isInWord && /\S/.test(this.text[begin] ?? " ");
  }

  /**
   * @param {string} mark
   * @param {number} begin
   */
  endOfMark(mark, begin) {
    if (this.open.has(mark)) return -1;
    for (let at = begin + 1; ; at += 1) {
      at = this.text.indexOf(mark, at);
      if (at < 0) break;
      let last = at;
      while (this.text[last + 1] === mark[0]) last += 1;
      const length = last - at + 1;
      const isEnd = /\S/.test(this.text[at - 1]) && this.text[at - 1] !== "\\";
      const isInWord = mark[0] === "_" && isWord(this.text[last + 1]);
      // ** inside *…* begins something else; of *** the last characters belong to the outer mark.
      const isOther = mark.length === 1 && length === 2;
      if (isEnd && !isInWord && !isOther) return last - mark.length + 1;
      at = last;
    }
    this.open.add(mark);
    return -1;
  }
}

/** @param {string | undefined} character */
function isWord(character) {
  return character !== undefined && /[\p{L}\p{N}_]/u.test(character);
}
