/** Server-sent events of a body, as {name, data}: https://html.spec.whatwg.org/multipage/server-sent-events.html */
export async function* eventsOf(body) {
  let name = "";
  let data = [];
  for await (const line of linesOf(body)) {
    if (line === "") {
      if (data.length) yield { name: name || "message", data: data.join("\n") };
      name = "";
      data = [];
      continue;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "event") name = value;
  }
}

/** A line that has no end when the body ends is none. */
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      // A carriage return at the very end may be half of a line end.
      const complete = rest.endsWith("\r") ? rest.length - 1 : rest.length;
      const lines = rest.slice(0, complete).split(/\r\n|\n|\r/);
      rest = lines.pop() + rest.slice(complete);
      yield* lines;
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already
  }
}
