/** Opens and closes the panels at both sides: columns where there is room, drawers elsewhere. */

import { byId } from "./dom.js";

const NARROW = matchMedia("(max-width: 1180px)");
const NARROWEST = matchMedia("(max-width: 800px)");

/** A panel, the button that opens it, and the width below which it lies over the chat. */
class Panel {
  /**
   * @param {string} id
   * @param {MediaQueryList} narrow
   * @param {boolean} isOpen
   * @param {(isOpen: boolean) => void} changed
   */
  constructor(id, narrow, isOpen, changed) {
    this._node = byId(id);
    this._button = byId(`show-${id}`);
    this._narrow = narrow;
    this._changed = changed;
    this._wanted = isOpen;
    this._button.addEventListener("click", () => this.set(!this.isOpen));
    narrow.addEventListener("change", () => this.set(!narrow.matches && this._wanted, false));
    this.set(isOpen && !narrow.matches, false);
  }

  get isOpen() {
    return this._button.getAttribute("aria-expanded") === "true";
  }

  get isDrawer() {
    return this.isOpen && this._narrow.matches;
  }

  /**
   * @param {boolean} isOpen
   * @param {boolean} [isChosen] whether the user did it
   */
  set(isOpen, isChosen = true) {
    this._button.setAttribute("aria-expanded", String(isOpen));
    this._node.hidden = !isOpen;
    if (isChosen && !this._narrow.matches) this._wanted = isOpen;
    if (isChosen && isOpen && this._narrow.matches) this._node.focus();
    this._changed(this._wanted);
    showShade();
  }

  /** Close the panel if it lies over the chat. */
  closeDrawer() {
    if (!this.isDrawer) return;
    this.set(false);
    this._button.focus();
  }
}

/** @type {Panel[]} */
const panels = [];

function showShade() {
  byId("shade").hidden = !panels.some((panel) => panel.isDrawer);
}

/**
 * Set up both panels; return what closes those that lie over the chat.
 * @param {import("./preferences.js").Preferences} preferences
 */
export function setUpPanels(preferences) {
  panels.push(
    new Panel("sidebar", NARROWEST, true, () => {}),
    new Panel("memory", NARROW, preferences.showsMemory, (isOpen) => {
      preferences.showsMemory = isOpen;
      preferences.save();
    }),
  );
  const close = () => panels.forEach((panel) => panel.closeDrawer());
  byId("shade").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });
  showShade();
  return close;
}
