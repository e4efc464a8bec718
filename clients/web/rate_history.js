// Tokens per second over the last two minutes, as a filled line.

import { colour, surface } from "./dom.js";
import { rate } from "./format.js";

const SAMPLES = 120;

export class RateHistory {
  #canvas;
  #values = [];

  constructor(canvas) {
    this.#canvas = canvas;
    document.addEventListener("themechange", () => this.#draw());
  }

  add(value) {
    this.#values.push(value);
    if (this.#values.length > SAMPLES) this.#values.shift();
    const highest = Math.max(...this.#values);
    this.#canvas.setAttribute("aria-label", `Tokens per second, the last two minutes: now ${rate(value)}, at most ${rate(highest)}`);
    this.#draw();
  }

  #draw() {
    const { context, width, height } = surface(this.#canvas);
    if (!width || this.#values.length < 2) return;
    const highest = Math.max(1, ...this.#values);
    const step = width / (SAMPLES - 1);
    const start = width - (this.#values.length - 1) * step;
    const y = (value) => height - 1.5 - (value / highest) * (height - 4);
    context.beginPath();
    this.#values.forEach((value, index) => context.lineTo(start + index * step, y(value)));
    context.strokeStyle = colour("--accent");
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(width, height);
    context.lineTo(start, height);
    context.globalAlpha = 0.14;
    context.fillStyle = colour("--accent");
    context.fill();
    context.globalAlpha = 1;
  }
}
