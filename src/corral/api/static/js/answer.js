/**
 * Streams one answer: a body for /v1/chat/completions in, what is added to a message out.
 */

import { ApiError, errorOf } from "./api.js";
import { events } from "./sse.js";

/** @typedef {import("./api.js").Api} Api */
/** @typedef {{id: string, name: string, arguments: string}} Call */
/**
 * @typedef {object} Timings
 * @property {number} predicted_n
 * @property {number} predicted_per_second
 * @property {number} prompt_n
 * @property {number} prompt_ms
 * @property {number} cache_n
 */
/**
 * What a stream adds.
 * @typedef {{content: string} | {reasoning: string} | {call: Call, index: number}
 *   | {finish: string, timings: Timings | null}} Piece
 */

/**
 * Yield the pieces of an answer as they arrive.
 * @param {Api} api
 * @param {object} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Piece, void, void>}
 * @throws {ApiError} it is refused, fails, or breaks off
 */
export async function* answer(api, body, signal) {
  const response = await api.open("POST", "v1/chat/completions", body, signal);
  let isWhole = false;
  try {
    for await (const event of events(response)) {
      if (event.data === "[DONE]") {
        isWhole = true;
        continue;
      }
      const told = JSON.parse(event.data);
      if (told.error) throw errorOf(told, response.status);
      yield* pieces(told);
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError) throw error;
    throw new ApiError("the connection broke off before the answer ended", 0);
  }
  if (!isWhole) throw new ApiError("the connection ended before the answer did", 0);
}

/**
 * @param {any} chunk
 * @returns {Generator<Piece, void, void>}
 */
function* pieces(chunk) {
  const choice = chunk.choices?.[0];
  if (choice === undefined) return;
  const delta = choice.delta ?? {};
  if (delta.reasoning_content) yield { reasoning: delta.reasoning_content };
  if (delta.content) yield { content: delta.content };
  for (const call of delta.tool_calls ?? []) {
    const { name = "", arguments: text = "" } = call.function ?? {};
    yield { index: call.index ?? 0, call: { id: call.id ?? "", name, arguments: text } };
  }
  if (choice.finish_reason) {
    yield { finish: choice.finish_reason, timings: chunk.timings ?? null };
  }
}
