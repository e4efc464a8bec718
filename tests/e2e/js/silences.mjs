// Reads one streamed answer with the package that the argument names, and prints its text. The address comes from
// test_silences.py.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
import OpenAI from "openai";

const baseURL = `${process.env.GATEWAY}/v1`;
const messages = [{ role: "user", content: "the mill" }];
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const provider = createOpenAICompatible({ name: "headrace", baseURL, apiKey: "unused" });

async function ai(model) {
  const streamed = streamText({ model, prompt: "the mill", maxRetries: 0 });
  let text = "";
  for await (const part of streamed.stream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
  }
  return text;
}

const readers = {
  async openai() {
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model: "m", messages, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
    return text;
  },
  async "openai, stream helper"() {
    const helper = client.chat.completions.stream({ model: "m", messages });
    return (await helper.finalChatCompletion()).choices[0].message.content;
  },
  async "openai, completions"() {
    const asked = { model: "m", prompt: "the mill", max_tokens: 64, stream: true };
    let text = "";
    for await (const chunk of await client.completions.create(asked)) text += chunk.choices[0].text;
    return text;
  },
  ai: () => ai(provider.chatModel("m")),
  "ai, completions": () => ai(provider.completionModel("m")),
};

process.stdout.write(await readers[process.argv[2]]());
