/** Colours code: comments, strings, numbers and words that a language keeps for itself. */

/** @typedef {{kind: "plain" | "comment" | "string" | "number" | "keyword", text: string}} Token */

const LONGEST = 20_000;
const HASH = new Set(
  "py python sh bash shell zsh yaml yml toml ruby rb r perl make makefile dockerfile".split(" "),
);
const DASH = new Set("sql lua haskell hs".split(" "));
const NONE = new Set("text txt md markdown console output".split(" "));
const KEYWORDS = new Set(
  (
    "None True False and as assert async await break case catch class const continue def default del do done elif " +
    "else enum esac except export extends extern false finally fi fn for from func function go if " +
    "impl implements import in interface is let loop match mod mut namespace new nil none not null " +
    "of or package pass private protected pub public raise return self static struct super switch " +
    "template then this throw trait true try type typedef undefined union use using var void where " +
    "while with yield int float double char bool boolean string long short unsigned"
  ).split(" "),
);
const SQL = new Set(
  (
    "all alter and as asc begin between by case create delete desc distinct drop else end exists " +
    "from group having in inner insert into is join left like limit not null on or order outer " +
    "primary key references right select set table then union update values view when where with"
  ).split(" "),
);
const STRING = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|${"`"}(?:[^${"`"}\\]|\\.)*${"`"}`;
const REST = String.raw`(?<number>\b\d[\w.]*)|(?<word>[A-Za-z_]\w*)`;

/**
 * Return code in coloured pieces, which together are the code.
 * @param {string} code
 * @param {string} language as it stands behind the fence
 * @returns {Token[]}
 */
export function highlight(code, language) {
  const name = language.toLowerCase();
  if (name === "" || NONE.has(name) || code.length > LONGEST) return [{ kind: "plain", text: code }];
  /** @type {Token[]} */
  const tokens = [];
  const pattern = patternOf(name);
  let at = 0;
  for (const found of code.matchAll(pattern)) {
    const kind = kindOf(found, name);
    if (kind === null) continue;
    if (found.index > at) tokens.push({ kind: "plain", text: code.slice(at, found.index) });
    tokens.push({ kind, text: found[0] });
    at = found.index + found[0].length;
  }
  if (at < code.length) tokens.push({ kind: "plain", text: code.slice(at) });
  return tokens;
}

/**
 * @param {RegExpExecArray} found
 * @param {string} language
 * @returns {Exclude<Token["kind"], "plain"> | null}
 */
function kindOf(found, language) {
  const groups = found.groups ?? {};
  if (groups.comment !== undefined) return "comment";
  if (groups.string !== undefined) return "string";
  if (groups.number !== undefined) return "number";
  const isOwn = language === "sql" ? SQL.has(found[0].toLowerCase()) : KEYWORDS.has(found[0]);
  return isOwn ? "keyword" : null;
}

/** @param {string} language */
function patternOf(language) {
  const text = `(?<string>"""[^]*?(?:"""|$)|${STRING})|${REST}`;
  return new RegExp(`(?<comment>${commentOf(language)})|${text}`, "g");
}

/** @param {string} language */
function commentOf(language) {
  if (HASH.has(language)) return "#.*";
  if (DASH.has(language)) return "--.*";
  if (language === "html" || language === "xml") return "<!--[^]*?(?:-->|$)";
  if (language === "json") return "(?!)";
  return String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`;
}
