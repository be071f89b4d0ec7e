/** Puts text on the clipboard, also where the page came over plain HTTP from another machine. */

import { element, icon } from "./dom.js";

const TOLD_MS = 1500;

/**
 * Copy a text; return whether it worked.
 * @param {string} text
 * @returns {Promise<boolean>}
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

/** @param {string} text */
function copySelected(text) {
  const area = /** @type {HTMLTextAreaElement} */ (element("textarea", { class: "unseen" }));
  area.value = text;
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}

/**
 * Make a button that copies what a text is by then, and says that it did.
 * @param {string} label
 * @param {() => string} text
 * @returns {HTMLElement}
 */
export function copyButton(label, text) {
  const told = element("span", { class: "unseen", role: "status" });
  const button = element("button", { type: "button", class: "quiet", title: label }, icon("copy"));
  button.setAttribute("aria-label", label);
  button.append(told);
  button.addEventListener("click", async () => {
    const isCopied = await copy(text());
    button.classList.toggle("is-done", isCopied);
    button.replaceChildren(icon(isCopied ? "check" : "cross"), told);
    told.textContent = isCopied ? "Copied" : "It could not be copied";
    setTimeout(() => {
      button.classList.remove("is-done");
      button.replaceChildren(icon("copy"), told);
      told.textContent = "";
    }, TOLD_MS);
  });
  return button;
}
