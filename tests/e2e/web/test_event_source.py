"""A browser's own EventSource before the gateway, and what the page has instead of it."""

import httpx
from gateway_server import RunningGateway
from playwright.sync_api import BrowserContext
from silent_model import TEXT, silent_model

FOLLOW = """
(path) => new Promise((resolve, reject) => {
  const source = new EventSource(path);
  let text = "", opened = 0;
  const add = (event) => { text += JSON.parse(event.data).text; };
  source.addEventListener("open", () => { opened += 1; });
  source.addEventListener("delta", add);
  source.addEventListener("message", () => reject("an event without a name"));
  source.addEventListener("done", (event) => {
    source.close();
    resolve({text, opened, id: event.lastEventId});
  });
})
"""

READ = """
async (pieces) => {
  const {eventsOf} = await import("/sse.js");
  const source = new ReadableStream({
    pull(controller) {
      if (pieces.length) controller.enqueue(pieces.shift());
      else controller.close();
    },
  });
  const body = source.pipeThrough(new TextEncoderStream());
  const found = [];
  for await (const event of eventsOf(body)) found.push(event);
  return found;
}
"""


def test_silences(context: BrowserContext, redis_url: str) -> None:
    # A database of its own: what this model leaves there is not for the page to see.
    with silent_model(redis_url.removesuffix("/0") + "/1") as model:
        page = context.new_page()
        page.goto(f"{model.url}/healthz")
        request_id = httpx.post(f"{model.url}/v1/requests", json={"model": "m", "prompt": "x"}).json()["id"]
        told = page.evaluate(FOLLOW, f"/v1/requests/{request_id}/events")
    assert told == {"text": TEXT, "opened": 1, "id": f"4.{len(TEXT)}.end"}


def test_the_page_hears_signs_of_life(context: BrowserContext, gateway: RunningGateway) -> None:
    page = context.new_page()
    page.goto(gateway.url)
    pieces = ["retry: 1000\n", ": alive\n", ": alive\nid: 1.2\nevent: del", "ta\ndata: x\n\n", ": alive\n"]
    event = {"type": "delta", "id": "1.2", "retry": 1000, "data": "x"}
    assert page.evaluate(READ, pieces) == [None, None, None, event, None]
