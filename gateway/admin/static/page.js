// The only script of the pages: live tables, commands with confirmation, and the viewer of tensors.
"use strict";

const HEADERS = { "x-gateway-admin": "page" };

// --- Live tables -------------------------------------------------------------------------------

let refreshing = false;

async function refresh() {
  if (refreshing || document.hidden) return;
  refreshing = true;
  try {
    const response = await fetch(location.href, { headers: HEADERS });
    if (response.ok) replaceChanged(await response.text());
  } finally {
    refreshing = false;
  }
}

function replaceChanged(text) {
  // The document is never attached, so nothing in it loads or runs.
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (!next || next.innerHTML === old.dataset.source) continue;
    const focused = document.activeElement;
    if (old !== focused && old.contains(focused)) continue; // somebody is using it
    old.dataset.source = next.innerHTML;
    if (next.innerHTML !== old.innerHTML) old.replaceChildren(...next.childNodes);
  }
  showCommands();
}

function listen() {
  const state = document.getElementById("live-state");
  const source = new EventSource("/api/v1/events");
  source.onopen = () => { state.textContent = "live"; };
  source.onerror = () => { state.textContent = "not connected"; };
  source.addEventListener("status", refresh);
  source.addEventListener("migrations", refresh);
  addEventListener("pagehide", () => source.close());
}

// --- Commands of a cut-over --------------------------------------------------------------------

function showCommands() {
  for (const button of document.querySelectorAll("button[data-command]")) button.hidden = false;
}

function confirmCommand(button) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-question").textContent = button.dataset.question;
  document.getElementById("confirm-yes").textContent = button.textContent;
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") runCommand(button.dataset.migration, button.dataset.command);
    dialog.returnValue = "no";
    button.focus();
  };
  dialog.showModal();
}

async function runCommand(migration, command) {
  const result = document.getElementById("command-result");
  const path = `/api/v1/migrations/${encodeURIComponent(migration)}/${command}`;
  try {
    const response = await fetch(path, { method: "POST", headers: HEADERS });
    const reply = await response.json();
    result.textContent = response.ok ? `${command}: done` : reply.error;
  } catch (error) {
    result.textContent = `${command} was not sent: ${error.message}`;
  }
  document.activeElement.blur();
  await refresh();
}

// --- Tensors -----------------------------------------------------------------------------------

const ARRAYS = {
  FP32: Float32Array, FP64: Float64Array, INT8: Int8Array, INT16: Int16Array, INT32: Int32Array,
  UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, BOOL: Uint8Array,
  INT64: BigInt64Array, UINT64: BigUint64Array, FP16: Uint16Array, BF16: Uint16Array,
};

