/**
 * Makes elements. Text becomes text nodes, always: nothing here, or anywhere on the page, reads
 * markup.
 */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {string | Node | null | undefined | false} Child */

/**
 * Make an HTML element.
 * @param {string} name
 * @param {Record<string, unknown>} [properties] attributes; functions named on… listen to events
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  fill(made, properties, children);
  return made;
}

/**
 * Make an SVG element.
 * @param {string} name
 * @param {Record<string, unknown>} [properties]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function drawing(name, properties = {}, ...children) {
  const made = /** @type {SVGElement} */ (document.createElementNS(SVG, name));
  fill(made, properties, children);
  return made;
}

/**
 * Make an icon of `icons.svg`; it is decoration, so its button needs a label.
 * @param {string} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const use = drawing("use", { href: `icons.svg#${name}` });
  return drawing("svg", { class: "icon", "aria-hidden": "true", focusable: "false" }, use);
}

/**
 * Make a button of an icon and a label that is read, and shown as a hint.
 * @param {string} iconName
 * @param {string} label
 * @param {() => void} pressed
 * @param {string} [className]
 * @returns {HTMLElement}
 */
export function iconButton(iconName, label, pressed, className = "quiet") {
  const properties = { type: "button", class: className, "aria-label": label, title: label };
  return element("button", { ...properties, onclick: pressed }, icon(iconName));
}

/**
 * Find an element that the page must have.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/**
 * Set a text only where it differs, so that selections stay.
 * @param {Node} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * @param {Element} made
 * @param {Record<string, unknown>} properties
 * @param {Child[]} children
 */
function fill(made, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") {
      made.addEventListener(key.slice(2), /** @type {EventListener} */ (value));
    } else {
      made.setAttribute(key, value === true ? "" : String(value));
    }
  }
  for (const child of children) if (child) made.append(child);
}
