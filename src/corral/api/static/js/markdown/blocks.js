/**
 * Reads the blocks of Markdown: paragraphs, headings, lists, quotes, tables, code. Returns plain
 * data that knows no document. A text may end anywhere: it is read while it is written.
 */

/** @typedef {{blocks: Block[], isChecked: boolean | null}} Item */
/**
 * @typedef {{kind: "paragraph", text: string} | {kind: "heading", level: number, text: string}
 *   | {kind: "code", language: string, text: string} | {kind: "rule"}
 *   | {kind: "quote", blocks: Block[]}
 *   | {kind: "list", start: number | null, isTight: boolean, items: Item[]}
 *   | {kind: "table", aligns: string[], head: string[], rows: string[][]}} Block
 */
/** @typedef {{block: Block, next: number}} Found */

const DEEPEST = 12;
const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const TASK = /^\[([ xX])\][ \t]+/;
const INDENTED = /^(?: {4}|\t)/;

/**
 * Return the blocks of a text, each with the lines that it was read from.
 * @param {string} text
 * @returns {{block: Block, source: string}[]}
 */
export function parseBlocks(text) {
  const lines = text.split("\n");
  /** @type {{block: Block, source: string}[]} */
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { block, next } = blockAt(lines, at, 0);
    found.push({ block, source: lines.slice(at, next).join("\n") });
    at = next;
  }
  return found;
}

/**
 * @param {string[]} lines
 * @param {number} depth
 * @returns {Block[]}
 */
function blocksOf(lines, depth) {
  if (depth >= DEEPEST) return [{ kind: "paragraph", text: lines.join("\n").trim() }];
  /** @type {Block[]} */
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { block, next } = blockAt(lines, at, depth);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {Found}
 */
function blockAt(lines, at, depth) {
  return (
    fenced(lines, at) ??
    headingOrRule(lines, at) ??
    quote(lines, at, depth) ??
    list(lines, at, depth) ??
    table(lines, at) ??
    indented(lines, at) ??
    paragraph(lines, at)
  );
}

/** @param {string} line */
function isBlank(line) {
  return line.trim() === "";
}

/** @param {string} line */
function indentOf(line) {
  return line.length - line.trimStart().length;
}

/** @param {string} line */
function begins(line) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {Found | null}
 */
function fenced(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (open === null) return null;
  const [, indent, fence, language] = open;
  const text = [];
  let next = at + 1;
  for (; next < lines.length; next += 1) {
    const line = lines[next].trim();
    if (line.length >= fence.length && line === fence[0].repeat(line.length)) break;
    const spaces = Math.min(indentOf(lines[next]), indent.length);
    text.push(lines[next].slice(spaces));
  }
  return { block: { kind: "code", language, text: text.join("\n") }, next: next + 1 };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {Found | null}
 */
function headingOrRule(lines, at) {
  const heading = HEADING.exec(lines[at]);
  if (heading !== null) {
    const text = (heading[2] ?? "").trimEnd();
    const bare = text.replace(/#+$/, "");
    const shown = bare === "" || bare.endsWith(" ") ? bare.trim() : text;
    return { block: { kind: "heading", level: heading[1].length, text: shown }, next: at + 1 };
  }
  return RULE.test(lines[at]) ? { block: { kind: "rule" }, next: at + 1 } : null;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {Found | null}
 */
function quote(lines, at, depth) {
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next])) next += 1;
  if (next === at) return null;
  const inner = lines.slice(at, next).map((line) => line.replace(QUOTE, ""));
  return { block: { kind: "quote", blocks: blocksOf(inner, depth + 1) }, next };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {Found | null}
 */
function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (first === null) return null;
  const isOrdered = /\d/.test(first[2]);
  const last = first[2].at(-1);
  /** @type {Item[]} */
  const items = [];
  let isTight = true;
  let next = at;
  while (next < lines.length) {
    const mark = ITEM.exec(lines[next]);
    const isSame = mark !== null && mark[2].at(-1) === last && !RULE.test(lines[next]);
    if (!isSame) break;
    const read = itemAt(lines, next, mark);
    items.push(itemOf(read.inner, depth));
    next = read.next;
    while (next < lines.length && isBlank(lines[next])) next += 1;
    const isEnd = next >= lines.length || !ITEM.test(lines[next]);
    if (read.hasGap || (next > read.next && !isEnd)) isTight = false;
  }
  const start = isOrdered ? Number.parseInt(first[2], 10) : null;
  return { block: { kind: "list", start, isTight, items }, next };
}

/**
 * Return the lines of one item without their indent.
 * @param {string[]} lines
 * @param {number} at
 * @param {RegExpExecArray} mark
 */
function itemAt(lines, at, mark) {
  const base = mark[1].length;
  const spaces = mark[3].length > 4 || mark[3] === "" ? 1 : mark[3].length;
  const width = base + mark[2].length + spaces;
  const inner = [lines[at].slice(Math.min(width, lines[at].length))];
  let next = at + 1;
  let blanks = 0;
  let hasGap = false;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line)) {
      blanks += 1;
      continue;
    }
    const indent = indentOf(line);
    // Two more spaces than the mark are enough, though the text may begin further to the right.
    const isInside = indent >= Math.min(width, base + 2);
    if (!isInside && (blanks > 0 || begins(line))) break;
    if (blanks > 0) hasGap = true;
    inner.push(...Array(blanks).fill(""), line.slice(Math.min(indent, width)));
    blanks = 0;
  }
  return { inner, next: next - blanks, hasGap };
}

