// The form of a request: what is in it survives a reload, and becomes the body that is sent.

const STORE = "headrace.form";
const INTEGERS = ["max_tokens", "top_k", "seed"];
const DECIMALS = ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"];

/** The fields of a request's body, prompt and messages aside; what is empty is left to the gateway. */
export function parametersOf(form) {
  const fields = { model: form.elements.model.value };
  for (const name of [...INTEGERS, ...DECIMALS]) {
    const { value } = form.elements[name];
    if (value !== "") fields[name] = Number(value);
  }
  const stop = form.elements.stop.value.split("\n").filter((line) => line !== "").map(unescaped);
  if (stop.length) fields.stop = stop;
  if (form.elements.priority.value) fields.priority = form.elements.priority.value;
  if (form.elements.ignore_eos.checked) fields.ignore_eos = true;
  return fields;
}

/** Milliseconds after which the answer is of no use; 0 for none. */
export const patienceOf = (form) => Math.max(0, Math.round(1000 * Number(form.elements.patience.value)));

/** `\n` and `\t` as one can type them into a line. */
const unescaped = (line) =>
  line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);

/** Marks the field that a problem names, and moves there; false if it names none of this form. */
export function pointAt(form, param) {
  const name = { messages: "prompt", deadline: "patience" }[param] ?? param;
  const field = form.elements[name];
  if (!(field instanceof HTMLElement)) return false;
  field.closest("details")?.setAttribute("open", "");
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", "problem");
  field.focus();
  field.addEventListener("input", () => clearMarks(form), { once: true });
  return true;
}

export function clearMarks(form) {
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
}

export function keepForm(form) {
  const stored = read() ?? {};
  for (const field of form.elements) {
    if (!field.name || !(field.name in stored)) continue;
    if (field.type === "checkbox") field.checked = stored[field.name];
    else if (field.type === "radio") field.checked = field.value === stored[field.name];
    else if (field.name !== "model") field.value = stored[field.name];
  }
  form.addEventListener("input", () => write(form));
  form.addEventListener("change", () => write(form));
  return stored;
}

export function write(form) {
  const values = {};
  for (const field of form.elements) {
    if (!field.name || (field.type === "radio" && !field.checked)) continue;
    values[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  try {
    sessionStorage.setItem(STORE, JSON.stringify(values));
  } catch {
    // Full or forbidden: the form is lost with the page, nothing else.
  }
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE));
  } catch {
    return null;
  }
}
