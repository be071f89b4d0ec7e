/** Keeps JSON in the browser. A browser that keeps nothing, or no more, is no error of the page. */

/**
 * Return what is kept under a name, or else what is given.
 * @template T
 * @param {Storage} storage
 * @param {string} name
 * @param {T} otherwise
 * @returns {T}
 */
export function load(storage, name, otherwise) {
  try {
    const text = storage.getItem(name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * Keep a value; return whether the browser did.
 * @param {Storage} storage
 * @param {string} name
 * @param {unknown} value
 */
export function save(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
