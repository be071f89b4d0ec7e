/** Reads server-sent events from a response: unlike EventSource, fetch can show a key. */

/** @typedef {{name: string, data: string}} ServerEvent */

/**
 * Yield the events of a response until it ends.
 * @param {Response} response
 * @returns {AsyncGenerator<ServerEvent, void, void>}
 */
export async function* events(response) {
  if (response.body === null) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let left = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      left += decoder.decode(value, { stream: !done }).replaceAll("\r", "");
      const parts = left.split("\n\n");
      left = done ? "" : (parts.pop() ?? "");
      for (const part of parts) {
        const event = parse(part);
        if (event !== null) yield event;
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/**
 * Return what an event says; comments alone say nothing.
 * @param {string} text
 * @returns {ServerEvent | null}
 */
function parse(text) {
  let name = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) name = line.slice(6).trim();
  }
  return data.length === 0 ? null : { name, data: data.join("\n") };
}
