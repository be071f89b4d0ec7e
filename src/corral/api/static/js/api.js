/** Asks the server: shows the key, and tells what went wrong in the server's own words. */

/** An answer that says no, or none at all (`status` 0). */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   * @param {string} [code]
   */
  constructor(message, status, code = "") {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }
}

export class Api {
  /** @param {() => string} key the key that is shown, or "" */
  constructor(key) {
    this._key = key;
  }

  /**
   * Return what a path answers, as JSON.
   * @param {string} path relative to the page
   * @param {AbortSignal} [signal]
   * @returns {Promise<any>}
   */
  async get(path, signal) {
    return (await this.open("GET", path, undefined, signal)).json();
  }

  /**
   * Post JSON and return what is answered, as JSON.
   * @param {string} path
   * @param {object} body
   * @returns {Promise<any>}
   */
  async post(path, body) {
    return (await this.open("POST", path, body)).json();
  }

  /**
   * Return a response that is read piece by piece.
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @param {AbortSignal} [signal] ends the request; the server then cancels what it was doing
   * @returns {Promise<Response>}
   * @throws {ApiError} the server refuses, or does not answer
   */
  async open(method, path, body, signal) {
    /** @type {Record<string, string>} */
    const headers = {};
    if (this._key()) headers.Authorization = `Bearer ${this._key()}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      const sent = body === undefined ? undefined : JSON.stringify(body);
      response = await fetch(path, { method, headers, body: sent, signal, cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError("the server does not answer", 0);
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

/**
 * Return the error that a response tells of.
 * @param {Response} response
 */
async function refusal(response) {
  try {
    return errorOf(await response.json(), response.status);
  } catch {
    return new ApiError(`the server answers ${response.status}`, response.status);
  }
}

/**
 * Return the error of an error object, as it is in bodies and in streams.
 * @param {{error: {message: string, code?: string | number | null}}} told
 * @param {number} status
 */
export function errorOf(told, status) {
  return new ApiError(told.error.message, status, String(told.error.code ?? ""));
}
