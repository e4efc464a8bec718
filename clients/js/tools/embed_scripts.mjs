// Writes the Lua scripts that all clients share into a module: a bundler takes it along, a file it would not.
import { readFileSync, writeFileSync } from "node:fs";

const NAMES = ["cancel", "enqueue", "read", "record", "submit", "withdraw"];
const sources = Object.fromEntries(
  NAMES.map((name) => [name, readFileSync(new URL(`../../scripts/${name}.lua`, import.meta.url), "utf8")]),
);
writeFileSync(
  new URL("../src/scripts/sources.ts", import.meta.url),
  `// Made by tools/embed_scripts.mjs from clients/scripts.\nexport const SOURCES = ${JSON.stringify(sources, null, 2)};\n`,
);