function decode(tensor) {
  // Returns Float64Array for numbers, a list of texts for BYTES, null without elements.
  if (!tensor) return null;
  if (Array.isArray(tensor.values)) {
    const flat = tensor.values.flat(Infinity);
    return tensor.datatype === "BYTES" ? flat.map(String) : Float64Array.from(flat, Number);
  }
  if (typeof tensor.base64 !== "string" || !ARRAYS[tensor.datatype]) return null;
  const binary = atob(tensor.base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const raw = new ARRAYS[tensor.datatype](bytes.buffer);
  if (tensor.datatype === "FP16") return Float64Array.from(raw, half);
  if (tensor.datatype === "BF16") return bfloat(raw);
  return raw instanceof Float64Array ? raw : Float64Array.from(raw, Number);
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

function bfloat(raw) {
  return Float64Array.from(new Float32Array(Uint32Array.from(raw, (bits) => bits << 16).buffer));
}

function difference(old, fresh) {
  if (!(old instanceof Float64Array) || !(fresh instanceof Float64Array)) return null;
  if (old.length !== fresh.length) return null;
  const found = new Float64Array(old.length);
  for (let i = 0; i < found.length; i += 1) found[i] = fresh[i] - old[i];
  return found;
}

function range(values) {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i += 1) {
    const value = values[i];
    if (value < low && value !== -Infinity) low = value;
    if (value > high && value !== Infinity) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

// Colours: dark blue to yellow for values, blue over grey to red for differences.
const VALUES = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const SIGNED = [[33, 102, 172], [146, 197, 222], [128, 128, 128], [244, 165, 130], [178, 24, 43]];
const NOT_A_NUMBER = 0xff00ff00;
const STEPS = 256;

function colours(stops) {
  const table = new Uint32Array(STEPS);
  for (let i = 0; i < STEPS; i += 1) {
    const place = (i / (STEPS - 1)) * (stops.length - 1);
    const first = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = stops[first].map((from, c) => Math.round(from + (stops[first + 1][c] - from) * (place - first)));
    table[i] = 0xff000000 | (b << 16) | (g << 8) | r;
  }
  return table;
}

const MOST = 1 << 22;

function drawHeatmap(canvas, values, shape, isSigned) {
  const count = Math.min(values.length, MOST);
  let width = shape.length > 1 ? shape[shape.length - 1] : count;
  if (width > 4096 || width < 1 || count / width > 4096 || (shape.length < 2 && count > 64)) {
    width = Math.ceil(Math.sqrt(count)) || 1;
  }
  const height = Math.max(1, Math.ceil(count / width));
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const table = colours(isSigned ? SIGNED : VALUES);
  let [low, high] = range(values);
  if (isSigned) {
    high = Math.max(Math.abs(low), Math.abs(high));
    low = -high;
  }
  const scale = high > low ? (STEPS - 1) / (high - low) : 0;
  for (let i = 0; i < count; i += 1) {
    const step = high > low ? (values[i] - low) * scale : (STEPS - 1) / 2;
    pixels[i] = step === step ? table[step < 0 ? 0 : step > STEPS - 1 ? STEPS - 1 : step | 0] : NOT_A_NUMBER;
  }
  context.putImageData(image, 0, 0);
}

function drawLines(canvas, rows) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  canvas.width = 1536;
  canvas.height = 480;
  const context = canvas.getContext("2d");
  const ends = rows.map((row) => range(row));
  const low = Math.min(...ends.map((end) => end[0]));
  const high = Math.max(...ends.map((end) => end[1]));
  const style = dark ? ["#9aa3af", "#6fb1f5"] : ["#6b7280", "#0b66c3"];
  rows.forEach((row, number) => {
    context.strokeStyle = style[rows.length === 1 ? 1 : number];
    context.setLineDash(rows.length > 1 && number === 0 ? [8, 6] : []);
    context.lineWidth = 3;
    context.beginPath();
    const stride = Math.max(1, Math.floor(row.length / 65536));
    for (let i = 0; i < row.length; i += stride) {
      const x = 20 + (canvas.width - 40) * (row.length > 1 ? i / (row.length - 1) : 0.5);
      const y = 20 + (canvas.height - 40) * (high > low ? (high - row[i]) / (high - low) : 0.5);
      if (Number.isFinite(y)) context.lineTo(x, y);
    }
    context.stroke();
  });
}

const SHOWN = 1000;

function asText(values, other) {
  const lines = [];
  for (let i = 0; i < Math.min(values.length, SHOWN); i += 1) {
    const isSame = !other || Object.is(values[i], other[i]);
    lines.push(`${String(i).padStart(6)}  ${values[i]}${isSame ? "" : `   |   ${other[i]}`}`);
  }
  if (values.length > SHOWN) lines.push(`... ${values.length - SHOWN} further elements`);
  return lines.join("\n");
}

function outputs(replies) {
  // Returns the tensors of all replies by name; those of a stream have the number of their reply.
  const found = new Map();
  replies.forEach((reply, item) => {
    const suffix = replies.length > 1 ? ` of reply ${item}` : "";
    for (const tensor of reply) found.set(`output ${tensor.name}${suffix}`, tensor);
  });
  return found;
}

class Viewer {
  constructor(sample) {
    this.tensors = new Map();
    for (const tensor of sample.inputs || []) this.add(`input ${tensor.name}`, tensor, null);
    const old = outputs(sample.old || []);
    const fresh = outputs(sample.new || []);
    for (const [name, tensor] of old) this.add(name, tensor, fresh.get(name) || null);
    for (const [name, tensor] of fresh) if (!old.has(name)) this.add(name, null, tensor);
    const select = document.getElementById("tensor");
    for (const name of this.tensors.keys()) select.add(new Option(name));
    const output = [...this.tensors.keys()].find((name) => name.startsWith("output "));
    if (output) select.value = output;
    document.getElementById("viewer").addEventListener("change", () => this.draw());
    document.getElementById("viewer").hidden = false;
    this.draw();
  }

  add(name, old, fresh) {
    this.tensors.set(name, { old, fresh, a: decode(old), b: decode(fresh) });
  }

  draw() {
    const found = this.tensors.get(document.getElementById("tensor").value);
    const facts = document.getElementById("tensor-facts");
    if (!found) { facts.textContent = "No tensor is kept of this call."; return; }
    const chosen = (name) => document.querySelector(`input[name=${name}]:checked`).value;
    const side = chosen("side");
    const tensor = side === "new" ? found.fresh || found.old : found.old || found.fresh;
    const isSigned = side === "difference" && found.a !== null && found.b !== null;
    const values = isSigned ? difference(found.a, found.b) : side === "new" ? found.b : found.a || found.b;
    const isText = chosen("view") === "text" || !(values instanceof Float64Array);
    const canvas = document.getElementById("drawing");
    const text = document.getElementById("tensor-text");
    canvas.hidden = isText;
    text.hidden = !isText;
    facts.textContent = describe(tensor, values, side);
    if (isText) {
      const shown = values || found.a || found.b;
      text.textContent = shown ? asText(shown, isSigned && !values ? found.b : null) : "The elements are not recorded.";
      return;
    }
    const began = performance.now();
    if (chosen("view") === "heatmap") drawHeatmap(canvas, values, tensor.shape || [], isSigned);
    else drawLines(canvas, isSigned ? [found.a, found.b] : [values]);
    canvas.dataset.ms = String(performance.now() - began);
    canvas.setAttribute("aria-label", `${chosen("view")} of the ${facts.textContent}`);
  }
}

function describe(tensor, values, side) {
  const shape = tensor.shape ? `[${tensor.shape.join(",")}]` : "";
  const name = `${side} of ${tensor.name}: ${tensor.datatype || "?"}${shape}`;
  if (!(values instanceof Float64Array) || values.length === 0) return name;
  const [low, high] = range(values);
  return `${name}, ${values.length} elements from ${low.toPrecision(4)} to ${high.toPrecision(4)}`;
}

async function showSample(viewer) {
  const problem = document.getElementById("viewer-error");
  const response = await fetch(viewer.dataset.sample, { headers: HEADERS });
  const reply = await response.json();
  if (response.ok) new Viewer(reply);
  else problem.textContent = reply.error;
}

// --- Start -------------------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-command]");
  if (button) confirmCommand(button);
});
const viewer = document.getElementById("viewer");
if (viewer) showSample(viewer);
showCommands();
listen();