/**
 * @param {string[]} inner
 * @param {number} depth
 * @returns {Item}
 */
function itemOf(inner, depth) {
  const task = TASK.exec(inner[0]);
  if (task !== null) inner[0] = inner[0].slice(task[0].length);
  return {
    blocks: blocksOf(inner, depth + 1),
    isChecked: task === null ? null : task[1] !== " ",
  };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {Found | null}
 */
function table(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length) return null;
  const rule = cells(lines[at + 1]);
  const head = cells(lines[at]);
  const isRule = lines[at + 1].includes("-") && rule.every((cell) => /^:?-+:?$/.test(cell));
  if (!isRule || rule.length !== head.length) return null;
  let next = at + 2;
  const rows = [];
  for (; next < lines.length && lines[next].includes("|") && !isBlank(lines[next]); next += 1) {
    const row = cells(lines[next]);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return { block: { kind: "table", aligns: rule.map(alignOf), head, rows }, next };
}

/** @param {string} line */
function cells(line) {
  const bare = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** @param {string} cell */
function alignOf(cell) {
  if (!cell.endsWith(":")) return "start";
  return cell.startsWith(":") ? "center" : "end";
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {Found | null}
 */
function indented(lines, at) {
  let next = at;
  while (next < lines.length && (INDENTED.test(lines[next]) || isBlank(lines[next]))) next += 1;
  while (next > at && isBlank(lines[next - 1])) next -= 1;
  if (next === at) return null;
  const text = lines.slice(at, next).map((line) => line.replace(INDENTED, ""));
  return { block: { kind: "code", language: "", text: text.join("\n") }, next };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {Found}
 */
function paragraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && !isBlank(lines[next]) && !interrupts(lines, next)) next += 1;
  const text = lines
    .slice(at, next)
    .map((line) => line.trim())
    .join("\n");
  return { block: { kind: "paragraph", text }, next };
}

/**
 * Whether a line ends the paragraph before it. Of numbers only 1 does: others are text that a line
 * happens to begin with.
 * @param {string[]} lines
 * @param {number} at
 */
function interrupts(lines, at) {
  const item = ITEM.exec(lines[at]);
  if (item !== null && !RULE.test(lines[at])) {
    return item[3] !== "" && (!/\d/.test(item[2]) || Number.parseInt(item[2], 10) === 1);
  }
  return begins(lines[at]) || table(lines, at) !== null;
}
