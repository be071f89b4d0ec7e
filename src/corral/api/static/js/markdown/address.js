/** Decides where a link in a text may lead. */

/**
 * Return an address if a link may lead there: the web and mail, whole addresses only.
 * @param {string} text
 * @returns {string | null}
 */
export function safeHref(text) {
  if (!/^(https?|mailto):/i.test(text)) return null;
  try {
    const { protocol, href } = new URL(text);
    return ["http:", "https:", "mailto:"].includes(protocol) ? href : null;
  } catch {
    return null;
  }
}

/**
 * Return an address without the punctuation of the sentence that it ends.
 * @param {string} address
 */
export function withoutPunctuation(address) {
  let end = address.length;
  while (end > 0 && /[.,;:!?*_~\])]/.test(address[end - 1])) {
    if (address[end - 1] === ")" && address.slice(0, end).includes("(")) break;
    end -= 1;
  }
  return address.slice(0, end);
}
