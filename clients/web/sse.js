// Server-sent events from a fetch body. EventSource would do, but it cannot send an API key.

/** The events of a stream as they come; null for what is none, such as a comment: the other side is alive. */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (pending + value).split("\n\n");
      pending = blocks.pop();
      if (!blocks.length) yield null;
      for (const block of blocks) yield parse(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const event = { type: "message", id: null, retry: null, data: "" };
  const data = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    switch (line.slice(0, colon)) {
      case "event": event.type = value; break;
      case "id": event.id = value; break;
      case "data": data.push(value); break;
      case "retry": event.retry = Number(value) || null; break;
    }
  }
  event.data = data.join("\n");
  return data.length || event.retry ? event : null;
}
