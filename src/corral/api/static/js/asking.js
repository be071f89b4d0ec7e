/** Makes the body of a request from a conversation and what was chosen. */

/** @typedef {import("./conversations.js").Conversation} Conversation */
/** @typedef {import("./conversations.js").Message} Message */
/** @typedef {import("./preferences.js").Preferences} Preferences */

/**
 * Return the body that asks for the next answer.
 * @param {Conversation} conversation
 * @param {Preferences} preferences
 * @param {string | null} model null where the server serves one
 */
export function bodyOf(conversation, preferences, model) {
  const system = conversation.system.trim();
  const messages = conversation.messages.filter(isTold).map(told);
  if (system) messages.unshift({ role: "system", content: system });
  const tools = preferences.tools.trim() ? JSON.parse(preferences.tools) : undefined;
  return {
    ...(model === null ? {} : { model }),
    messages,
    ...preferences.sampling,
    ...(tools === undefined ? {} : { tools }),
    stream: true,
  };
}

/**
 * Whether the model is told a message: not the answers that nothing came of.
 * @param {Message} message
 */
function isTold({ role, content, calls }) {
  return role !== "assistant" || content !== "" || (calls?.length ?? 0) > 0;
}

/**
 * @param {Message} message
 * @returns {Record<string, unknown>}
 */
function told({ role, content, calls, callId }) {
  if (role === "tool") return { role, content, tool_call_id: callId };
  if (!calls?.length) return { role, content };
  const made = calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  return { role, content: content || null, tool_calls: made };
}
