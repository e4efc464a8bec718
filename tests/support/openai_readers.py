"""Packages that read streams in OpenAI's format, as their users use them."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, Final

import httpx
import openai
from httpx_sse import connect_sse
from langchain_openai import ChatOpenAI

# LiteLLM asks for a list of prices over the network when it is imported, unless told not to.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

PROMPT: Final = "the mill"
MESSAGES: Final[list[Any]] = [{"role": "user", "content": PROMPT}]
_SECONDS: Final = 60.0


def _openai(url: str, model: str) -> str:
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=_SECONDS) as client:
        chunks = client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def _openai_helper(url: str, model: str) -> str:
    with (
        openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=_SECONDS) as client,
        client.chat.completions.stream(model=model, messages=MESSAGES) as stream,
    ):
        return "".join(event.delta for event in stream if event.type == "content.delta")


def _openai_completion(url: str, model: str) -> str:
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=_SECONDS) as client:
        chunks = client.completions.create(model=model, prompt=PROMPT, max_tokens=60, stream=True)
        return "".join(chunk.choices[0].text for chunk in chunks)


def _openai_async(url: str, model: str) -> str:
    async def read() -> str:
        async with openai.AsyncOpenAI(
            base_url=url, api_key="unused", max_retries=0, timeout=_SECONDS
        ) as client:
            chunks = await client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    return asyncio.run(read())


def _chat_model(url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=url, api_key="unused", max_retries=0, timeout=_SECONDS)


def _langchain(url: str, model: str) -> str:
    return "".join(str(chunk.content) for chunk in _chat_model(url, model).stream(PROMPT))


def _langchain_async(url: str, model: str) -> str:
    async def read() -> str:
        return "".join([str(chunk.content) async for chunk in _chat_model(url, model).astream(PROMPT)])

    return asyncio.run(read())


def _litellm(provider: str) -> Callable[[str, str], str]:
    def read(url: str, model: str) -> str:
        chunks = litellm.completion(**_litellm_fields(provider, url, model))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    return read


def _litellm_async(url: str, model: str) -> str:
    async def read() -> str:
        chunks = await litellm.acompletion(**_litellm_fields("openai", url, model))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    return asyncio.run(read())


def _litellm_fields(provider: str, url: str, model: str) -> dict[str, Any]:
    return {
        "model": f"{provider}/{model}",
        "api_base": url,
        "api_key": "unused",
        "messages": MESSAGES,
        "stream": True,
        "max_retries": 0,
        "timeout": _SECONDS,
    }


def _httpx_sse(url: str, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "stream": True}
    with (
        httpx.Client(timeout=_SECONDS) as http,
        connect_sse(http, "POST", f"{url}/chat/completions", json=body) as source,
    ):
        data = [event.data for event in source.iter_sse()]
    assert data.pop() == "[DONE]"
    chunks = [json.loads(item) for item in data]
    for chunk in chunks:
        if "error" in chunk:
            raise RuntimeError(chunk["error"]["message"])
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


READERS: Final[dict[str, Callable[[str, str], str]]] = {
    "openai": _openai,
    "openai, stream helper": _openai_helper,
    "openai, completions": _openai_completion,
    "openai, async": _openai_async,
    "langchain": _langchain,
    "langchain, async": _langchain_async,
    "litellm, openai": _litellm("openai"),
    "litellm, hosted_vllm": _litellm("hosted_vllm"),
    "litellm, async": _litellm_async,
    "httpx-sse": _httpx_sse,
}
"""Each takes the address of ``/v1`` and a model's name, asks for a streamed answer and gives its text."""
