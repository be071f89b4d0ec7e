/** Shows Markdown as elements, and while it grows changes only the blocks that differ. */

import { copyButton } from "../clipboard.js";
import { element } from "../dom.js";
import { parseBlocks } from "./blocks.js";
import { highlight } from "./highlight.js";
import { parseInline } from "./inline.js";

/** @typedef {import("./blocks.js").Block} Block */
/** @typedef {import("./blocks.js").Item} Item */
/** @typedef {import("./inline.js").Span} Span */

const TAGS = { strong: "strong", emphasis: "em", strike: "s" };

export class MarkdownView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this._root = root;
    /** @type {{source: string, node: HTMLElement}[]} */
    this._shown = [];
  }

  /**
   * Show a text.
   * @param {string} text
   */
  update(text) {
    const found = parseBlocks(text);
    let same = 0;
    while (same < found.length && this._shown[same]?.source === found[same].source) same += 1;
    for (const { node } of this._shown.splice(same)) node.remove();
    for (const { block, source } of found.slice(same)) {
      const node = blockNode(block);
      this._root.append(node);
      this._shown.push({ source, node });
    }
  }
}

/**
 * @param {Block} block
 * @returns {HTMLElement}
 */
function blockNode(block) {
  switch (block.kind) {
    case "paragraph":
      return element("p", {}, ...inline(block.text));
    case "heading":
      // The page's own title is h1, a message's is h2.
      return element(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text));
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, ...block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    case "code":
      return codeNode(block);
  }
}

/** @param {Extract<Block, {kind: "list"}>} block */
function listNode({ start, isTight, items }) {
  const nodes = items.map((item) => itemNode(item, isTight));
  if (start === null) return element("ul", {}, ...nodes);
  return element("ol", { start: start === 1 ? null : start }, ...nodes);
}

/**
 * @param {Item} item
 * @param {boolean} isTight
 */
function itemNode(item, isTight) {
  const node = element("li", { class: item.isChecked === null ? null : "task" });
  if (item.isChecked !== null) {
    const box = { type: "checkbox", disabled: true, checked: item.isChecked, "aria-label": "Done" };
    node.append(element("input", box), " ");
  }
  for (const block of item.blocks) {
    const isBare = block.kind === "paragraph" && (isTight || item.isChecked !== null);
    if (isBare) node.append(...inline(block.text));
    else node.append(blockNode(block));
  }
  return node;
}

/** @param {Extract<Block, {kind: "table"}>} block */
function tableNode({ aligns, head, rows }) {
  /**
   * @param {string} tag
   * @param {string[]} texts
   */
  const row = (tag, texts) =>
    element(
      "tr",
      {},
      ...texts.map((text, column) =>
        element(tag, { class: `is-${aligns[column]}` }, ...inline(text)),
      ),
    );
  const body = element("tbody", {}, ...rows.map((texts) => row("td", texts)));
  const table = element("table", {}, element("thead", {}, row("th", head)), body);
  return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

/** @param {Extract<Block, {kind: "code"}>} block */
function codeNode({ language, text }) {
  const tokens = highlight(text, language).map((token) =>
    token.kind === "plain" ? token.text : element("span", { class: `is-${token.kind}` }, token.text),
  );
  const code = element("code", {}, ...tokens);
  const head = element(
    "div",
    { class: "code-head" },
    element("span", {}, language || "text"),
    copyButton("Copy code", () => text),
  );
  const frame = element("pre", { tabindex: "0", "aria-label": `Code, ${language || "text"}` }, code);
  return element("div", { class: "code" }, head, frame);
}

/** @param {string} text */
function inline(text) {
  return parseInline(text).map(spanNode);
}

/**
 * @param {Span} span
 * @returns {Node}
 */
function spanNode(span) {
  switch (span.kind) {
    case "text":
      return document.createTextNode(span.text);
    case "break":
      return element("br");
    case "code":
      return element("code", {}, span.text);
    case "link": {
      const target = { href: span.href, target: "_blank", rel: "noopener noreferrer nofollow" };
      return element("a", target, ...span.spans.map(spanNode));
    }
    default:
      return element(TAGS[span.kind], {}, ...span.spans.map(spanNode));
  }
}
